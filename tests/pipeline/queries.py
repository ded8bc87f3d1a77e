"""Two streaming queries in a process of their own, to be killed.

    python -m tests.pipeline.queries FOLDER DATA_DIRECTORY URL [--drain]

Both read the topic /in from the data directory; one writes Parquet to FOLDER/rows, the other
publishes to /out. Without --drain they run until somebody ends them.
"""

import sys
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from busnode.pipeline import session

ROWS_MAX = 2000
DRAINED_MAX = 100_000


def start(folder: Path, directory: str, url: str, *, drain: bool) -> list[StreamingQuery]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
    }
    spark = session("queries", "local[2]", settings)
    spark.sparkContext.setLogLevel("ERROR")
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
    folder_name, data_directory, bus_url, *rest = sys.argv[1:]
    for query in start(Path(folder_name), data_directory, bus_url, drain="--drain" in rest):
        query.awaitTermination()
