"""Lets Spark find the format `busnode` by itself: it looks into modules whose names begin so."""

from busnode.pipeline.source import BusnodeSource as DefaultSource

__all__ = ["DefaultSource"]
