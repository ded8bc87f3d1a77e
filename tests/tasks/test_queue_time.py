"""A queue in virtual time: schedules, due times, and what waiting costs."""

import tracemalloc
from random import Random

from busnode.tasks.events import Enqueued, Ticked
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import TaskOptions
from tests.tasks.owner import START_US, Owner

MINUTE = 60.0


def test_the_default_schedule_over_70_minutes() -> None:
    """A worker that fails at once, each time: at 0, 10, 25, 45 and 70 minutes, and then no more."""
    owner = Owner()
    owner.enqueue()
    given: list[tuple[float, int]] = []
    for _ in range(80 * 60):
        lease = owner.poll()
        if lease.numbers:
            given.append((owner.at_s / MINUTE, lease.attempts[0]))
            owner.fail(lease, f"failure {len(given)}")
        owner.wait(1.0)
    assert given == [(0, 1), (10, 2), (25, 3), (45, 4), (70, 5)]
    (dead,) = owner.queue.rows("dead", 0, 9)
    assert dead.row.dead_us == START_US + 70 * 60 * 1_000_000
    assert [each.error for each in dead.row.history] == [f"failure {n}" for n in range(1, 6)]
    minutes = [(each.at_us - START_US) / 60e6 for each in dead.row.history]
    assert minutes == [0, 10, 25, 45, 70]


def test_one_tasks_wait_does_not_delay_another() -> None:
    owner = Owner()
    owner.enqueue(2)
    owner.fail(owner.poll(1))
    assert owner.poll(9).numbers == [2]
    owner.enqueue(1, TaskOptions(delay_ms=3_600_000))
    owner.enqueue(1)
    assert owner.poll(9).numbers == [4]
    owner.wait(10 * MINUTE)
    assert owner.poll(9).numbers == [1, 2, 4], "one that failed, and leases that ran out"


def test_10_000_tasks_with_different_due_times_come_when_they_are_due_and_in_order() -> None:
    owner = Owner()
    waits_ms = list(range(1, 10_001))
    Random(7).shuffle(waits_ms)
    due_first = [TaskOptions(due_us=START_US + ms * 1000) for ms in waits_ms[:5000]]
    delayed = [TaskOptions(delay_ms=ms) for ms in waits_ms[5000:]]
    owner.enqueue_each([*due_first, *delayed])
    by_wait = {ms: number for number, ms in enumerate(waits_ms, 1)}
    for ms in range(10_001):
        lease = owner.poll(100, lease_s=1000.0)
        assert lease.numbers == ([by_wait[ms]] if ms else []), ms
        owner.at_s = (ms + 1) / 1000
        assert owner.queue.first_due_us == (owner.now_us if ms < 10_000 else None)
        owner.wait(0.0)
        assert owner.says_ready() == (ms < 10_000)
    assert owner.queue.statistics().delayed == 0


def test_those_that_are_due_together_come_by_priority_and_number() -> None:
    owner = Owner()
    owner.enqueue_each([TaskOptions(delay_ms=1000 - n, priority=n % 3) for n in range(9)])
    owner.wait(2)
    assert owner.poll(9).numbers == [3, 6, 9, 2, 5, 8, 1, 4, 7]


def test_a_due_time_that_has_passed_is_now_and_the_later_of_delay_and_due_time_counts() -> None:
    owner = Owner()
    owner.at_s = 100.0
    both = TaskOptions(delay_ms=5000, due_us=START_US + 103_000_000)
    owner.enqueue_each([TaskOptions(due_us=START_US), both])
    assert owner.poll(9).numbers == [1]
    owner.wait(4.9)
    assert owner.poll(9).numbers == []
    owner.wait(0.1)
    assert owner.poll(9).numbers == [2]


def test_a_schedule_may_have_tasks_wait_before_the_first_attempt() -> None:
    owner = Owner(Schedule.parse("5,1"))
    owner.enqueue_each([None, TaskOptions(retry=Schedule.parse("0,1")), TaskOptions(priority=1)])
    owner.enqueue(1)
    assert owner.poll(9).numbers == [2]
    owner.wait(5)
    assert owner.poll(9).numbers == [3, 1, 4]


def test_more_than_a_tick_may_do_is_done_in_the_next() -> None:
    owner = Owner()
    for _ in range(30):
        owner.enqueue(4000, TaskOptions(delay_ms=1000))
    owner.wait(1)
    assert owner.queue.statistics().ready == 50_000
    assert owner.queue.first_due_us == owner.now_us, "there is more"
    owner.wait(0)
    owner.wait(0)
    assert owner.queue.statistics().ready == 120_000
    assert owner.queue.first_due_us is None


def test_a_delayed_task_takes_less_than_300_bytes() -> None:
    count = 100_000
    for options in (
        TaskOptions(delay_ms=3_600_000),
        TaskOptions(delay_ms=3_600_000, retry=Schedule.parse("0,60"), priority=3),
    ):
        owner = Owner()
        tracemalloc.start()
        try:
            for first_no in range(1, count, 1000):
                event = Enqueued(first_no, 1000, [options] * 1000, owner.now_us + first_no)
                owner.tell(event)
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert owner.queue.statistics().delayed == count
        assert used / count <= 300
        assert used / count <= 80, "as it is: an entry of the heap and a few bits"


def test_a_ready_task_takes_next_to_nothing() -> None:
    owner = Owner()
    tracemalloc.start()
    try:
        for first_no in range(1, 1_000_000, 1000):
            owner.tell(Enqueued(first_no, 1000, None, owner.now_us))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 1_000_000 <= 1


def test_keys_are_forgotten_when_their_window_is_over() -> None:
    owner = Owner()
    owner.enqueue_each([TaskOptions(key=f"k{n}", window_ms=1000) for n in range(4000)])
    assert len(owner.queue._intake.keys) == 4000
    owner.tell(Ticked(owner.at_s + 1, owner.now_us + 1_000_001, 0.5))
    assert len(owner.queue._intake.keys) == 0
