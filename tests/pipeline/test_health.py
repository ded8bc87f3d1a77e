"""Which services are well, by their heartbeats."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busnode.pipeline.health import ROCKSDB, TOPICS, health, health_stream, heartbeats, standing
from busnode.pipeline.pulse import Change, Patience, Pulse
from busnode.wire.ids import BrokerId, LogId, Topic
from tests.segments.samples import UTC_US

from .written_logs import Row, write_log

S = 1_000_000
PATIENCE = Patience(unresponsive_s=30, dead_s=120)
BROKER = BrokerId(bytes(range(16)))


def test_silence_makes_a_service_unresponsive_and_then_dead() -> None:
    pulse = Pulse(PATIENCE)
    assert pulse.passed(10**9) == []
    assert pulse.beat(100 * S) == [Change(100 * S, "healthy", 100 * S)]
    assert pulse.next_us == 130 * S
    assert pulse.passed(129 * S) == []
    assert pulse.passed(130 * S) == [Change(130 * S, "unresponsive", 100 * S)]
    assert pulse.next_us == 220 * S
    assert pulse.passed(500 * S) == [Change(220 * S, "dead", 100 * S)]
    assert pulse.next_us is None


def test_a_beat_after_silence_tells_all_that_was_in_between() -> None:
    pulse = Pulse(PATIENCE)
    pulse.beat(0)
    assert [each.state for each in pulse.beat(50 * S)] == ["unresponsive", "healthy"]
    assert [each.state for each in pulse.beat(500 * S)] == ["unresponsive", "dead", "healthy"]
    assert pulse.beat(510 * S) == []


def test_a_beat_that_comes_late_changes_nothing() -> None:
    pulse = Pulse(PATIENCE)
    pulse.beat(100 * S)
    pulse.passed(140 * S)
    assert pulse.beat(90 * S) == []
    assert (pulse.state, pulse.beats, pulse.beat_us) == ("unresponsive", 2, 100 * S)


def beats(directory: Path, service: str, *seconds: int) -> None:
    log_id = LogId(BROKER, Topic(f"/heartbeat/{service}"))
    rows = [
        Row(place, b"", UTC_US + second * S, headers={"service": service})
        for place, second in enumerate(seconds, 1)
    ]
    write_log(directory, log_id, [[row] for row in rows])


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(UTC_US / S + second, UTC)


@pytest.mark.spark
def test_a_table_of_heartbeats_is_judged_as_of_a_moment(
    spark: SparkSession, tmp_path: Path
) -> None:
    beats(tmp_path / "n1", "billing", *range(0, 300, 10))
    beats(tmp_path / "n1", "mail", 0, 10, 20, 100, 110)
    beats(tmp_path / "n1", "slow", 0, 260)
    beats(tmp_path / "n1", "later", 0, 400)  # its second one is not known then
    table = spark.read.format("busnode").option("path", str(tmp_path / "n1"))
    found = heartbeats(table.option("topics", TOPICS).load())
    changes = health(found, moment(291), PATIENCE).cache()
    now = {row["service"]: row for row in standing(changes).collect()}
    assert {name: row["state"] for name, row in now.items()} == {
        "billing": "healthy",
        "mail": "dead",
        "slow": "unresponsive",
        "later": "dead",
    }
    assert [*now] == ["later", "mail", "slow", "billing"]  # the worst first
    assert now["mail"]["since"] == moment(230).astimezone().replace(tzinfo=None)
    rows = changes.orderBy("at").collect()
    mail = [row["state"] for row in rows if row["service"] == "mail"]
    assert mail == ["healthy", "unresponsive", "healthy", "unresponsive", "dead"]
    slow = [row["state"] for row in rows if row["service"] == "slow"]
    assert slow == ["healthy", "unresponsive", "dead", "healthy", "unresponsive"]


@pytest.mark.spark
def test_a_stream_notices_silence_when_time_has_passed(spark: SparkSession, tmp_path: Path) -> None:
    for name, value in ROCKSDB.items():
        spark.conf.set(name, value)
    source = tmp_path / "n1"
    beats(source, "billing", *range(0, 60, 10))
    beats(source, "mail", 0, 10)
    stream = spark.readStream.format("busnode").option("path", str(source)).load()

    def drain() -> list[tuple[str, str]]:
        changes = health_stream(heartbeats(stream), PATIENCE)
        query = (
            changes.writeStream.format("parquet")
            .option("path", str(tmp_path / "changes"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)
        rows = spark.read.parquet(str(tmp_path / "changes")).orderBy("at").collect()
        return [(row["service"], row["state"]) for row in rows]

    first = drain()
    assert sorted(first[:2]) == [("billing", "healthy"), ("mail", "healthy")]
    assert first[2:] == [("mail", "unresponsive")]  # the beats of another one tell the time
    log_id = LogId(BROKER, Topic("/heartbeat/billing"))
    later = [
        Row(7 + n, b"", UTC_US + (60 + 10 * n) * S, headers={"service": "billing"})
        for n in range(9)
    ]
    write_log(source, log_id, [[row] for row in later])
    assert drain()[3:] == [("mail", "dead")]
