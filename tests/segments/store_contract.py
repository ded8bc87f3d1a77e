"""What every storage is held to: one suite for the `Store` protocol.

Subclass `StoreContract`, give it a fixture `opener`, and pytest runs all of it. Set `outlives` to
False for a storage that forgets everything when its process ends.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import pytest
import trio

from busnode.segments.damage import EXPIRED, Hole
from busnode.segments.retention import Expired, RetentionRules
from busnode.segments.store import Log, LogReader, Range, Store, StoreOptions
from busnode.wire.errors import SecondWriter
from busnode.wire.frames import read_header
from busnode.wire.ids import LogId, MsgNo, Topic

from .samples import (
    BROKER,
    OTHER_BROKER,
    PRESSURE,
    TEMPERATURE,
    UTC_US,
    StoppedClock,
    body_of,
    by_number,
    range_bytes,
    read_log,
    read_ranges,
    record,
    write,
    write_numbered,
)

SMALL = StoreOptions(segment_bytes_max=2048)
"""So small that a handful of batches fills several segments."""

KEEP_ALL = RetentionRules(age_s=None)

HUMIDITY = LogId(BROKER, Topic("/plant/north/humidity"))


class Opener:
    """Opens the store under test, again and again on the same place."""

    def __init__(self, open_store: Callable[[StoppedClock, StoreOptions], Store]) -> None:
        self.clock = StoppedClock()
        self._open_store = open_store
        self._opened: list[Store] = []

    def __call__(self, options: StoreOptions = SMALL) -> Store:
        store = self._open_store(self.clock, options)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


async def _committed(store: Store) -> list[LogId]:
    done = await store.commit()
    assert not done.poisoned
    return [log.log_id for log in done.logs]


class StoreContract:
    outlives: ClassVar[bool] = True

    @pytest.fixture
    def store(self, opener: Opener) -> Store:
        store = opener()
        store.begin(BROKER)
        return store

    @pytest.fixture
    def log(self, store: Store) -> Log:
        return store.create(TEMPERATURE)

    # Numbers

    def test_a_new_log_is_empty(self, store: Store, log: Log) -> None:
        assert (log.first_no, log.next_no, log.committed_no) == (1, 1, 0)
        assert log.poisoned is None
        assert log.holes() == []
        assert log.reader(0).next_range(100) is None
        assert read_log(log).records == {}
        assert not store.dirty()

    async def test_numbers_begin_at_one_and_have_no_holes(self, store: Store, log: Log) -> None:
        made = write_numbered(log, 3, 1, 2)
        assert log.next_no == 7
        await _committed(store)
        assert log.committed_no == 6
        assert sorted(read_log(log).records) == [1, 4, 5]
        assert read_ranges(log).records == by_number(made)

    async def test_one_append_may_hold_several_batches(self, store: Store, log: Log) -> None:
        made = [record(TEMPERATURE, 1, [b"a", b"b"]), record(TEMPERATURE, 3, [b"c"])]
        log.append(bytearray(b"".join(made)), 3, UTC_US)
        assert log.next_no == 4
        await _committed(store)
        assert read_ranges(log).records == by_number(made)

    async def test_what_is_appended_is_copied(self, store: Store, log: Log) -> None:
        """The node appends from its receive buffer, which it then uses again."""
        made = record(TEMPERATURE, 1, [b"a"])
        buffer = bytearray(made)
        log.append(memoryview(buffer), 1, UTC_US)
        buffer[:] = bytes(len(buffer))
        await _committed(store)
        assert read_ranges(log).records == {1: made}

    async def test_the_size_of_a_log_grows_with_what_is_in_it(self, store: Store, log: Log) -> None:
        before = log.size_bytes
        made = write_numbered(log, 1, 2, 3)
        assert log.size_bytes >= before + sum(map(len, made))

    # Committing

    async def test_readers_see_what_is_committed_and_no_more(self, store: Store, log: Log) -> None:
        made = write_numbered(log, 2)
        reader = log.reader(0)
        assert store.dirty()
        assert reader.next_range(1000) is None
        assert read_log(log).records == {}
        assert await _committed(store) == [TEMPERATURE]
        assert not store.dirty()
        more = write_numbered(log, 1)
        assert log.committed_no == 2
        assert read_ranges(log).records == by_number(made)
        await _committed(store)
        assert read_ranges(log).records == by_number(made + more)
        assert log.committed_no == 3

    async def test_a_reader_goes_on_where_it_was_when_more_is_committed(
        self, store: Store, log: Log
    ) -> None:
        reader = log.reader(0)
        for first_no in range(1, 40):
            (made,) = write_numbered(log, 1, size_bytes=first_no * 7)
            await _committed(store)
            found = reader.next_range(1 << 20)
            assert isinstance(found, Range)
            assert (found.first_no, found.last_no) == (first_no, first_no)
            assert range_bytes(found) == made
            assert reader.next_range(1 << 20) is None

    async def test_a_commit_with_nothing_to_do_names_no_log(self, store: Store, log: Log) -> None:
        assert await _committed(store) == []
        write_numbered(log, 1)
        assert await _committed(store) == [TEMPERATURE]
        assert await _committed(store) == []

    async def test_one_commit_serves_many_logs(self, store: Store) -> None:
        logs = [store.create(LogId(BROKER, Topic(f"/many/{n}"))) for n in range(50)]
        made = [write_numbered(log, 1, 2) for log in logs]
        assert not await _committed_is_empty(store)
        for log, records in zip(logs, made, strict=True):
            assert log.committed_no == 3
            assert read_ranges(log).records == by_number(records)

    async def test_a_commit_names_the_logs_that_moved(self, store: Store, log: Log) -> None:
        pressure = store.create(PRESSURE)
        write_numbered(log, 1)
        write_numbered(pressure, 1)
        assert sorted(await _committed(store)) == sorted([TEMPERATURE, PRESSURE])
        write_numbered(pressure, 1)
        assert await _committed(store) == [PRESSURE]

    # Reading

    async def test_reading_begins_after_any_number(self, store: Store, log: Log) -> None:
        """Also in the middle of a batch: the range begins with the batch that holds the number."""
        counts = [3, 1, 5, 2, 4, 1, 1, 8] * 4
        made = by_number(write_numbered(log, *counts, size_bytes=40))
        await _committed(store)
        for after_no in range(sum(counts) + 1):
            wanted = {
                first_no: data
                for (first_no, data), count in zip(made.items(), counts, strict=True)
                if first_no + count - 1 > after_no
            }
            assert read_ranges(log, after_no).records == wanted
            assert read_ranges(log, after_no, bytes_max=1).records == wanted
            bodies = {first_no: body_of(data) for first_no, data in wanted.items()}
            assert read_log(log, after_no).records == bodies

    async def test_a_reader_behind_the_end_waits_for_its_number(
        self, store: Store, log: Log
    ) -> None:
        write_numbered(log, 2)
        await _committed(store)
        reader = log.reader(3)
        assert reader.next_range(100) is None
        write_numbered(log, 1)
        await _committed(store)
        assert reader.next_range(100) is None
        (made,) = write_numbered(log, 2)
        await _committed(store)
        found = reader.next_range(1000)
        assert isinstance(found, Range)
        assert (found.first_no, found.last_no) == (4, 5)
        assert range_bytes(found) == made

    async def test_ranges_are_whole_records_of_about_the_size_asked_for(
        self, opener: Opener
    ) -> None:
        store = opener(StoreOptions())
        store.begin(BROKER)
        log = store.create(TEMPERATURE)
        made = [made for _ in range(40) for made in write_numbered(log, 5, 1, size_bytes=20_000)]
        await _committed(store)
        longest = max(map(len, made))
        for bytes_max in (1, 100_000, 400_000, 1 << 20, 1 << 30):
            reading = read_ranges(log, 0, bytes_max)
            assert reading.records == by_number(made)
            reader = log.reader(0)
            while (found := reader.next_range(bytes_max)) is not None:
                assert isinstance(found, Range)
                # An index has a point every 256 KiB, and a range ends at one of them.
                assert 0 < found.length <= max(bytes_max, 256 * 1024) + longest

    async def test_the_tail_of_a_log_is_found_by_its_size(self, store: Store, log: Log) -> None:
        assert log.tail_after(100) == 0
        made = write_numbered(log, *[2] * 50, size_bytes=90)
        await _committed(store)
        whole = sum(map(len, made))
        for size_bytes in (1, 1000, 5000, whole - 1, whole, whole + 1, 1 << 40):
            after_no = log.tail_after(size_bytes)
            assert 0 <= after_no <= log.committed_no
            tail = sum(map(len, read_ranges(log, after_no).records.values()))
            assert min(size_bytes, whole) <= tail <= size_bytes + SMALL.segment_bytes_max
        assert log.tail_after(1 << 40) == 0

    async def test_a_log_knows_when_it_was_last_written(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        for _ in range(3):
            opener.clock.advance(50)
            write_numbered(log, 1)
            await _committed(store)
            assert log.stored_us == opener.clock.now_us

    async def test_a_range_stays_readable_when_its_log_goes_on(
        self, store: Store, log: Log
    ) -> None:
        (made,) = write_numbered(log, 2)
        await _committed(store)
        found = log.reader(0).next_range(1000)
        assert isinstance(found, Range)
        write_numbered(log, *[3] * 40, size_bytes=100)
        await _committed(store)
        assert range_bytes(found) == made

    async def test_a_log_is_read_from_a_moment_on(self, store: Store, log: Log) -> None:
        for hour in range(20):
            write_numbered(log, 3, size_bytes=50, utc_us=UTC_US + hour * 1000)
        assert log.first_at(UTC_US) == 1, "nothing is committed yet"
        assert log.first_at(UTC_US + 19_000) == 1
        await _committed(store)
        assert log.first_at(0) == 1
        for hour in range(20):
            assert log.first_at(UTC_US + hour * 1000) == 3 * hour + 1
            assert log.first_at(UTC_US + hour * 1000 - 999) == 3 * hour + 1
        assert log.first_at(UTC_US + 19_001) == 61

    async def test_a_moment_is_found_where_producers_clocks_disagree(
        self, store: Store, log: Log
    ) -> None:
        """Nothing that is not older than the moment stands before the number that is found."""
        times = [5, 3, 9, 1, 9, 2, 12, 4, 11] * 5
        for time in times:
            write(log, [b"x" * 100], UTC_US + time)
        await _committed(store)
        for moment in range(14):
            wanted = next((n for n, time in enumerate(times, 1) if time >= moment), len(times) + 1)
            assert log.first_at(UTC_US + moment) == wanted

    async def test_the_time_of_what_is_not_committed_is_not_seen(
        self, store: Store, log: Log
    ) -> None:
        write_numbered(log, 2)
        await _committed(store)
        write_numbered(log, *[1] * 60, size_bytes=100, utc_us=UTC_US + 5)
        write_numbered(log, 1, utc_us=UTC_US + 10)
        assert log.first_at(UTC_US + 5) == 3
        assert log.first_at(UTC_US + 10) == 3

    # Ahead of the commit

    async def test_a_reader_ahead_sees_what_is_appended_and_others_do_not(
        self, store: Store, log: Log
    ) -> None:
        ahead, behind = log.reader(0, ahead=True), log.reader(0)
        assert ahead.next_range(1 << 20) is None
        assert log.appended_no == 0
        made = write_numbered(log, 2, 1)
        assert (log.appended_no, log.committed_no) == (3, 0)
        assert _read_on(ahead) == by_number(made)
        assert behind.next_range(1 << 20) is None
        more = write_numbered(log, 4)
        assert _read_on(ahead) == by_number(more, 4)
        assert behind.next_range(1 << 20) is None
        await _committed(store)
        assert log.appended_no == log.committed_no == 7
        assert _read_on(ahead) == {}, "it has had all of it"
        assert _read_on(behind) == by_number(made + more)

    async def test_a_reader_ahead_begins_at_any_committed_number(
        self, store: Store, log: Log
    ) -> None:
        """Also in the middle of a batch, and right where what is not committed begins."""
        counts = [3, 1, 5, 2, 4, 1, 1, 8] * 3
        made = write_numbered(log, *counts, size_bytes=40)
        await _committed(store)
        end_no = log.committed_no
        more = [*counts[:5], 2]
        made += write_numbered(log, *more, size_bytes=40)
        for after_no in range(end_no + 1):
            wanted = {
                first_no: data
                for (first_no, data), count in zip(
                    by_number(made).items(), counts + more, strict=True
                )
                if first_no + count - 1 > after_no
            }
            for bytes_max in (1, 1 << 20):
                assert _read_on(log.reader(after_no, ahead=True), bytes_max) == wanted
        assert read_ranges(log).records == by_number(made[: len(counts)])

    async def test_a_reader_ahead_follows_into_segments_that_are_not_committed(
        self, store: Store, log: Log
    ) -> None:
        reader = log.reader(0, ahead=True)
        made: list[bytes] = []
        found: dict[int, bytes] = {}
        for step in range(65):
            made += write_numbered(log, 1, 2, size_bytes=90)
            if step % 7 == 3:
                await _committed(store)
            if step % 5 != 2:
                found |= _read_on(reader)
                assert found == by_number(made)
        late = log.reader(log.committed_no, ahead=True)
        wanted = {n: data for n, data in by_number(made).items() if n > log.committed_no}
        assert wanted
        assert _read_on(late) == wanted

    async def test_a_reader_ahead_reads_on_while_a_commit_is_under_way(
        self, store: Store, log: Log
    ) -> None:
        reader = log.reader(0, ahead=True)
        made = write_numbered(log, *[2] * 20, size_bytes=90)
        found = _read_on(reader)

        async def append_more() -> None:
            nonlocal made, found
            made += write_numbered(log, *[3] * 20, size_bytes=90)
            found |= _read_on(reader)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_more)
            await _committed(store)
        assert found == by_number(made)
        assert log.committed_no in (40, 100), "what is appended meanwhile is of the next one"
        ordinary = read_ranges(log).records
        assert ordinary == {n: d for n, d in by_number(made).items() if n <= log.committed_no}

    async def test_a_reader_ahead_gives_ranges_of_about_the_size_asked_for(
        self, opener: Opener
    ) -> None:
        store = opener(StoreOptions())
        store.begin(BROKER)
        log = store.create(TEMPERATURE)
        made = [made for _ in range(20) for made in write_numbered(log, 5, 1, size_bytes=20_000)]
        longest = max(map(len, made))
        for bytes_max in (1, 100_000, 400_000, 1 << 30):
            reader = log.reader(0, ahead=True)
            found: dict[int, bytes] = {}
            while (piece := reader.next_in_memory(bytes_max, 1000)) is not None:
                assert isinstance(piece, Range)
                found |= _records_of(piece)
                if log.committed_no:
                    # An index has a point every 256 KiB, and gets it with the commit.
                    assert 0 < piece.length <= max(bytes_max, 256 * 1024) + longest
            assert found == by_number(made)
            await _committed(store)

    async def test_a_reader_ahead_gets_small_ranges_with_their_data(
        self, store: Store, log: Log
    ) -> None:
        (made,) = write_numbered(log, 2)
        found = log.reader(0, ahead=True).next_in_memory(1 << 20, 1 << 20)
        assert isinstance(found, Range)
        assert found.data is not None
        assert bytes(found.data) == made == range_bytes(found)

    async def test_a_skip_is_nothing_to_read_ahead(self, store: Store, log: Log) -> None:
        log.skip_to(MsgNo(10))
        assert log.appended_no == 0
        assert log.reader(0, ahead=True).next_range(1000) is None
        made = write_numbered(log, 2)
        assert log.appended_no == 11
        reader = log.reader(0, ahead=True)
        hole = reader.next_range(1000)
        assert isinstance(hole, Hole)
        assert (hole.first_no, hole.last_no, hole.reason) == (1, 9, EXPIRED)
        assert _read_on(reader) == by_number(made, 10)
        await _committed(store)
        log.skip_to(MsgNo(20))
        assert log.appended_no == 11
        assert reader.next_range(1000) is None
        made = write_numbered(log, 1)
        hole = reader.next_range(1000)
        assert isinstance(hole, Hole)
        assert (hole.first_no, hole.last_no) == (12, 19)
        assert _read_on(reader) == by_number(made, 20)
        assert read_ranges(log).spans == [(1, 9)], "nothing of it is committed"

    async def test_a_reader_ahead_is_told_of_what_has_expired_to_the_end(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        write_numbered(log, 4, 4)
        await _committed(store)
        opener.clock.advance(100)
        store.expire(RetentionRules(age_s=50))
        assert log.appended_no == 8
        reader = log.reader(0, ahead=True)
        hole = reader.next_range(1000)
        assert isinstance(hole, Hole)
        assert (hole.first_no, hole.last_no, hole.reason) == (1, 8, EXPIRED)
        assert reader.next_range(1000) is None
        made = write_numbered(log, 2)
        assert _read_on(reader) == by_number(made, 9)

    # Several logs

    async def test_logs_have_numbers_of_their_own(self, store: Store, log: Log) -> None:
        pressure, elsewhere = store.create(PRESSURE), store.create(TEMPERATURE._replace(
            broker_id=OTHER_BROKER))  # fmt: skip
        made = [write_numbered(each, 2, 1) for each in (log, pressure, elsewhere)]
        await _committed(store)
        for each, records in zip((log, pressure, elsewhere), made, strict=True):
            assert (each.first_no, each.committed_no) == (1, 3)
            assert read_ranges(each).records == by_number(records)

    def test_a_log_is_made_once(self, store: Store, log: Log) -> None:
        assert store.get(PRESSURE) is None
        assert store.create(TEMPERATURE) is log
        assert store.get(TEMPERATURE) is log
        pressure = store.create(PRESSURE)
        assert pressure is not log
        assert [each.log_id for each in store.logs()] == [TEMPERATURE, PRESSURE]

    def test_logs_may_be_made_while_they_are_listed(self, store: Store, log: Log) -> None:
        for each in store.logs():
            store.create(LogId(BROKER, Topic(f"{each.log_id.topic}/more")))
        assert len(list(store.logs())) == 2

    # Incarnations

    def test_an_incarnation_begins_once(self, store: Store) -> None:
        with pytest.raises(SecondWriter):
            store.begin(BROKER)
        store.begin(OTHER_BROKER)

    def test_an_incarnation_whose_logs_are_held_cannot_begin(self, store: Store) -> None:
        store.create(TEMPERATURE._replace(broker_id=OTHER_BROKER))
        with pytest.raises(SecondWriter):
            store.begin(OTHER_BROKER)

    # Holes

    async def test_a_copy_may_skip_what_its_origin_has_dropped(
        self, store: Store, log: Log
    ) -> None:
        before = write_numbered(log, 3)
        await _committed(store)
        log.skip_to(MsgNo(10))
        assert log.next_no == 10
        after = write_numbered(log, 2)
        assert log.committed_no == 3
        await _committed(store)
        assert log.committed_no == 11
        reading = read_ranges(log)
        assert reading.spans == [(4, 9)]
        assert reading.records == by_number(before) | by_number(after, 10)
        assert [(hole.first_no, hole.last_no) for hole in log.holes()] == [(4, 9)]
        for after_no in range(3, 9):
            assert read_ranges(log, after_no).spans == [(after_no + 1, 9)]
        assert read_ranges(log, 9).spans == []

    async def test_a_copy_that_begins_late_has_expired_before(self, store: Store, log: Log) -> None:
        log.skip_to(MsgNo(10))
        assert (log.first_no, log.next_no, log.committed_no) == (10, 10, 0)
        made = write_numbered(log, 2)
        await _committed(store)
        reading = read_ranges(log)
        assert reading.expired == [(1, 9)]
        assert reading.records == by_number(made, 10)
        assert log.holes() == []

    async def test_a_skip_alone_commits_nothing(self, store: Store, log: Log) -> None:
        write_numbered(log, 3)
        log.skip_to(MsgNo(10))
        await _committed(store)
        assert log.committed_no == 3
        assert read_ranges(log).spans == []
        log.skip_to(MsgNo(20))
        await _committed(store)
        assert (log.committed_no, log.next_no) == (3, 20)
        assert read_log(log).spans == []
        write_numbered(log, 1)
        await _committed(store)
        assert read_log(log).spans == [(4, 19)]

    async def test_a_skip_to_where_a_log_stands_leaves_no_hole(
        self, store: Store, log: Log
    ) -> None:
        log.skip_to(MsgNo(1))
        made = write_numbered(log, 3)
        log.skip_to(MsgNo(4))
        await _committed(store)
        log.skip_to(MsgNo(4))
        made += write_numbered(log, 1)
        await _committed(store)
        assert read_ranges(log).records == by_number(made)
        assert read_ranges(log).holes == log.holes() == []

    async def test_a_good_range_is_examined_in_vain(self, store: Store, log: Log) -> None:
        write_numbered(log, 3)
        await _committed(store)
        found = log.reader(0).next_range(1000)
        assert isinstance(found, Range)
        assert log.examine(found) == []
        assert log.holes() == []
        assert store.flaws() == []

    # Retention

    async def test_nothing_expires_without_a_rule(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        made = write_numbered(log, *[5] * 40, size_bytes=50)
        await _committed(store)
        opener.clock.advance(10**9)
        assert store.expire(KEEP_ALL) == []
        assert read_ranges(log).records == by_number(made)

    async def test_what_is_too_old_expires_from_the_front(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        for _ in range(10):
            write_numbered(log, *[4] * 5, size_bytes=60)
            await _committed(store)
            opener.clock.advance(100)
        whole = read_ranges(log).records
        dropped = store.expire(RetentionRules(age_s=501))
        assert dropped
        assert dropped[0].first_no == 1
        for one, next_one in pairwise(dropped):
            assert next_one.first_no == one.last_no + 1
        assert all(one.log_id == TEMPERATURE for one in dropped)
        assert "501" in dropped[0].reason
        assert log.first_no == dropped[-1].last_no + 1
        assert 1 < log.first_no <= 5 * 20 + 1, "what was written in the last 500 s stays"
        reading = read_ranges(log)
        assert reading.expired == reading.spans == [(1, log.first_no - 1)]
        assert reading.records == {n: made for n, made in whole.items() if n >= log.first_no}
        assert store.expire(RetentionRules(age_s=501)) == []

    async def test_what_is_too_old_expires_in_steps_if_that_is_asked_for(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        for _ in range(10):
            write_numbered(log, *[4] * 5, size_bytes=60)
            await _committed(store)
            opener.clock.advance(100)
        rules = RetentionRules(age_s=501)
        steps = [store.expire(rules, most=1)]
        while steps[-1]:
            first_no = log.first_no
            steps.append(store.expire(rules, most=1))
            assert bool(steps[-1]) == (log.first_no > first_no)
        assert len(steps) > 2
        assert {len(step) for step in steps[:-1]} == {1}
        assert 1 < log.first_no <= 5 * 20 + 1, "what was written in the last 500 s stays"
        assert _joined([one for step in steps for one in step]) == [(1, log.first_no - 1)]

    async def test_a_log_may_expire_to_its_end_and_go_on(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        write_numbered(log, 4, 4)
        await _committed(store)
        opener.clock.advance(100)
        (dropped,) = _joined(store.expire(RetentionRules(age_s=50)))
        assert dropped == (1, 8)
        assert (log.first_no, log.next_no, log.committed_no) == (9, 9, 8)
        assert store.get(TEMPERATURE) is log
        assert read_log(log).expired == [(1, 8)]
        made = write_numbered(log, 2)
        await _committed(store)
        reading = read_ranges(log)
        assert reading.expired == [(1, 8)]
        assert reading.records == by_number(made, 9)

    async def test_a_copy_is_as_old_as_what_it_is_a_copy_of(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        opener.clock.advance(1000)
        old_us = opener.clock.utc_us() - 400 * 10**6
        log.append(record(TEMPERATURE, 1, [b"old"]), 1, 0, old_us)
        await _committed(store)
        pressure = store.create(PRESSURE)
        for number, stored_us in ((1, old_us), (2, None)):
            pressure.append(record(PRESSURE, number, [b"old"]), 1, 0, stored_us)
        future = store.create(HUMIDITY)
        future.append(record(HUMIDITY, 1, [b"ahead"]), 1, 0, opener.clock.utc_us() + 10**12)
        await _committed(store)
        assert log.stored_us == old_us
        for each in (pressure, future):
            assert each.stored_us == opener.clock.utc_us(), "never later than now"
        assert store.expire(RetentionRules(age_s=500)) == []
        assert store.expire(RetentionRules(None, age_s_of={OTHER_BROKER: 1})) == []
        opener.clock.advance(101)
        (dropped,) = store.expire(RetentionRules(age_s=500, log_bytes_max=10**9))[:1]
        assert (dropped.log_id, dropped.first_no, dropped.last_no) == (TEMPERATURE, 1, 1)
        rules = RetentionRules(None, age_s_of={PRESSURE.broker_id: 1})
        assert {one.log_id for one in store.expire(rules)} == {PRESSURE, HUMIDITY}

    async def test_a_log_that_is_too_large_expires_from_the_front(
        self, store: Store, log: Log
    ) -> None:
        pressure = store.create(PRESSURE)
        write_numbered(log, *[4] * 60, size_bytes=60)
        kept = write_numbered(pressure, 4)
        await _committed(store)
        dropped = store.expire(RetentionRules(age_s=None, log_bytes_max=6000))
        assert {one.log_id for one in dropped} == {TEMPERATURE}
        assert log.size_bytes <= 6000
        assert log.size_bytes > 6000 - 2048 - 600, "no more than one segment too many goes"
        assert read_ranges(log).expired == [(1, log.first_no - 1)]
        assert read_ranges(pressure).records == by_number(kept)

    async def test_a_store_that_is_too_large_loses_its_oldest(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        pressure = store.create(PRESSURE)
        write_numbered(log, *[4] * 20, size_bytes=60)
        await _committed(store)
        opener.clock.advance(10)
        write_numbered(pressure, *[4] * 20, size_bytes=60)
        await _committed(store)
        whole = read_ranges(pressure).records
        store_bytes_max = pressure.size_bytes + 3000
        dropped = store.expire(RetentionRules(age_s=None, store_bytes_max=store_bytes_max))
        assert {one.log_id for one in dropped} == {TEMPERATURE}
        assert log.size_bytes + pressure.size_bytes <= store_bytes_max
        assert read_ranges(log).expired == [(1, log.first_no - 1)]
        assert read_ranges(pressure).records == whole

    async def test_a_reader_is_told_what_expires_before_it(self, store: Store, log: Log) -> None:
        write_numbered(log, *[4] * 60, size_bytes=60)
        await _committed(store)
        reader = log.reader(0)
        found = reader.next_range(1)
        assert isinstance(found, Range)
        data = range_bytes(found)
        store.expire(RetentionRules(age_s=None, log_bytes_max=6000))
        assert range_bytes(found) == data, "the range that it was given stays readable"
        hole = reader.next_range(1)
        assert isinstance(hole, Hole)
        assert (hole.first_no, hole.last_no) == (found.last_no + 1, log.first_no - 1)
        assert hole.reason == EXPIRED
        found = reader.next_range(1 << 20)
        assert isinstance(found, Range)
        assert found.first_no == log.first_no

    async def test_what_is_not_committed_does_not_expire(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        """Its publisher still waits, and would get an ack for what is gone."""
        made = write_numbered(log, 2)
        await _committed(store)
        opener.clock.advance(100)
        made += write_numbered(log, 2)
        store.expire(RetentionRules(age_s=50, log_bytes_max=0, store_bytes_max=0))
        await _committed(store)
        assert log.committed_no == 4
        assert read_ranges(log).records[3] == made[1]

    # The life of a store

    async def test_logs_of_earlier_incarnations_are_there_when_it_is_opened_again(
        self, opener: Opener, store: Store, log: Log
    ) -> None:
        made = write_numbered(log, *[3] * 20, size_bytes=60)
        pressed = write_numbered(store.create(PRESSURE), 1)
        store.close()
        again = opener()
        if not self.outlives:
            assert list(again.logs()) == []
            return
        assert again.flaws() == []
        assert sorted(each.log_id for each in again.logs()) == sorted([TEMPERATURE, PRESSURE])
        with pytest.raises(SecondWriter):
            again.begin(BROKER)
        again.begin(OTHER_BROKER)
        log, pressure = _held(again, TEMPERATURE), _held(again, PRESSURE)
        assert (log.first_no, log.next_no, log.committed_no) == (1, 61, 60)
        assert read_ranges(log).records == by_number(made)
        assert read_ranges(pressure).records == by_number(pressed)
        assert log.holes() == []
        assert not again.dirty()

    async def test_a_copy_goes_on_after_it_was_opened_again(
        self, opener: Opener, store: Store
    ) -> None:
        log_id = TEMPERATURE._replace(broker_id=OTHER_BROKER)
        made: list[bytes] = []
        for _ in range(5):
            log = store.create(log_id)
            made += write_numbered(log, 2, 3)
            await _committed(store)
            if self.outlives:
                store.close()
                store = opener()
        assert read_ranges(store.create(log_id)).records == by_number(made)
        assert store.create(log_id).holes() == []

    async def test_expiry_is_remembered(self, opener: Opener, store: Store, log: Log) -> None:
        write_numbered(log, 4)
        await _committed(store)
        opener.clock.advance(100)
        store.expire(RetentionRules(age_s=50))
        store.close()
        if not self.outlives:
            return
        log = _held(opener(), TEMPERATURE)
        assert (log.first_no, log.next_no, log.committed_no) == (5, 5, 4)
        assert read_log(log).expired == [(1, 4)]


def _read_on(reader: LogReader, bytes_max: int = 1 << 20) -> dict[int, bytes]:
    """All that a reader has now, as whole records by their first numbers; no hole may be in it."""
    found: dict[int, bytes] = {}
    while (piece := reader.next_range(bytes_max)) is not None:
        assert isinstance(piece, Range), piece
        found |= _records_of(piece)
        assert reader.next_no == piece.last_no + 1
    return found


def _records_of(piece: Range) -> dict[int, bytes]:
    data = range_bytes(piece)
    found: dict[int, bytes] = {}
    at, last_no = 0, 0
    with memoryview(data) as view:
        while at < len(view):
            header = read_header(view, at)
            assert last_no in (0, header.first_no - 1)
            last_no = header.last_no
            found[header.first_no] = data[at : at + header.length]
            at += header.length
    assert at == len(data), "a range holds whole records"
    assert min(found) <= piece.first_no
    assert last_no == piece.last_no
    return found


async def _committed_is_empty(store: Store) -> bool:
    done = await store.commit()
    assert not done.poisoned
    return not done.logs


def _held(store: Store, log_id: LogId) -> Log:
    log = store.get(log_id)
    assert log is not None
    return log


def _joined(dropped: list[Expired]) -> list[tuple[int, int]]:
    """What was dropped, as ranges: storages may drop it in pieces of different sizes."""
    joined: list[tuple[int, int]] = []
    for one in dropped:
        if joined and joined[-1][1] + 1 == one.first_no:
            joined[-1] = (joined[-1][0], one.last_no)
        else:
            joined.append((one.first_no, one.last_no))
    return joined
