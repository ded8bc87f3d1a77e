"""The tests; their folders mirror the layers."""
