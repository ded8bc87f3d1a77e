"""Few files are open at a time, and none is closed with writes that nobody has synced."""

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from busnode.segments.file_store import FileStore
from busnode.segments.handles import Handles
from busnode.segments.store import Range, StoreOptions
from busnode.testing.sim import DiskFault, SimDisk, simulate
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.errors import LogPoisoned
from busnode.wire.ids import LogId, Topic
from busnode.world.files import AppendFile, Bytes, ReadFile
from busnode.world.real_files import RealFiles

from .samples import (
    BROKER,
    DIRECTORY,
    StoppedClock,
    by_number,
    range_bytes,
    read_ranges,
    write_numbered,
)

TOPICS = 10_000
OPEN_FILES_MAX = 64
DESCRIPTORS = 200


class WatchedFile:
    def __init__(self, file: AppendFile, disk: "WatchedDisk") -> None:
        self.inner = file
        self.path = file.path
        self._disk = disk
        self._dirty = False

    @property
    def size_bytes(self) -> int:
        return self.inner.size_bytes

    def append(self, data: Bytes) -> None:
        self._dirty = True
        self.inner.append(data)

    def sync(self) -> None:
        self.inner.sync()
        self.was_synced()

    def was_synced(self) -> None:
        self._dirty = False

    def close(self) -> None:
        if self._dirty and self.path.endswith(".seg"):
            self._disk.closed_dirty.append(self.path)
        self._disk.appending.remove(self.path)
        self.inner.close()


class WatchedDisk(SimDisk):
    """Knows which files are open, and notes those that are closed with unsynced writes."""

    def __init__(self) -> None:
        super().__init__()
        self.appending: list[str] = []
        self.appending_max = 0
        self.closed_dirty: list[str] = []

    def append_to(self, path: str) -> AppendFile:
        file = WatchedFile(super().append_to(path), self)
        if ".seg" in path or ".idx" in path:
            self.appending.append(path)
            self.appending_max = max(self.appending_max, len(self.appending))
            return file
        return file.inner

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        watched = [file for file in files if isinstance(file, WatchedFile)]
        assert len(watched) == len(files)
        outcomes = await super().sync_all([file.inner for file in watched], directories)
        for file, outcome in zip(watched, outcomes, strict=False):
            if outcome is None:
                file.was_synced()
        return outcomes


def many(count: int) -> list[LogId]:
    return [LogId(BROKER, Topic(f"/many/{number}")) for number in range(count)]


def open_store(disk: SimDisk, open_files_max: int) -> FileStore:
    options = StoreOptions(segment_bytes_max=2048, open_files_max=open_files_max)
    return FileStore(disk, StoppedClock(), DIRECTORY, options)


@pytest.mark.parametrize("open_files_max", [1, 2, 5, 50])
def test_no_file_is_closed_before_what_was_written_to_it_is_synced(open_files_max: int) -> None:
    disk = WatchedDisk()
    store = open_store(disk, open_files_max)
    store.begin(BROKER)
    made: dict[LogId, list[bytes]] = {}
    for _ in range(6):
        for log_id in many(20):
            made.setdefault(log_id, []).extend(write_numbered(store.create(log_id), 1, 2))
        done = trio.run(store.commit)
        assert (len(done.logs), done.poisoned) == (20, [])
    assert disk.closed_dirty == []
    assert disk.appending_max <= open_files_max
    disk.power_loss()
    store = open_store(disk, open_files_max)
    for log_id, records in made.items():
        assert read_ranges(store.create(log_id)).records == by_number(records)


def test_a_file_that_is_being_synced_stays_open() -> None:
    """Closing it would let its descriptor become another file's while a thread still syncs it."""
    disk = WatchedDisk()
    store = open_store(disk, 4)
    store.begin(BROKER)
    logs = [store.create(log_id) for log_id in many(12)]

    async def main() -> None:
        for log in logs[:4]:
            write_numbered(log, 1)
        disk.odds = DiskFaults(sync_slow=1.0)
        syncing = list(disk.appending)
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                done = await store.commit()
                assert (len(done.logs), done.poisoned) == (4, [])

            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            for log in logs:
                write_numbered(log, 1)
            assert set(syncing) <= set(disk.appending)
            assert len(disk.appending) <= 5, "one more than there should be, until it is over"
        disk.odds = DiskFaults()
        assert (await store.commit()).poisoned == []

    simulate(1, main)
    assert disk.closed_dirty == []
    disk.power_loss()
    store = open_store(disk, 4)
    for number, log_id in enumerate(many(12)):
        assert store.create(log_id).committed_no == (2 if number < 4 else 1)


def test_a_sync_that_fails_to_make_room_is_not_forgotten() -> None:
    disk = WatchedDisk()
    store = open_store(disk, 1)
    store.begin(BROKER)
    first, second = (store.create(log_id) for log_id in many(2))
    write_numbered(first, 1)
    trio.run(store.commit)
    write_numbered(first, 1)
    disk.arm(DiskFault.SYNC_EIO, lambda path: path == first.segments[0].path)
    write_numbered(second, 1)
    done = trio.run(store.commit)
    assert (done.logs, done.poisoned) == ([second], [first])
    assert first.committed_no == 1
    with pytest.raises(LogPoisoned):
        write_numbered(first, 1)


def test_a_write_after_a_sync_that_failed_to_make_room_is_refused() -> None:
    disk = WatchedDisk()
    store = open_store(disk, 1)
    store.begin(BROKER)
    first, second = (store.create(log_id) for log_id in many(2))
    write_numbered(first, 1)
    disk.arm(DiskFault.SYNC_EIO, lambda path: path == first.segments[0].path)
    write_numbered(second, 1)
    with pytest.raises(LogPoisoned):
        write_numbered(first, 1)
    done = trio.run(store.commit)
    assert (done.logs, done.poisoned) == ([second], [first])


# Handles alone ------------------------------------------------------------------------------------


def test_the_files_that_were_used_last_are_kept() -> None:
    disk = WatchedDisk()
    handles = Handles(disk, 3)
    for name in "abcad":
        handles.appending(f"/{name}.seg")
    assert sorted(disk.appending) == ["/a.seg", "/c.seg", "/d.seg"]
    handles.pin("/a.seg")
    handles.pin("/a.seg")
    for name in "efg":
        handles.appending(f"/{name}.seg")
    assert "/a.seg" in disk.appending
    handles.unpin("/a.seg")
    handles.appending("/h.seg")
    assert "/a.seg" in disk.appending, "it was pinned twice"
    handles.unpin("/a.seg")
    handles.appending("/i.seg")
    assert "/a.seg" not in disk.appending
    handles.close()
    assert disk.appending == []


def test_files_to_read_are_few_too() -> None:
    opened: list[str] = []

    class Disk(SimDisk):
        def open(self, path: str) -> ReadFile:
            opened.append(path)
            return super().open(path)

    disk = Disk()
    for name in "abcd":
        disk.append_to(f"/{name}").append(name.encode())
    handles = Handles(disk, 2)
    a = handles.reading("/a")
    assert handles.reading("/a") is a
    for name in "bcd":
        handles.reading(f"/{name}")
    assert opened == ["/a", "/b", "/c", "/d"]
    assert handles.reading("/d") is handles.reading("/d")
    buffer = bytearray(1)
    assert a.read_into(memoryview(buffer), 0) == 1, "who holds it may go on reading"
    handles.reading("/a")
    assert opened == ["/a", "/b", "/c", "/d", "/a"]


def test_a_range_outlives_its_place_among_the_open_files(tmp_path: Path) -> None:
    options = StoreOptions(open_files_max=2)
    store = FileStore(RealFiles(), StoppedClock(), str(tmp_path), options)
    store.begin(BROKER)
    logs = [store.create(log_id) for log_id in many(6)]
    made = [write_numbered(log, 1)[0] for log in logs]
    trio.run(store.commit)
    ranges = [log.reader(0).next_range(1000) for log in logs]
    for found, data in zip(ranges, made, strict=True):
        assert isinstance(found, Range)
        assert range_bytes(found) == data
    store.close()


# Ten thousand topics ------------------------------------------------------------------------------

SCRIPT = """
import resource, sys
sys.path.insert(0, sys.argv[4])
topics, open_files_max, descriptors = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
import trio
from busnode.segments.file_store import FileStore
from busnode.segments.store import StoreOptions
from busnode.wire.ids import LogId, Topic
from busnode.world.real_files import RealFiles
from tests.segments.samples import BROKER, StoppedClock, by_number, read_ranges, write_numbered

def open_store():
    options = StoreOptions(open_files_max=open_files_max)
    return FileStore(RealFiles(), StoppedClock(), sys.argv[5], options)

names = [LogId(BROKER, Topic(f"/many/{number}")) for number in range(topics)]

async def main():
    store = open_store()
    store.begin(BROKER)
    made = {}
    for log_id in names:
        made[log_id] = write_numbered(store.create(log_id), 1)
        if len(made) % (open_files_max // 2) == 0:
            done = await store.commit()
            assert not done.poisoned, done.poisoned[0].poisoned
    # More at once than may be open, for once.
    for log_id in names[: 2 * open_files_max]:
        made[log_id] += write_numbered(store.create(log_id), 1)
    done = await store.commit()
    assert not done.poisoned, done.poisoned[0].poisoned
    store.close()
    store = open_store()
    assert not store.flaws()
    assert len(list(store.logs())) == topics
    for log_id in names:
        assert read_ranges(store.create(log_id)).records == by_number(made[log_id])
    store.close()

trio.run(main)
print("good")
"""


def test_ten_thousand_topics_need_few_descriptors(tmp_path: Path) -> None:
    repository = Path(__file__).parents[2]
    arguments = [TOPICS, OPEN_FILES_MAX, DESCRIPTORS, repository, tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr[-3000:]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > DESCRIPTORS
