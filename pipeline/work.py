"""Work for tasks as a table: a row for each piece, which one task does; rows of what was done."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from busnode.pipeline.arrow import RecordBatch, pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Done = Sequence[dict[str, Any]]


def work_frame(spark: "SparkSession", pieces: Sequence[object]) -> "DataFrame":
    """A row for each piece of work, and a partition for each row."""
    rows = [(place, bytearray(pickle.dumps(piece))) for place, piece in enumerate(pieces)]
    untyped: Any = spark
    frame: DataFrame = untyped.createDataFrame(rows, "place bigint, piece binary")
    return frame.repartitionByRange(len(rows), "place")


def work_done(work: "DataFrame", do: Callable[[int, Any], Done], schema: str) -> "DataFrame":
    """What `do` makes of the place and the content of each piece, in tasks."""

    def each(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                done = do(row["place"], pickle.loads(row["piece"]))
                if done:
                    yield pa.RecordBatch.from_pylist(list(done))

    return map_in_arrow(work, each, schema)


def map_in_arrow(
    frame: "DataFrame", each: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], schema: str
) -> "DataFrame":
    untyped: Any = frame  # its types are those of pyarrow, which has none
    mapped: DataFrame = untyped.mapInArrow(each, schema)
    return mapped
