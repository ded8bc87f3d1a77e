"""Reading a log without waiting for its disk: what is cold is fetched, what cannot be is a hole."""

import errno
import random
from collections.abc import Iterator

import pytest
import trio

from busnode.segments.damage import Hole
from busnode.segments.digest import digest_steps
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.steps import Fetch, Step
from busnode.segments.store import Cold, LogReader, Range, StoreOptions
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.testing.sim.handles import SimReadFile
from busnode.testing.sim.simulation import simulate
from busnode.wire.ids import MsgNo
from busnode.world.files import ReadFile

from .samples import (
    BROKER,
    DIRECTORY,
    TEMPERATURE,
    Reading,
    StoppedClock,
    range_bytes,
    read_ranges,
    write,
    write_numbered,
)

DATA_MAX = 1000


class Shelf:
    """A log on a simulated disk: several segments, each with several points."""

    def __init__(self, options: StoreOptions | None = None) -> None:
        self.disk = SimDisk(1)
        self.clock = StoppedClock()
        options = options or StoreOptions(segment_bytes_max=700_000)
        self.store = FileStore(self.disk, self.clock, DIRECTORY, options)
        self.store.begin(BROKER)
        self.log: FileLog = self.store.create(TEMPERATURE)

    async def fill(self) -> None:
        for size_bytes in (20_000, 300, 40_000, 10) * 30:
            write_numbered(self.log, 3, size_bytes=size_bytes)
            await self.store.commit()

    def path(self, segment: int) -> str:
        return self.log.segments[segment].path


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    trio.run(shelf.fill)
    assert len(shelf.log.segments) > 2
    assert len(shelf.log.segments[0].index) > 2
    yield shelf
    shelf.disk.odds = DiskFaults()
    shelf.store.close()


async def following(reader: LogReader, bytes_max: int = 1) -> Range | Hole | None:
    """What comes next, fetched where it must be; a range is as it can be sent."""
    found = reader.next_in_memory(bytes_max, DATA_MAX)
    while isinstance(found, Cold):
        before = reader.next_no
        try:
            await found.range.file.fetch(found.range.offset, found.range.length)
        except OSError as error:
            reader.fetched(found, error)
        else:
            reader.fetched(found, None)
        assert reader.next_no == before, "nothing was sent yet"
        found = reader.next_in_memory(bytes_max, DATA_MAX)
    return found


async def read_all(reader: LogReader, disk: SimDisk) -> Reading:
    reading = Reading()
    expected = int(reader.next_no)
    while (found := await following(reader)) is not None:
        assert found.first_no == expected <= found.last_no, f"{found} where {expected} is next"
        expected = found.last_no + 1
        assert reader.next_no == expected
        if isinstance(found, Hole):
            reading.holes.append(found)
        else:
            odds, disk.odds = disk.odds, DiskFaults()
            data = range_bytes(found)
            disk.odds = odds
            assert found.data is None or bytes(found.data) == data
            reading.records[found.first_no] = data
    return reading


@pytest.mark.parametrize("cold", [0.0, 0.3, 1.0])
def test_what_is_fetched_is_what_is_read(shelf: Shelf, cold: float) -> None:
    async def main() -> None:
        for after_no in range(0, shelf.log.committed_no + 1, 7):
            wanted = b"".join(read_ranges(shelf.log, after_no).records.values())
            shelf.disk.odds = DiskFaults(read_cold=cold)
            reading = await read_all(shelf.log.reader(after_no), shelf.disk)
            shelf.disk.odds = DiskFaults()
            assert b"".join(reading.records.values()) == wanted
            assert not reading.holes
        assert bool(shelf.disk.faults[DiskFault.READ_COLD]) == bool(cold)

    simulate(1, main)


def test_a_range_that_is_cold_stays_the_same_while_its_log_grows(shelf: Shelf) -> None:
    async def main() -> None:
        reader = shelf.log.reader(shelf.log.committed_no)
        assert reader.next_in_memory(1 << 20, DATA_MAX) is None
        last_no = shelf.log.committed_no + 2
        write(shelf.log, [b"one", b"two"])
        await shelf.store.commit()
        shelf.disk.arm(DiskFault.READ_COLD)
        cold = reader.next_in_memory(1 << 20, DATA_MAX)
        assert isinstance(cold, Cold)
        write(shelf.log, [b"three"])
        await shelf.store.commit()
        reader.fetched(cold, OSError(errno.EIO, "it broke at byte 7"))
        hole = reader.next_in_memory(1 << 20, DATA_MAX)
        assert isinstance(hole, Hole)
        assert hole.last_no == last_no, "what came later can be read"
        found = reader.next_in_memory(1 << 20, DATA_MAX)
        assert isinstance(found, Range)
        assert found.first_no == found.last_no == last_no + 1

    simulate(1, main)


@pytest.mark.parametrize("seed", range(10))
def test_what_cannot_be_read_is_a_hole_and_what_is_behind_it_follows(
    shelf: Shelf, seed: int
) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        after_no = chance.randrange(0, shelf.log.committed_no, 3)  # behind a batch
        whole = read_ranges(shelf.log, after_no).records
        shelf.disk.odds = DiskFaults(read_cold=0.5, read_eio=0.3)
        # It checks that no number is left out.
        reading = await read_all(shelf.log.reader(after_no), shelf.disk)
        shelf.disk.odds = DiskFaults()
        assert reading.holes
        assert reading.records
        ends = sorted([*reading.records, *(hole.first_no for hole in reading.holes), 1 << 60])
        for first_no, data in reading.records.items():
            end = ends[ends.index(first_no) + 1]
            assert data == b"".join(whole[no] for no in sorted(whole) if first_no <= no < end)
        for hole in reading.holes:
            assert f"{hole.path.rpartition('/')[2]} at byte {hole.offset}: " in hole.told

    simulate(seed, main)


def test_a_file_that_was_cut_costs_only_what_is_cut(shelf: Shelf) -> None:
    async def main() -> None:
        first, second = shelf.log.segments[:2]
        point = first.index[1]
        cut = point.position_bytes + 100
        shelf.disk.truncate(first.path, cut)
        reading = await read_all(shelf.log.reader(0), shelf.disk)
        assert reading.spans[0][0] == point.msg_no
        assert reading.spans[-1][1] == second.first_no - 1
        hole = reading.holes[0]
        assert f"cannot be read: the file ends at byte {cut}" in hole.reason
        assert hole.told.startswith(f"{first.path.rpartition('/')[2]} at byte {hole.offset}: ")
        assert max(reading.records) > second.first_no

    simulate(1, main)


def test_a_file_that_is_gone_is_a_hole(shelf: Shelf) -> None:
    async def main() -> None:
        second, third = shelf.log.segments[1:3]
        shelf.store._handles.forget([second.path])
        shelf.disk.remove(second.path)
        reading = await read_all(shelf.log.reader(second.first_no + 4), shelf.disk)
        assert reading.spans[0][0] == second.first_no + 5
        assert reading.spans[-1][1] == third.first_no - 1
        assert min(reading.records) == third.first_no

    simulate(1, main)


def test_a_shortage_of_this_process_is_no_hole(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(path: str) -> ReadFile:
        raise OSError(errno.EMFILE, "too many open files", path)

    reader = shelf.log.reader(0)
    shelf.store._handles.forget([shelf.path(0)])
    with monkeypatch.context() as patch:
        patch.setattr(shelf.disk, "open", no_more)
        with pytest.raises(OSError, match="too many"):
            reader.next_in_memory(1, DATA_MAX)
    shelf.disk.arm(DiskFault.READ_COLD)
    cold = reader.next_in_memory(1, DATA_MAX)
    assert isinstance(cold, Cold)
    with pytest.raises(OSError, match="no memory"):
        reader.fetched(cold, OSError(errno.ENOMEM, "no memory"))
    found = reader.next_in_memory(1, DATA_MAX)
    assert isinstance(found, Range)
    assert found.first_no == 1


def test_what_could_not_be_sent_is_fetched_before_anybody_is_promised_it(shelf: Shelf) -> None:
    first, second = shelf.log.reader(0), shelf.log.reader(0)
    found = first.next_in_memory(1, DATA_MAX)
    assert isinstance(found, Range)
    first.suspect(found)
    cold = second.next_in_memory(1, DATA_MAX)
    assert isinstance(cold, Cold)
    assert cold.range.first_no == 1
    other = shelf.log.reader(shelf.log.segments[1].first_no - 1).next_in_memory(1, DATA_MAX)
    assert isinstance(other, Range), "it says nothing of other files"


def test_comparing_reads_nothing_that_was_not_fetched_before(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, int, int]] = []
    read_into = SimReadFile.read_into

    def read(file: SimReadFile, view: memoryview, offset: int) -> int:
        length = read_into(file, view, offset)
        end = offset + length
        assert any(p == file.path and a <= offset and end <= b for p, a, b in fetched), offset
        return length

    monkeypatch.setattr(SimReadFile, "read_into", read)
    shelf.disk.odds = DiskFaults(read_cold=1.0)
    digests: list[bytes] = []

    def steps() -> Iterator[Step]:
        found = yield from digest_steps(shelf.log, MsgNo(100), shelf.log.committed_no)
        digests.append(found.digest)

    for step in steps():
        assert isinstance(step, Fetch)
        fetched.append((step.file.path, step.offset, step.offset + step.length))
    assert [len(digest) for digest in digests] == [16]
    assert fetched[0][1] > 0, "it begins in the middle"


def test_what_is_committed_while_it_is_fetched_was_stored_then() -> None:
    shelf = Shelf()
    reader = shelf.log.reader(0, ahead=True)

    async def main() -> None:
        write_numbered(shelf.log, 1)
        await shelf.store.commit()
        assert isinstance(await following(reader), Range)
        shelf.clock.advance(3600)
        write_numbered(shelf.log, 1)
        shelf.disk.arm(DiskFault.READ_COLD)
        cold = reader.next_in_memory(1, DATA_MAX)
        assert isinstance(cold, Cold)
        await shelf.store.commit()
        reader.fetched(cold, None)
        found = reader.next_in_memory(1, DATA_MAX)
        assert isinstance(found, Range)
        assert (found.first_no, found.stored_us) == (2, shelf.clock.utc_us())

    simulate(0, main)
