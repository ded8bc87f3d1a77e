"""What a node remembers of producers: the numbers themselves, never a high-water mark."""

import random

import pytest

from busnode.node import producers as module
from busnode.node.producers import PRODUCERS_MAX, RUNS_MAX, Producer, Producers, SeenRun
from busnode.segments.memory_store import MemoryLog
from busnode.segments.store import Log
from busnode.testing.sim.clock import SimClock
from busnode.wire.ids import MsgNo

from ..segments.samples import PRESSURE, TEMPERATURE, record


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(TEMPERATURE, SimClock())


def seen(log: Log, first_seq: int, counts: list[int], first_no: int) -> SeenRun:
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    return SeenRun(first_seq, ends, log, first_no)


def test_each_batch_of_a_run_is_found_with_its_own_numbers(log: MemoryLog) -> None:
    producer = Producer()
    producer.add(seen(log, 10, [3, 1, 4], 101))
    assert [producer.find(seq) for seq in range(9, 14)] == [
        None,
        (log, 101, 3),
        (log, 104, 1),
        (log, 105, 4),
        None,
    ]


def test_what_comes_behind_the_last_is_new_and_what_comes_before_is_looked_up(
    log: MemoryLog,
) -> None:
    producer = Producer()
    assert producer.is_new(1)
    producer.add(seen(log, 5, [1, 1], 1))
    assert producer.is_new(7)
    assert not producer.is_new(6)
    assert not producer.is_new(1), "it may be"
    assert producer.find(1) is None, "and is"


@pytest.mark.parametrize("seed", range(10))
def test_numbers_that_were_not_seen_are_never_found(log: MemoryLog, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    producer = Producer()
    expected: dict[int, int] = {}
    next_no = 1
    for _ in range(300):
        seq = chance.randint(1, 400)
        length = chance.randint(1, 4)
        if any(number in expected for number in range(seq, seq + length)):
            continue
        producer.add(seen(log, seq, [1] * length, next_no))
        for number in range(seq, seq + length):
            expected[number] = next_no
            next_no += 1
    for number in range(1, 410):
        found = producer.find(number)
        assert (None if found is None else found[1]) == expected.get(number)


def test_a_client_may_have_as_many_batches_in_flight_as_are_remembered(log: MemoryLog) -> None:
    """The last 4096, each of a run of its own: whatever else is forgotten, these are not."""
    producer = Producer()
    for seq in range(1, 4 * RUNS_MAX):
        producer.add(seen(log, 2 * seq, [1], seq))
        if seq > RUNS_MAX:
            assert producer.find(2 * (seq - RUNS_MAX + 1)) is not None
    assert len(producer._runs) <= 2 * RUNS_MAX


def test_a_run_that_was_lost_gives_way_to_the_one_that_was_stored_again(log: MemoryLog) -> None:
    again = MemoryLog(PRESSURE, SimClock())
    producer = Producer()
    producer.add(seen(log, 5, [1] * 6, 1))
    producer.add(seen(again, 5, [1, 1], 1))
    assert producer.find(5) == (again, 1, 1)
    assert producer.find(6) == (again, 2, 1)
    assert producer.find(7) is None, "it was lost with its log, and must be stored"


def test_producers_that_publish_stay_when_there_are_too_many() -> None:
    producers = Producers()
    first = producers.get(0)
    for number in range(1, PRODUCERS_MAX + 500):
        producers.get(number)
        if number % 1000 == 0:
            assert producers.get(0) is first
    assert len(producers) == PRODUCERS_MAX
    assert producers.get(0) is first
    forgotten = producers.get(1)
    assert forgotten.find(1) is None


def filled(count: int) -> MemoryLog:
    """A log whose batches have the numbers that their first messages have."""
    log = MemoryLog(TEMPERATURE, SimClock())
    for first_no in range(1, 2 * count, 2):
        log.append(record(TEMPERATURE, first_no, [b"a", b"b"]), 2, 0)
    log.committed_no = MsgNo(2 * count)
    return log


def test_the_ends_of_old_logs_are_remembered() -> None:
    log = filled(50)
    producers = Producers()
    producers.load([log])
    for first_no in range(1, 100, 2):
        assert producers.get(1).find(first_no) == (log, first_no, 2)
        assert producers.get(1).find(first_no + 1) is None


@pytest.mark.parametrize("budget", ["LOADED_BATCHES_MAX", "LOADED_BATCHES_OF_ONE_MAX"])
def test_learning_stops_at_its_budget_and_keeps_the_newest(
    monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setattr(module, budget, 10)
    producers = Producers()
    producers.load([filled(50)])
    known = [no for no in range(1, 100, 2) if producers.get(1).find(no) is not None]
    assert known == list(range(81, 100, 2)), "what was in flight stands at the end"


def test_consecutive_batches_are_learned_as_one_run(log: MemoryLog) -> None:
    producer = Producer()
    for seq in range(1, 101):
        producer.learn(seen(log, seq, [2], 2 * seq - 1))
    assert len(producer._runs) == 1
    assert producer.find(57) == (log, 113, 2)
    producer.learn(seen(log, 57, [2], 999))
    assert producer.find(57) == (log, 113, 2), "the first counts"
