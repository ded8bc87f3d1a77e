"""Clients of all kinds, by the production library: what a run is about."""
