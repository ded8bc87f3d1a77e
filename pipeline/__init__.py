"""The data pipeline: the logs of the bus as tables of Spark, and tables as messages."""

from busnode.pipeline.session import session

__all__ = ["session"]
