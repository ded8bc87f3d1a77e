"""How much goes where, how large and how late."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from busnode.pipeline.traffic import COLUMNS, topic_totals, traffic

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> DataFrame:
    """120 messages in two minutes of one producer, some of another; three that tell a latency."""

    def sent(second: float, ms: int) -> dict[str, str]:
        return {"sent_us": str(round((NOON.timestamp() + second) * 1e6) - ms * 1000)}

    rows: list[Any] = [
        ("/a", NOON + timedelta(seconds=second), None, {}, bytes(100 + second % 60), 1)
        for second in range(120)
    ]
    rows += [
        ("/b", NOON, None, sent(0, 10), b"x", -1),
        ("/b", NOON + timedelta(seconds=1), None, sent(1, 30), b"x", -1),
        ("/b", NOON + timedelta(seconds=2), None, {"sent_us": "soon"}, b"x", -1),
        ("/c", NOON, "order 1", {}, b"", 1),
        ("/d", NOON + timedelta(milliseconds=250), "order 1", {}, b"", 2),
    ]
    return spark.createDataFrame(rows, COLUMNS)


def test_rates_and_sizes_are_those_of_each_topic_producer_and_window(messages: DataFrame) -> None:
    rows = traffic(messages, "1 minute").collect()
    first, second = [row for row in rows if row["topic"] == "/a"]
    assert (first["start"], second["start"]) == (naive(NOON), naive(NOON + timedelta(minutes=1)))
    assert (first["messages"], first["seconds"], first["messages_per_s"]) == (60, 60.0, 1.0)
    assert first["bytes"] == sum(range(100, 160))
    assert first["bytes_per_s"] == first["bytes"] / 60
    assert (first["size_p50"], first["size_p99"], first["size_max"]) == (129, 159, 159)
    assert (first["timed"], first["latency_ms_p50"]) == (0, None)
    assert first["producer"] == "1"
    (other,) = [row for row in rows if row["topic"] == "/b"]
    assert (other["producer"], other["latency_ms_max"]) == ("F" * 16, 30.0)


def test_latency_is_since_the_time_in_a_header_or_since_the_first_with_the_same_id(
    messages: DataFrame,
) -> None:
    rows = {row["topic"]: row for row in topic_totals(messages).collect()}
    assert (rows["/b"]["timed"], rows["/b"]["latency_ms_p50"]) == (2, 10.0)
    assert rows["/b"]["latency_ms_p99"] == 30.0
    assert (rows["/c"]["timed"], rows["/d"]["latency_ms_p50"]) == (0, 250.0)
    assert [rows[topic]["messages"] for topic in ("/a", "/b", "/c")] == [120, 3, 1]
    assert [rows[topic]["producers"] for topic in ("/a", "/b", "/c")] == [1, 1, 1]


def naive(moment: datetime) -> datetime:
    """As Spark hands times to Python: those of this machine's zone."""
    return moment.astimezone().replace(tzinfo=None)
