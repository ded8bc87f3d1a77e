"""The jobs as a Spark Declarative Pipeline: tables that Spark keeps up to date, and in which order.

A pipeline of `spark-pipelines` that has them needs one file of definitions, two lines long:

    from busnode.pipeline.declared import declare
    declare(spark)

Where messages come from stands in the pipeline's configuration: `spark.busnode.path` or
`spark.busnode.url`, and `spark.busnode.topics` where it is not everything.
"""

from typing import TYPE_CHECKING, Any, Final

from pyspark import pipelines

from busnode.pipeline import audit, health, journal_rows, task_outcomes, traffic
from busnode.pipeline.origins import origins_frame
from busnode.wire.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATH: Final = "spark.busnode.path"
URL: Final = "spark.busnode.url"
TOPICS: Final = "spark.busnode.topics"
MESSAGE: Final = "broker_id, topic, msg_no, utc, id, headers, payload, producer_id, producer_seq"


def declare(spark: "SparkSession") -> None:
    """Define all tables. BadOption where the configuration does not tell where messages are."""
    where = _where(spark)
    topics = str(spark.conf.get(TOPICS, "/*"))

    def load(pattern: str, schema: str | None = None, **more: str) -> "DataFrame":
        reader: Any = spark.read.format("busnode").options(**where, topics=pattern, **more)
        frame: DataFrame = (reader if schema is None else reader.schema(schema)).load()
        return frame

    def follow(pattern: str) -> "DataFrame":
        reader: Any = spark.readStream.format("busnode").options(**where, topics=pattern)
        frame: DataFrame = reader.load()
        return frame

    @pipelines.table(name="messages", comment="Every message once; each run adds what is new")
    def messages() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
        return follow(topics).select(*MESSAGE.split(", "))

    # Views are made of the logs, which are the truth. One of the table `messages` gets that as it
    # was before the run, in all runs but the first, also where Spark keeps no relations in memory.
    @pipelines.materialized_view(name="traffic", comment="By topic, producer and minute")
    def by_minute() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
        return traffic.traffic(load(topics, traffic.COLUMNS))

    @pipelines.materialized_view(name="topics", comment="Totals of each topic")
    def totals() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
        return traffic.topic_totals(load(topics, traffic.COLUMNS))

    # For Python of ours Spark looks at columns, which it does not allow where tables are made.
    noticed = health.health_stream(health.heartbeats(follow(health.TOPICS)))
    ends = journal_rows.journal_rows(load(task_outcomes.JOURNALS, journal_rows.COLUMNS))

    @pipelines.table(name="health", comment="Changes of services, as they are noticed")
    def changes() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
        return noticed

    @pipelines.materialized_view(name="tasks", comment="What became of each task")
    def tasks() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
        started = load(task_outcomes.TASK_LOGS, task_outcomes.COLUMNS)
        return task_outcomes.task_outcomes(started, ends)

    if "path" in where:
        paths = [part.strip() for part in where["path"].split(",")]
        written_by = origins_frame(spark, paths)

        @pipelines.materialized_view(name="audit", comment="What is wrong in copies of logs")
        def findings() -> "DataFrame":  # pyright: ignore[reportUnusedFunction]
            every = {"copies": "all", "failOnDataLoss": "false"}
            extents = audit.copy_extents(load(topics, audit.EXTENT_COLUMNS, **every))
            copies, suspects = load(topics, None, **every), audit.suspects(extents)
            return audit.findings(copies, suspects, written_by)


def _where(spark: "SparkSession") -> dict[str, str]:
    path, url = spark.conf.get(PATH, None), spark.conf.get(URL, None)
    if path and not url:
        return {"path": path}
    if url and not path:
        return {"url": url}
    both = "both are there" if path else "neither is there"
    raise BadOption(f"the configuration of the pipeline names {PATH} or {URL}: {both}")
