"""What commands read from: data directories or a cluster, as a person has named them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busnode.pipeline.options import SourceOptions, source_options
from busnode.wire.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Source:
    """Where a job reads, and from when to when."""

    names: tuple[str, ...]
    """Data directories, or one URL."""
    start: str = "earliest"
    end: str = "latest"
    tolerant: bool = False

    @property
    def is_cluster(self) -> bool:
        return any("://" in name for name in self.names)

    def options(self, topics: str) -> dict[str, str]:
        """As Spark is given them."""
        if self.is_cluster:
            if len(self.names) != 1:
                raise BadOption(
                    "SOURCE: name data directories, or one bus://host:port,host:port; not both"
                )
            where = {"url": self.names[0]}
        else:
            where = {"paths": json.dumps(self.names)}
        fail = "false" if self.tolerant else "true"
        return {
            **where, "topics": topics, "start": self.start, "end": self.end, "failOnDataLoss": fail,
        }  # fmt: skip

    def checked(self, topics: str) -> SourceOptions:
        """BadOption for what cannot be read from, before Spark is started."""
        return source_options(self.options(topics), stream=False)

    def load(
        self, spark: "SparkSession", topics: str, schema: str | None = None, **more: str
    ) -> "DataFrame":
        """A table of the messages, with all columns unless some are named."""
        reader: Any = spark.read.format("busnode").options(**{**self.options(topics), **more})
        frame: DataFrame = (reader if schema is None else reader.schema(schema)).load()
        return frame


def named(names: Sequence[str], start: str, end: str, *, tolerant: bool) -> Source:
    return Source(tuple(names), start, end, tolerant)
