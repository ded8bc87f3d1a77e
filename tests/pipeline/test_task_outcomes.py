"""What became of tasks, from their logs and journals."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from busnode.pipeline import journal_rows as module
from busnode.pipeline.journal_rows import journal_rows, rows_of
from busnode.pipeline.task_outcomes import (
    JOURNALS,
    TASK_LOGS,
    dead_letters,
    queue_totals,
    task_outcomes,
)
from busnode.tasks import journal
from busnode.tasks.rows import DEAD
from busnode.testing import BusCluster
from busnode.wire.carried_task import Carried, encode_carried
from busnode.wire.ids import LogId, Topic
from tests.segments.samples import UTC_US

from .written_logs import LATER, ORDERS, Row, write_log

S = 1_000_000


def test_records_are_read_as_queues_write_them() -> None:
    """Layers keep apart what writes journals and what reads them; this holds them together."""
    finished = journal.Finished("completed", ((1, 3), (7, 7)))
    assert list(rows_of(journal.encode_record(finished))) == [
        ("completed", 1, 3, None, None, None),
        ("completed", 7, 7, None, None, None),
    ]
    failed = journal.Failed([4, 5], [1, 5], [UTC_US, DEAD], UTC_US, "w1", "no luck")
    assert list(rows_of(journal.encode_record(failed))) == [
        ("failed", 4, 4, 1, "w1", "no luck"),
        ("dead", 5, 5, 5, "w1", "no luck"),
    ]
    requeued = journal.Requeued(((5, 5),))
    assert list(rows_of(journal.encode_record(requeued))) == [("requeued", 5, 5, None, None, None)]
    for other in (journal.FencesReserved(7), journal.SnapshotEnded()):
        assert list(rows_of(journal.encode_record(other))) == []
    assert module.DEAD == DEAD
    with pytest.raises(ValueError, match="kind 1 with 2 elements"):
        list(rows_of(b"\x92\x01\x02"))


def tables(spark: SparkSession, **options: str) -> DataFrame:
    def load(topics: str) -> DataFrame:
        reader: Any = spark.read.format("busnode").options(**options)
        frame: DataFrame = reader.option("topics", topics).load()
        return frame

    return task_outcomes(load(TASK_LOGS), journal_rows(load(JOURNALS)))


@pytest.mark.spark
def test_a_task_is_followed_through_attempts_and_from_one_log_to_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = ORDERS.broker_id, LATER.broker_id
    tasks = [Row(n, b"", UTC_US) for n in range(1, 8)]
    write_log(tmp_path / "n1", LogId(first, Topic("/$task/mail")), [tasks])
    at = UTC_US + 10 * S

    def record(number: int, what: journal.JournalRecord, utc_us: int = at) -> list[Row]:
        return [Row(number, journal.encode_record(what), utc_us)]

    write_log(
        tmp_path / "n1",
        LogId(first, Topic("/$sys/task/journal/mail")),
        [
            record(1, journal.Finished("completed", ((1, 1),))),
            record(2, journal.Failed([2, 3], [1, 1], [at, at], at, "w", "first")),
            record(3, journal.Failed([2, 3], [2, 2], [DEAD, at], at, "w", "last")),
            record(4, journal.Finished("completed", ((3, 3),)), at + 10 * S),
            record(5, journal.Finished("carried", ((4, 4),))),
            record(6, journal.Finished("elsewhere", ((6, 6),))),
            record(7, journal.Failed([7], [1], [DEAD], at, "w", "last"), at + 5 * S),
        ],
    )
    carried = Carried(f"{first.hex()}-4", UTC_US + S, attempts=3)
    write_log(
        tmp_path / "n1",
        LogId(second, Topic("/$task/mail")),
        [[Row(1, b"", at, headers={"$task": encode_carried(carried)})]],
    )
    write_log(
        tmp_path / "n1",
        LogId(second, Topic("/$sys/task/journal/mail")),
        [record(1, journal.Finished("completed", ((1, 1),)), at + 50 * S)],
    )
    outcomes = tables(spark, path=str(tmp_path / "n1")).cache()
    found = {
        row["id"].rpartition("-")[2]: (row["state"], row["attempts"], row["seconds"], row["error"])
        for row in outcomes.collect()
    }
    assert found == {
        "1": ("completed", 1, 10.0, None),
        "2": ("dead", 2, 10.0, "last"),
        "3": ("completed", 3, 20.0, "last"),
        "4": ("completed", 4, 60.0, None),
        "5": ("waiting", 0, None, None),
        "6": ("waiting", 0, None, None),
        "7": ("dead", 1, 15.0, "last"),
    }
    (queue,) = queue_totals(outcomes).collect()
    assert (queue["tasks"], queue["completed"], queue["dead"], queue["waiting"]) == (7, 3, 2, 2)
    assert (queue["seconds_p50"], queue["seconds_max"], queue["attempts"]) == (20.0, 60.0, 11)
    (letter,) = dead_letters(outcomes).collect()
    assert (letter["queue"], letter["error"], letter["tasks"]) == ("mail", "last", 2)
    assert (letter["last"] - letter["first"]).total_seconds() == 5
    assert letter["attempts"] == 1.5


@pytest.mark.spark
def test_the_queues_of_a_running_node_are_understood(spark: SparkSession, tmp_path: Path) -> None:
    with BusCluster(tmp_path, nodes=1) as cluster:
        bus = cluster.bus()
        queue = bus.queue("mail")
        for number in range(4):
            queue.enqueue(b"%d" % number)
        with queue.poll(lease=60) as poll:
            for _ in range(4):
                task = poll.get()
                if task.payload == b"3":
                    task.fail("broken", permanent=True)
                else:
                    task.complete()
        outcomes = tables(spark, url=cluster.url).cache()
        (row,) = queue_totals(outcomes).collect()
        assert (row["tasks"], row["completed"], row["dead"]) == (4, 3, 1)
        (letter,) = dead_letters(outcomes).collect()
        assert (letter["error"], letter["tasks"]) == ("broken", 1)
        assert row["seconds_max"] >= 0
