"""Tables of messages, read by Spark from data directories."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from busnode.pipeline.columns import TABLE
from busnode.pipeline.source import BusnodeSource
from busnode.wire.errors import BadOption, NotADataDirectory
from tests.segments.samples import UTC_US

from .written_logs import LATER, ORDERS, OTHERS, Row, drop, flip, numbered, segments, write_log

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two logs of one topic, and a third log."""
    path = tmp_path / "n1"
    write_log(path, ORDERS, [numbered(1 + 10 * place, 10) for place in range(12)], 4)
    write_log(path, LATER, [numbered(1, 30)])
    write_log(path, OTHERS, [[Row(1, b"a", UTC_US, "one", {"k": "v"}), Row(2, b"bb")]])
    return path


def table(
    spark: SparkSession, directory: Path, schema: str | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("busnode").options(**{"path": str(directory), **options})
    return (reader.schema(schema) if schema else reader).load()


def numbers_of(frame: DataFrame, topic: str = "/orders/new") -> list[int]:
    rows = frame.where(f.col("topic") == topic).where(f.col("broker_id") == ORDERS.broker_id.hex())
    return sorted(row["msg_no"] for row in rows.collect())


def parts(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def test_a_table_has_all_columns_and_all_messages(spark: SparkSession, directory: Path) -> None:
    frame = table(spark, directory)
    assert frame.schema == TABLE
    rows = frame.collect()
    assert (
        len({(row["broker_id"], row["topic"], row["msg_no"]) for row in rows}) == len(rows) == 152
    )
    (one,) = [row for row in rows if row["id"]]
    assert (one["headers"], bytes(one["payload"]), one["holder"]) == ({"k": "v"}, b"a", "n1")


def test_spark_finds_the_format_by_itself(spark: SparkSession, directory: Path) -> None:
    import pyspark_busnode

    other = spark.newSession()
    assert other.read.format("busnode").option("path", str(directory)).load().count() == 152
    assert pyspark_busnode.DefaultSource.name() == "busnode"


def test_only_the_columns_of_the_schema_come(spark: SparkSession, directory: Path) -> None:
    frame = table(spark, directory, "msg_no bigint, topic string", topics="/others")
    assert [tuple(row) for row in frame.orderBy("msg_no").collect()] == [
        (1, "/others"),
        (2, "/others"),
    ]


def test_filters_choose_logs_segments_and_ranges(spark: SparkSession, directory: Path) -> None:
    frame = table(spark, directory)
    assert parts(frame) == 5
    assert parts(frame.where("topic = '/others'")) == 1
    assert parts(frame.where(f"broker_id = '{ORDERS.broker_id.hex()}'")) == 4
    assert parts(frame.where("msg_no > 40 and topic = '/orders/new'")) == 2
    assert parts(frame.where("topic like '/orders%'")) == 4
    few = frame.where("msg_no between 35 and 45 and topic = '/orders/new'")
    assert numbers_of(few) == [*range(35, 46)]
    since = EPOCH + timedelta(microseconds=UTC_US + 111)
    late = frame.where(f.col("utc") >= f.lit(since))
    assert numbers_of(late) == [*range(111, 121)]
    assert late.count() == 10


def test_it_works_also_where_filters_are_not_pushed_down(
    spark: SparkSession, directory: Path
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert numbers_of(table(spark, directory).where("msg_no > 100")) == [*range(101, 121)]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_table_starts_and_ends_at_a_position_or_a_time(
    spark: SparkSession, directory: Path
) -> None:
    broker = ORDERS.broker_id.hex()
    start = f'{{"{broker}": {{"/orders/new": 17}}}}'
    end = f'{{"{broker}": {{"/orders/new": 63}}}}'
    assert numbers_of(table(spark, directory, start=start)) == [*range(18, 121)]
    assert numbers_of(table(spark, directory, end=end)) == [*range(1, 64)]
    assert table(spark, directory, end=end).count() == 63  # it names no other log
    since = (EPOCH + timedelta(microseconds=UTC_US + 100)).isoformat()
    before = str(UTC_US + 110)
    assert numbers_of(table(spark, directory, start=since, end=before)) == [*range(100, 110)]


def test_a_pattern_that_matches_nothing_is_an_empty_table(
    spark: SparkSession, directory: Path
) -> None:
    assert table(spark, directory, topics="/nothing/+").count() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topcis": "/a"}, "option 'topcis' is unknown"),
        ({"topics": "a"}, "option topics"),
        ({"start": "yesterday"}, "option start"),
        ({"start": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"start": '{"00": {"/a": 1}}'}, "option start"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger"),
        ({"url": "bus://127.0.0.1:1"}, "both are given"),
        ({"copies": "some"}, "option copies"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all has no folder"),
        ({"path": "hdfs://far/away"}, "option path"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(
    directory: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises((BadOption, NotADataDirectory), match=text):
        BusnodeSource({"path": str(directory), **options}).reader(TABLE)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (StructField("msg", LongType()), "no column 'msg'"),
        (StructField("topic", BinaryType()), "is string, not"),
    ],
)
def test_a_wrong_column_is_refused(directory: Path, column: StructField, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        BusnodeSource({"path": str(directory)}).reader(StructType([column]))


def test_what_is_refused_is_told_by_spark(spark: SparkSession, directory: Path) -> None:
    with pytest.raises(PySparkException, match="BAD_OPTION: option 'topcis' is unknown"):
        table(spark, directory, topcis="/a").count()
    with pytest.raises(PySparkException, match="BAD_OPTION: schema: there is no column 'msg'"):
        table(spark, directory, "msg bigint").count()


def test_damage_is_an_error_that_names_the_file_or_left_out_when_asked(
    spark: SparkSession, directory: Path
) -> None:
    damaged = segments(directory)[1]
    flip(damaged, 600)
    with pytest.raises(PySparkException, match=damaged.name):
        table(spark, directory).count()
    assert table(spark, directory, failOnDataLoss="false").count() == 142


def test_a_gap_is_an_error_that_names_the_range(spark: SparkSession, directory: Path) -> None:
    drop(segments(directory)[1])
    with pytest.raises(PySparkException, match="DATA_LOST: messages 41–80 of /orders/new"):
        table(spark, directory).count()


def test_copies_can_be_told_apart(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "n2", OTHERS, [numbered(1, 2)])
    paths = f"{directory}, {tmp_path / 'n2'}"
    best = spark.read.format("busnode").option("topics", "/others").option("path", paths)
    assert [row["holder"] for row in best.load().collect()] == ["n1", "n1"]
    both = best.option("copies", "all").load().groupBy("holder").count().collect()
    assert {tuple(row) for row in both} == {("n1", 2), ("n2", 2)}
