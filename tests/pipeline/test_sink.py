"""Rows become messages, each once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from busnode.pipeline.source import BusnodeSource
from busnode.testing import BusCluster
from busnode.wire.errors import BadOption

from .written_logs import ORDERS, Row, numbered, write_log

pytestmark = pytest.mark.spark


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BusCluster]:
    with BusCluster(tmp_path / "cluster", nodes=1) as nodes:
        yield nodes


def test_a_table_is_published(spark: SparkSession, node: BusCluster) -> None:
    frame = spark.range(5000).select(
        f.concat(f.lit("/out/"), (f.col("id") % 3).cast("string")).alias("topic"),
        f.col("id").cast("string").cast("binary").alias("payload"),
        f.when(f.col("id") % 2 == 0, f.col("id").cast("string")).alias("id"),
        f.create_map(f.lit("k"), f.col("id").cast("string")).alias("headers"),
    )
    frame.write.format("busnode").mode("append").option("url", node.url).save()
    table = spark.read.format("busnode").option("url", node.url).option("topics", "/out/+").load()
    rows = table.collect()
    assert len(rows) == 5000
    for row in rows:
        number = int(bytes(row["payload"]))
        assert row["topic"] == f"/out/{number % 3}"
        assert row["id"] == (None if number % 2 else str(number))
        assert row["headers"] == {"k": str(number)}
    assert {int(bytes(row["payload"])) for row in rows} == {*range(5000)}


def test_a_stream_that_runs_a_batch_again_publishes_nothing_twice(
    spark: SparkSession, node: BusCluster, tmp_path: Path
) -> None:
    write_log(tmp_path / "n1", ORDERS, [numbered(1 + 100 * part, 100) for part in range(30)])

    def drain() -> None:
        query = (
            spark.readStream.format("busnode")
            .option("path", str(tmp_path / "n1"))
            .option("maxRowsPerTrigger", 1000)
            .load()
            .select("payload")
            .writeStream.format("busnode")
            .option("url", node.url)
            .option("topic", "/copied")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    drain()
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(commits) == 3
    for commit in commits[-2:]:  # as if it had died after it had published and before it knew
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    drain()
    drain()
    table = spark.read.format("busnode").option("url", node.url).option("topics", "/copied").load()
    payloads = sorted(int(bytes(row["payload"]).partition(b".")[0]) for row in table.collect())
    assert payloads == [*range(1, 3001)]


def test_the_same_rows_in_another_batch_of_a_stream_are_other_messages(
    spark: SparkSession, node: BusCluster, tmp_path: Path
) -> None:
    rows = [Row(number, b"the same") for number in range(1, 5)]
    write_log(tmp_path / "n1", ORDERS, [[row] for row in rows])
    query = (
        spark.readStream.format("busnode")
        .option("path", str(tmp_path / "n1"))
        .option("maxRowsPerTrigger", 2)
        .load()
        .select("payload")
        .writeStream.format("busnode")
        .option("url", node.url)
        .option("topic", "/same")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    table = spark.read.format("busnode").option("url", node.url).option("topics", "/same").load()
    assert table.count() == 4


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["'a' as payload"], {"topic": "/a"}, "column 'payload' is string; a message's is binary"),
        (["id"], {"topic": "/a"}, "column 'id' is bigint"),
        (["cast('a' as binary) as body"], {"topic": "/a"}, "column 'body'"),
        (["'/a' as topic"], {}, "column 'payload' is missing"),
        (["cast('a' as binary) as payload"], {}, "neither is there"),
        (["cast('a' as binary) as payload"], {"topic": "a"}, "option topic"),
        (["cast('a' as binary) as payload"], {"topic": "/a", "acks": "1"}, "option 'acks'"),
        (["cast('a' as binary) as payload"], {"topic": "/a", "require": "x"}, "option require"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_message_is_refused_by_its_name(
    spark: SparkSession, columns: list[str], options: dict[str, str], text: str, stream: bool
) -> None:
    schema = spark.range(1).selectExpr(*columns).schema
    source = BusnodeSource({"url": "bus://127.0.0.1:1", **options})
    with pytest.raises(BadOption, match=text):
        (source.streamWriter if stream else source.writer)(schema, overwrite=False)


def test_nothing_on_the_bus_is_overwritten(spark: SparkSession) -> None:
    schema = spark.range(1).selectExpr("cast('a' as binary) as payload").schema
    source = BusnodeSource({"url": "bus://127.0.0.1:1", "topic": "/a"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(BadOption, match="what is on the bus stays there"):
            writer(schema, overwrite=True)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["'a' as payload"], {"topic": "/a"}, "BAD_OPTION: column 'payload' is string"),
        (["cast(null as binary) as payload"], {"topic": "/a"}, "BAD_OPTION: .* has a null"),
        (["'x' as topic", "cast('a' as binary) as payload"], {}, "BAD_OPTION: column 'topic'"),
    ],
)
def test_what_is_refused_is_told_by_spark(
    spark: SparkSession, node: BusCluster, columns: list[str], options: dict[str, str], text: str
) -> None:
    writer = spark.range(1).selectExpr(*columns).write.format("busnode").mode("append")
    with pytest.raises(PySparkException, match=text):
        writer.option("url", node.url).options(**options).save()
