"""What may go: the pure choice, and what it leaves behind in files."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.retention import Candidate, RetentionRules, choose_expired
from busnode.segments.segment import RECORDS_AT
from busnode.segments.store import Range, StoreOptions
from busnode.testing.sim import SimDisk
from busnode.wire.ids import LogId, MsgNo

from .samples import (
    BROKER,
    DIRECTORY,
    OTHER_BROKER,
    PRESSURE,
    TEMPERATURE,
    StoppedClock,
    by_number,
    read_log,
    read_ranges,
    segments_of,
    snapshot,
    write_numbered,
)

NOW_US = 1_000_000_000_000
A, B = TEMPERATURE, PRESSURE


def candidate(
    log_id: LogId, first_no: int, size_bytes: int, age_s: float, *, writable: bool = False
) -> Candidate:
    stored_us = NOW_US - round(age_s * 1e6)
    return Candidate(
        log_id, MsgNo(first_no), MsgNo(first_no + 10), size_bytes, stored_us, writable=writable
    )


OLD_TO_NEW = [
    candidate(A, 1, 100, 500),
    candidate(A, 11, 100, 400),
    candidate(A, 21, 100, 300),
    candidate(A, 31, 50, 1, writable=True),
]
OTHER = [candidate(B, 1, 1000, 350), candidate(B, 11, 70, 2, writable=True)]
CLOCK_WENT_BACK = [candidate(A, 1, 100, 10), candidate(A, 11, 100, 500), candidate(A, 21, 100, 5)]


def rules(
    age_s: float | None = None, log_bytes: int | None = None, store_bytes: int | None = None
) -> RetentionRules:
    return RetentionRules(age_s, log_bytes, store_bytes)


def pinned(log_id: LogId) -> MsgNo | None:
    return MsgNo(12) if log_id == A else None


def test_what_somebody_needs_stays_however_old_it_is() -> None:
    segments = [candidate(log_id, n, 100, 90.0) for log_id in (A, B) for n in (1, 11, 21)]
    gone = choose_expired(segments, RetentionRules(age_s=50, pinned_from=pinned), NOW_US)
    assert [(each.log_id, each.first_no) for each, _ in gone] == [(A, 1), (B, 1), (B, 11), (B, 21)]


def test_what_somebody_needs_stays_however_large_log_and_store_are() -> None:
    segments = [candidate(log_id, n, 100, 90.0) for log_id in (A, B) for n in (1, 11, 21)]
    for rules in (
        RetentionRules(age_s=None, log_bytes_max=0, pinned_from=pinned),
        RetentionRules(age_s=None, store_bytes_max=0, pinned_from=pinned),
    ):
        gone = {(each.log_id, each.first_no) for each, _ in choose_expired(segments, rules, NOW_US)}
        assert gone == {(A, 1), (B, 1), (B, 11), (B, 21)}


def test_a_log_that_goes_by_age_alone_loses_nothing_for_its_size() -> None:
    segments = [candidate(log_id, n, 100, 61.0 - n) for log_id in (A, B) for n in (1, 11, 21)]
    for rules in (
        RetentionRules(age_s=55, log_bytes_max=0, goes_by_size=lambda log_id: log_id == B),
        RetentionRules(age_s=55, store_bytes_max=0, goes_by_size=lambda log_id: log_id == B),
    ):
        gone = {(each.log_id, each.first_no) for each, _ in choose_expired(segments, rules, NOW_US)}
        assert gone == {(A, 1), (B, 1), (B, 11), (B, 21)}


@pytest.mark.parametrize(
    ("candidates", "kept_by", "gone"),
    [
        ([], rules(0, 0, 0), []),
        (OLD_TO_NEW, rules(), []),
        (OLD_TO_NEW, rules(age_s=500), []),
        (OLD_TO_NEW, rules(age_s=499), [(A, 1)]),
        (OLD_TO_NEW, rules(age_s=300), [(A, 1), (A, 11)]),
        (OLD_TO_NEW, rules(age_s=0), [(A, 1), (A, 11), (A, 21), (A, 31)]),
        (OLD_TO_NEW, rules(log_bytes=350), []),
        (OLD_TO_NEW, rules(log_bytes=349), [(A, 1)]),
        (OLD_TO_NEW, rules(log_bytes=150), [(A, 1), (A, 11)]),
        (OLD_TO_NEW, rules(log_bytes=0), [(A, 1), (A, 11), (A, 21)]),
        (OLD_TO_NEW, rules(age_s=450, log_bytes=200), [(A, 1), (A, 11)]),
        (OLD_TO_NEW + OTHER, rules(log_bytes=500), [(B, 1)]),
        (OLD_TO_NEW + OTHER, rules(store_bytes=1420), []),
        (OLD_TO_NEW + OTHER, rules(store_bytes=1419), [(A, 1)]),
        (OLD_TO_NEW + OTHER, rules(store_bytes=1219), [(A, 1), (A, 11), (B, 1)]),
        (OTHER + OLD_TO_NEW, rules(store_bytes=0), [(A, 1), (A, 11), (A, 21), (B, 1)]),
        (OLD_TO_NEW + OTHER, rules(age_s=450, store_bytes=1300), [(A, 1), (A, 11)]),
        (CLOCK_WENT_BACK, rules(age_s=100), []),
        (CLOCK_WENT_BACK, rules(age_s=9), [(A, 1), (A, 11)]),
        (CLOCK_WENT_BACK + OTHER, rules(store_bytes=1300), [(B, 1)]),
    ],
)
def test_what_goes(
    candidates: list[Candidate], kept_by: RetentionRules, gone: list[tuple[LogId, int]]
) -> None:
    chosen = choose_expired(candidates, kept_by, NOW_US)
    assert sorted((one.log_id, one.first_no) for one, _ in chosen) == sorted(gone)
    assert all(reason for _, reason in chosen)


def test_a_day_is_kept_unless_one_says_otherwise() -> None:
    assert RetentionRules() == RetentionRules(age_s=86400, log_bytes_max=None, store_bytes_max=None)


def test_a_segment_from_the_future_stays() -> None:
    assert choose_expired([candidate(A, 1, 10, -5000)], rules(age_s=0), NOW_US) == []


logs = st.sampled_from([A, B, A._replace(broker_id=OTHER_BROKER)])
segments = st.tuples(logs, st.integers(0, 500), st.integers(-10, 500), st.booleans())
limits = st.none() | st.integers(0, 2000)


@settings(max_examples=300, deadline=None)
@given(st.lists(segments, max_size=20), st.none() | st.integers(0, 500), limits, limits)
def test_logs_lose_their_front_and_the_bounds_are_kept(
    drawn: list[tuple[LogId, int, int, bool]],
    age_s: int | None,
    log_bytes: int | None,
    store_bytes: int | None,
) -> None:
    of_log: dict[LogId, list[Candidate]] = {}
    for log_id, size, age, writable in drawn:
        log = of_log.setdefault(log_id, [])
        log.append(candidate(log_id, 1 + 10 * len(log), size, age, writable=writable))
    everything = [one for log in of_log.values() for one in log]
    chosen = choose_expired(iter(everything), rules(age_s, log_bytes, store_bytes), NOW_US)
    gone = [one for one, _ in chosen]
    assert len(set(map(id, gone))) == len(gone)

    def too_old(one: Candidate) -> bool:
        return age_s is not None and NOW_US - one.stored_us > age_s * 1e6

    kept: list[Candidate] = []
    stuck: list[Candidate] = []
    for log_id, log in of_log.items():
        lost = [one for one in gone if one.log_id == log_id]
        assert lost == log[: len(lost)], "only from the front, and in order"
        left = log[len(lost) :]
        kept += left
        if not left:
            continue
        # What the size of the store has uncovered is looked at the next time.
        assert not too_old(left[0]) or store_bytes is not None
        if left[0].writable:
            stuck += left
        elif log_bytes is not None:
            assert sum(one.size_bytes for one in left) <= log_bytes
    assert all(not one.writable or too_old(one) for one in gone), "never the writable one by size"
    if store_bytes is not None and len(stuck) < len(kept):
        assert sum(one.size_bytes for one in kept) <= store_bytes
    if log_bytes is None and store_bytes is None:
        assert all(too_old(one) for one in gone)


# In files -----------------------------------------------------------------------------------------


class Aged:
    """A store whose clock a test moves."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.disk = SimDisk(clock=self.clock)
        self.store = self.open()

    def open(self) -> FileStore:
        options = StoreOptions(segment_bytes_max=2048, segment_age_s_max=1000)
        self.store = FileStore(self.disk, self.clock, DIRECTORY, options)
        return self.store

    def reopen(self) -> FileStore:
        self.store.close()
        return self.open()

    def write(self, log_id: LogId = TEMPERATURE, *counts: int) -> list[bytes]:
        made = write_numbered(self.store.create(log_id), *counts or [3], size_bytes=50)
        trio.run(self.store.commit)
        return made

    def held(self, log_id: LogId = TEMPERATURE) -> FileLog:
        log = self.store.get(log_id)
        assert log is not None
        return log


@pytest.fixture
def aged() -> Aged:
    aged = Aged()
    aged.store.begin(BROKER)
    return aged


def test_an_empty_successor_keeps_the_next_number(aged: Aged) -> None:
    aged.write(TEMPERATURE, 3, 4)
    aged.clock.advance(100)
    (dropped,) = aged.store.expire(rules(age_s=50))
    assert (dropped.first_no, dropped.last_no) == (1, 7)
    for _ in range(3):
        log = aged.held()
        assert (log.first_no, log.next_no, log.committed_no) == (8, 8, 7)
        assert read_log(log).expired == [(1, 7)]
        assert log.size_bytes == RECORDS_AT
        aged.reopen()
        assert aged.store.flaws() == []


def test_an_empty_successor_is_there_before_the_last_segment_goes(aged: Aged) -> None:
    aged.write()
    aged.clock.advance(100)
    aged.store.expire(rules(age_s=50))
    for seed in range(20):
        disk = SimDisk(seed, clock=aged.clock)
        store = FileStore(disk, aged.clock, DIRECTORY)
        write_numbered(store.create(TEMPERATURE), 3)
        trio.run(store.commit)
        aged.clock.advance(100)
        store.expire(rules(age_s=50))
        disk.power_loss()
        log = FileStore(disk, aged.clock, DIRECTORY).get(TEMPERATURE)
        assert log is not None, f"seed {seed}"
        assert log.next_no == 4


def test_a_live_log_keeps_its_empty_segment_for_ever(aged: Aged) -> None:
    """The next message goes there; a silent topic must not forget its numbers."""
    aged.write()
    for _ in range(5):
        aged.clock.advance(100)
        aged.store.expire(rules(50, 0, 0))
    log = aged.held()
    assert log.next_no == 4
    made = aged.write()
    assert read_ranges(log).records == by_number(made, 4)
    assert len(segments_of(snapshot(aged.disk))) == 1


def test_a_finished_log_goes_in_the_end(aged: Aged) -> None:
    aged.write()
    aged.reopen().begin(OTHER_BROKER)
    aged.clock.advance(100)
    aged.store.expire(rules(age_s=50))
    assert aged.held().next_no == 4, "for as long again it is known how far it went"
    aged.store.expire(rules(age_s=50, log_bytes=0, store_bytes=0))
    assert aged.held().next_no == 4
    aged.clock.advance(100)
    assert aged.store.expire(rules(age_s=50)) == [], "no message goes with it"
    assert aged.store.get(TEMPERATURE) is None
    assert segments_of(snapshot(aged.disk)) == {}


def test_a_range_of_a_log_that_is_gone_is_examined_in_vain(aged: Aged) -> None:
    aged.write()
    aged.reopen()
    log = aged.held()
    found = log.reader(0).next_range(1000)
    assert isinstance(found, Range)
    for _ in range(2):
        aged.clock.advance(100)
        aged.store.expire(rules(age_s=50))
    assert aged.store.get(TEMPERATURE) is None
    assert log.examine(found) == []
    assert read_log(log).expired == [(1, 3)]


def test_size_reaches_the_last_segment_of_a_finished_log(aged: Aged) -> None:
    """Nothing will ever be appended to it: else a hundred restarts would fill the disk."""
    for _ in range(10):
        aged.write(TEMPERATURE, 3, 3)
        aged.write(PRESSURE, 3, 3)
        aged.reopen()
    aged.store.expire(rules(store_bytes=4000))
    size = sum(log.size_bytes for log in aged.store.logs())
    assert size <= 4000 + 2 * RECORDS_AT, "an empty one of each log stays"
    for log in aged.store.logs():
        assert read_log(log).expired


def test_the_active_segment_is_not_dropped_by_size(aged: Aged) -> None:
    made = aged.write()
    assert aged.store.expire(rules(log_bytes=0, store_bytes=0)) == []
    assert read_ranges(aged.held()).records == by_number(made)


def test_what_is_being_committed_is_not_dropped(aged: Aged) -> None:
    """Not even when the segment that it went to is far too old."""
    aged.write()
    aged.clock.advance(900)
    (made,) = write_numbered(aged.store.create(TEMPERATURE), 2)
    assert len(aged.held().segments) == 1, "it is not yet old enough to be followed by another"
    assert aged.store.expire(rules(50, 0, 0)) == []
    trio.run(aged.store.commit)
    assert read_ranges(aged.held(), 3).records == {4: made}
    assert aged.store.expire(rules(age_s=50)) == []
    aged.clock.advance(51)
    assert len(aged.store.expire(rules(age_s=50))) == 1


def test_age_is_that_of_the_last_write(aged: Aged) -> None:
    for _ in range(6):
        aged.write(TEMPERATURE, 1)
        aged.clock.advance(40)
    assert aged.store.expire(rules(age_s=41)) == []
    aged.reopen()
    assert aged.store.expire(rules(age_s=41)) == [], "the index remembers it"
    aged.clock.advance(2)
    assert len(aged.store.expire(rules(age_s=41))) == 1


def test_a_producers_clock_has_no_say(aged: Aged) -> None:
    log = aged.store.create(TEMPERATURE)
    for utc_us in (1, 2**63, 5):
        write_numbered(log, 1, utc_us=utc_us)
    trio.run(aged.store.commit)
    assert aged.store.expire(rules(age_s=10)) == []
    aged.clock.advance(11)
    (dropped,) = aged.store.expire(rules(age_s=10))
    assert dropped.last_no == 3


def test_a_segment_takes_its_index_with_it(aged: Aged) -> None:
    aged.write(TEMPERATURE, *[3] * 20)
    before = set(snapshot(aged.disk))
    assert any(path.endswith(".idx") for path in before)
    aged.store.expire(rules(log_bytes=2000))
    after = set(snapshot(aged.disk))
    segments_left = {path[:-4] for path in after if path.endswith(".seg")}
    assert {path[:-4] for path in after} <= segments_left
    assert after < before


def test_segments_roll_by_age(aged: Aged) -> None:
    made = aged.write()
    aged.clock.advance(1001)
    made += aged.write()
    assert [segment.first_no for segment in aged.held().segments] == [1, 4]
    assert read_ranges(aged.held()).records == by_number(made)
