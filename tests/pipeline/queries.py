"""Two streaming queries in a process of their own, to be killed.

    python -m tests.pipeline.queries FOLDER DATA_DIRECTORY URL

Both read the topic /in from the data directory; one writes Parquet to FOLDER/rows, the other
publishes to /out. They run until somebody ends them.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from busnode.pipeline import session

from .conftest import SETTINGS

ROWS_MAX = 2000
DRAINED_MAX = 100_000


def start(
    spark: SparkSession, folder: Path, directory: str, url: str, *, drain: bool
) -> list[StreamingQuery]:
    """Both queries; with `drain` they end when they have done all that is there."""
    queries: list[StreamingQuery] = []
    for name in ("rows", "out"):
        messages = (
            spark.readStream.format("busnode")
            .option("path", directory)
            .option("topics", "/in")
            .option("maxRowsPerTrigger", DRAINED_MAX if drain else ROWS_MAX)
            .load()
        )
        if name == "rows":
            writer = messages.writeStream.format("parquet").option("path", str(folder / "rows"))
        else:
            published = messages.select("payload").writeStream.format("busnode")
            writer = published.option("url", url).option("topic", "/out")
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        if drain:
            writer = writer.trigger(availableNow=True)
        queries.append(writer.start())
    return queries


if __name__ == "__main__":
    folder_name, data_directory, bus_url = sys.argv[1:]
    made = session("queries", "local[2]", SETTINGS)
    made.sparkContext.setLogLevel("ERROR")
    for query in start(made, Path(folder_name), data_directory, bus_url, drain=False):
        query.awaitTermination()
