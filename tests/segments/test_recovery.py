"""Taking up a store again: after a clean stop, a killed process, a power loss or failed writes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from busnode.segments import file_store
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.retention import Expired, RetentionRules
from busnode.segments.segment import RECORDS_AT, index_path
from busnode.segments.store import Log, Range, Store, StoreOptions
from busnode.segments.verification import verify_directory
from busnode.testing.sim import DiskFault, SimDisk, SimEntropy, simulate
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.errors import (
    DataDirectoryInUse,
    LogPoisoned,
    NotADataDirectory,
    SecondWriter,
    StorageFailed,
)
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.world.files import Bytes, ReadFile
from busnode.world.real_files import RealFiles

from .samples import (
    BROKER,
    DIRECTORY,
    OTHER_BROKER,
    PRESSURE,
    TEMPERATURE,
    UTC_US,
    StoppedClock,
    body_of,
    by_number,
    disk_with,
    indexes_of,
    numbered,
    read_log,
    read_ranges,
    record,
    segments_of,
    snapshot,
    write,
    write_numbered,
)

SMALL = StoreOptions(segment_bytes_max=2048)


def open_store(disk: SimDisk, options: StoreOptions = SMALL) -> FileStore:
    return FileStore(disk, StoppedClock(), DIRECTORY, options)


def held(store: FileStore, log_id: LogId = TEMPERATURE) -> FileLog:
    log = store.get(log_id)
    assert log is not None
    return log


def is_segment(path: str) -> bool:
    return path.endswith(".seg")


def is_index(path: str) -> bool:
    return ".idx" in path


def is_bucket(path: str) -> bool:
    return path.endswith(BROKER.hex())


# What is read -------------------------------------------------------------------------------------


class CountingFile:
    def __init__(self, file: ReadFile, read: dict[str, int]) -> None:
        self._file = file
        self._read = read
        self.path = file.path

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def read_into(self, view: memoryview, offset: int) -> int:
        count = self._file.read_into(view, offset)
        self._read[self.path] = self._read.get(self.path, 0) + count
        return count

    def read_in_memory(self, offset: int, length: int) -> Bytes | None:
        return self._file.read_in_memory(offset, length)

    def is_in_memory(self, offset: int, length: int) -> bool:
        return self._file.is_in_memory(offset, length)

    async def fetch(self, offset: int, length: int) -> None:
        await self._file.fetch(offset, length)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class CountingDisk(SimDisk):
    """Counts the bytes that are read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = {}

    def open(self, path: str) -> ReadFile:
        return CountingFile(super().open(path), self.read)

    @property
    def segment_bytes_read(self) -> int:
        return sum(count for path, count in self.read.items() if is_segment(path))


def fill_counted(*, closed: bool) -> CountingDisk:
    """A log of 1.2 MB in one file, with a point every 256 KiB."""
    disk = CountingDisk()
    store = open_store(disk, StoreOptions())
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    for _ in range(60):
        write(log, [b"x" * 20_000])
        trio.run(store.commit)
    if closed:
        store.close()
    else:
        disk.kill()
    disk.read = {}
    return disk


def test_with_an_intact_index_no_record_is_read() -> None:
    disk = fill_counted(closed=True)
    store = open_store(disk)
    assert held(store).committed_no == 60
    assert disk.segment_bytes_read <= 2 * RECORDS_AT, "the header alone"


def test_with_an_index_only_what_lies_behind_its_last_point_is_read() -> None:
    disk = fill_counted(closed=False)
    store = open_store(disk)
    assert held(store).committed_no == 60
    assert 20_000 < disk.segment_bytes_read < 300_000
    disk.kill()
    disk.read = {}
    store = open_store(disk)
    assert held(store).committed_no == 60
    assert disk.segment_bytes_read <= 2 * RECORDS_AT, "recovery has written the rest down"


def test_without_an_index_everything_is_read_once() -> None:
    disk = fill_counted(closed=True)
    (index,) = indexes_of(snapshot(disk))
    disk.remove(index)
    disk.read = {}
    store = open_store(disk)
    assert held(store).committed_no == 60
    (segment,) = held(store).segments
    assert segment.size_bytes <= disk.segment_bytes_read <= segment.size_bytes * 1.1 + 70_000
    assert len(segment.index) >= 4, "and it has points again, to seek by"
    assert disk.exists(index)


def test_with_an_index_of_other_bytes_everything_is_read() -> None:
    """A file that is shorter than its index says, or goes on with no record behind it."""
    whole = snapshot(fill_counted(closed=True))
    (path,) = segments_of(whole)
    for data in (whole[path][:-5], whole[path] + b"?"):
        image = whole | {path: data}
        disk = CountingDisk()
        disk.make_directory(path.rpartition("/")[0])
        for each, contents in image.items():
            disk.append_to(each).append(contents)
        store = open_store(disk)
        assert disk.segment_bytes_read > len(data)
        assert store.flaws() or held(store).holes()


def test_only_the_last_segment_of_a_killed_process_is_read() -> None:
    """One that was committed before the next began has its end in its index as well."""
    disk = CountingDisk()
    store = open_store(disk, StoreOptions(segment_bytes_max=30_000))
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    for _ in range(20):
        write(log, [b"x" * 20_000])
        trio.run(store.commit)
    assert len(log.segments) == 20
    disk.kill()
    disk.read = {}
    assert held(open_store(disk)).committed_no == 20
    assert disk.segment_bytes_read < 25_000 + 20 * 2 * RECORDS_AT


def test_seeking_reads_less_than_the_distance_between_points() -> None:
    disk = fill_counted(closed=True)
    log = held(open_store(disk))
    for after_no in (0, 1, 17, 30, 58):
        disk.read = {}
        assert log.reader(after_no).next_range(1) is not None
        assert disk.segment_bytes_read <= 256 * 1024 + 2 * 64 * 1024


# Crashes ------------------------------------------------------------------------------------------

LOGS = [
    TEMPERATURE,
    PRESSURE,
    LogId(OTHER_BROKER, Topic("/plant/south/temp")),
]


def batch_at(log_id: LogId, first_no: int) -> list[bytes]:
    """The batch that begins with a number: a copy that lost it gets just that one again."""
    payload = f"{log_id}{first_no}".encode()
    return [payload * (1 + first_no * number % 5) for number in range(1 + first_no * 7 % 4)]


class Witness:
    """Remembers what was promised, and holds every reopened store to it."""

    def __init__(self) -> None:
        self.safe: dict[LogId, set[int]] = {log_id: set() for log_id in LOGS}
        """What must be there: it was committed, or a recovered store has served it."""
        self.appended: dict[LogId, set[int]] = {log_id: set() for log_id in LOGS}
        """What may be there."""

    def append(self, store: FileStore, log_id: LogId) -> None:
        log = store.create(log_id)
        first_no = log.next_no
        write(log, batch_at(log_id, first_no))
        self.appended[log_id] |= set(range(first_no, log.next_no))

    def committed(self, log: Log, first_no: int) -> None:
        self.safe[log.log_id] |= set(range(first_no, log.committed_no + 1))

    def expired(self, dropped: Expired) -> None:
        self.safe[dropped.log_id] -= set(range(1, dropped.last_no + 1))

    def judge(self, store: FileStore) -> None:
        """All that was safe is there, and what else is there was really written."""
        for log_id in LOGS:
            served: set[int] = set()
            log = store.get(log_id)
            if log is not None:
                for first_no, body in read_log(log).records.items():
                    batch = batch_at(log_id, first_no)
                    assert body == body_of(record(log_id, first_no, batch), log_id)
                    served |= set(range(first_no, first_no + len(batch)))
            assert not self.safe[log_id] - served, f"{log_id} has lost what was safe"
            assert not served - self.appended[log_id], f"{log_id} has what nobody has written"
            self.safe[log_id] |= served


async def live(
    disk: SimDisk, entropy: SimEntropy, witness: Witness, steps: int, *, slow: bool
) -> None:
    """One life of a process: it opens the store, is judged, and dies after so many steps."""
    options = StoreOptions(segment_bytes_max=900, open_files_max=3)
    store = open_store(disk, options)
    witness.judge(store)
    for _ in range(steps):
        match entropy.below(10):
            case 0 | 1 | 2 | 3 | 4 | 5:
                witness.append(store, entropy.choose(LOGS))
            case 6:
                rules = RetentionRules(age_s=None, log_bytes_max=1 + entropy.below(3000))
                for dropped in store.expire(rules):
                    witness.expired(dropped)
            case _:
                begins = {log.log_id: log.committed_no + 1 for log in store.logs()}
                done = await store.commit()
                assert not done.poisoned
                for log in done.logs:
                    witness.committed(log, begins[log.log_id])
    if slow:
        # It dies in the middle of a commit.
        disk.odds = DiskFaults(sync_slow=1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit)
            await trio.testing.wait_all_tasks_blocked()
            crash(disk, entropy)
        disk.odds = DiskFaults()
    crash(disk, entropy)


def crash(disk: SimDisk, entropy: SimEntropy) -> None:
    if entropy.chance(0.6):
        disk.power_loss()
    else:
        disk.kill()


def survive(seed: int, lives: list[tuple[int, bool]]) -> SimDisk:
    disk = SimDisk(seed)
    witness = Witness()
    entropy = SimEntropy(seed)

    async def main() -> None:
        for steps, slow in lives:
            await live(disk, entropy, witness, steps, slow=slow)
        witness.judge(open_store(disk))
        for _ in verify_directory_of(disk):
            pass

    try:
        simulate(seed, main)
    except BaseException as error:
        error.add_note(f"seed {seed}, lives {lives}")
        raise
    return disk


def verify_directory_of(disk: SimDisk) -> Iterator[object]:
    disk.kill()
    return iter(list(verify_directory(disk, DIRECTORY)))


def test_what_was_committed_survives_crashes_at_any_step() -> None:
    """Several lives in a row, some of them with nothing but the recovery from the last."""
    faults: set[DiskFault] = set()
    for seed in range(400):
        entropy = SimEntropy(f"lives {seed}")
        lives = [
            (entropy.choose((0, entropy.below(20))), entropy.chance(0.3))
            for _ in range(1 + entropy.below(5))
        ]
        faults |= set(survive(seed, lives).faults)
    wanted = {
        DiskFault.KILL, DiskFault.POWER_LOSS, DiskFault.LOST_TAIL, DiskFault.ZERO_TAIL,
        DiskFault.DAMAGED_SECTOR, DiskFault.LOST_ENTRY,
    }  # fmt: skip
    assert wanted <= faults, "the faults that this is about did strike"


def test_what_was_committed_survives_a_crash_at_each_step_of_one_schedule() -> None:
    for seed in range(1000, 1012):
        for steps in range(25):
            survive(seed, [(steps, False), (0, False)])


def test_a_new_data_directory_survives_a_power_loss() -> None:
    """Each level of it has a name that must be durable before anything in it is acked."""
    for seed in range(30):
        disk = SimDisk(seed)
        store = open_store(disk)
        store.begin(BROKER)
        write_numbered(store.create(TEMPERATURE), 3)
        trio.run(store.commit)
        disk.power_loss()
        assert held(open_store(disk)).committed_no == 3, f"seed {seed}"


def test_an_incarnation_that_has_begun_is_known_after_a_power_loss() -> None:
    for seed in range(30):
        disk = SimDisk(seed)
        open_store(disk).begin(BROKER)
        disk.power_loss()
        store = open_store(disk)
        with pytest.raises(SecondWriter):
            store.begin(BROKER)
        assert list(store.logs()) == []


def test_a_directory_whose_maker_was_killed_is_made_durable_by_the_next() -> None:
    """The process dies after each operation on names in turn; the next one goes on from there."""
    for deadly in range(12):
        for seed in range(8):
            disk = SimDisk(seed)

            class Killed(Exception):
                pass

            def dies(at: int = deadly, disk: SimDisk = disk) -> Callable[[str], None]:
                left = [at]
                sync_directory = disk.sync_directory

                def sync(directory: str) -> None:
                    if left[0] == 0:
                        disk.kill()
                        raise Killed
                    left[0] -= 1
                    sync_directory(directory)

                return sync

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(disk, "sync_directory", dies())
                try:
                    store = open_store(disk)
                    store.create(TEMPERATURE)
                except Killed:
                    pass
            disk.kill()
            store = open_store(disk)
            write_numbered(store.create(TEMPERATURE), 2)
            trio.run(store.commit)
            disk.power_loss()
            assert held(open_store(disk)).committed_no == 2, f"seed {seed}, dead at {deadly}"


def test_what_a_killed_process_had_not_synced_is_safe_once_it_was_recovered() -> None:
    for seed in range(40):
        disk = SimDisk(seed)
        store = open_store(disk)
        store.begin(BROKER)
        made = write_numbered(store.create(TEMPERATURE), *[3] * 20, size_bytes=50)
        disk.kill()
        log = held(open_store(disk))
        assert log.committed_no == 60
        disk.power_loss()
        assert read_ranges(held(open_store(disk))).records == by_number(made), f"seed {seed}"


def test_a_sync_that_fails_in_recovery_stops_the_start() -> None:
    """What could not be synced must not be vouched for."""
    disk = SimDisk()
    store = open_store(disk)
    store.begin(BROKER)
    write_numbered(store.create(TEMPERATURE), 3)
    disk.kill()
    for where in (is_segment, is_bucket):
        disk.arm(DiskFault.SYNC_EIO, where)
        with pytest.raises(StorageFailed):
            open_store(disk)
    open_store(disk).close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_a_disk_reads_at_the_second_look_is_no_damage(count: int) -> None:
    disk = SimDisk(3)
    store = open_store(disk)
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    write_numbered(log, 1, 2, 1)
    trio.run(store.commit)
    found = log.reader(0).next_range(1)
    assert isinstance(found, Range)
    disk.arm(DiskFault.READ_EIO, is_segment, count=count)
    assert log.examine(found) == []
    assert log.holes() == []


def test_a_log_of_which_a_disk_cannot_read_a_part_is_read_around_it() -> None:
    disk = SimDisk(3)
    store = open_store(disk)
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    made = write_numbered(log, *[1] * 30, size_bytes=100)
    trio.run(store.commit)
    bad = log.segments[1]
    disk.arm(DiskFault.READ_EIO, lambda path: path == bad.path, count=1000)
    reading = read_log(log)
    (hole,) = reading.holes
    assert (hole.first_no, hole.last_no) == (bad.first_no, bad.next_no - 1)
    assert hole.may_pass
    assert len(reading.records) == len(made) - (bad.next_no - bad.first_no)


# Writes and syncs that fail -----------------------------------------------------------------------


class Failing:
    """A store with two logs that have something committed, about to fail."""

    def __init__(self) -> None:
        self.disk = SimDisk(3)
        self.clock = StoppedClock()
        self.store = FileStore(self.disk, self.clock, DIRECTORY, SMALL)
        self.store.begin(BROKER)
        self.log = self.store.create(TEMPERATURE)
        self.other = self.store.create(PRESSURE)
        self.made = write_numbered(self.log, 2, 1)
        self.other_made = write_numbered(self.other, 2)
        trio.run(self.store.commit)

    def append_until_poisoned(self) -> None:
        with pytest.raises(LogPoisoned):
            write_numbered(self.log, *[2] * 100, size_bytes=100)

    def judge(self) -> None:
        """The log is lost to writing, and nothing else is lost."""
        assert self.log.poisoned is not None
        assert self.log.committed_no == 3
        assert read_ranges(self.log).records == by_number(self.made)
        for _ in range(3):
            with pytest.raises(LogPoisoned):
                write_numbered(self.log, 1)
            trio.run(self.store.commit)
            assert self.log.committed_no == 3
        assert self.other.poisoned is None
        self.other_made += write_numbered(self.other, 1)
        assert [log.log_id for log in trio.run(self.store.commit).logs] == [PRESSURE]
        assert read_ranges(self.other).records == by_number(self.other_made)
        self.store.close()
        self.disk.power_loss()
        store = open_store(self.disk)
        for log_id, made in ((TEMPERATURE, self.made), (PRESSURE, self.other_made)):
            found = read_ranges(held(store, log_id)).records
            assert {n: found.get(n) for n in by_number(made)} == by_number(made)


@pytest.fixture
def failing() -> Failing:
    return Failing()


@pytest.mark.parametrize("fault", [DiskFault.APPEND_ENOSPC, DiskFault.APPEND_EIO])
def test_a_failed_append_poisons_its_log(failing: Failing, fault: DiskFault) -> None:
    failing.disk.arm(fault, is_segment)
    with pytest.raises(LogPoisoned, match="append failed"):
        write_numbered(failing.log, 2)
    assert failing.log.next_no == 4
    failing.judge()


def test_a_full_disk_poisons_its_log(failing: Failing) -> None:
    failing.disk.capacity_bytes = 5000
    failing.append_until_poisoned()
    failing.disk.capacity_bytes = None
    failing.judge()


@pytest.mark.parametrize("fault", [DiskFault.ENTRY_ENOSPC, DiskFault.ENTRY_EIO])
def test_a_new_segment_that_cannot_be_made_poisons_its_log(
    failing: Failing, fault: DiskFault
) -> None:
    failing.disk.arm(fault, is_segment)
    failing.append_until_poisoned()
    failing.judge()


@pytest.mark.parametrize("fault", [DiskFault.APPEND_ENOSPC, DiskFault.APPEND_EIO])
def test_a_header_that_cannot_be_written_poisons_its_log(
    failing: Failing, fault: DiskFault
) -> None:
    begins = [segment.path for segment in failing.log.segments]
    failing.disk.arm(
        fault, lambda path: is_segment(path) and path not in begins and "0001-" in path
    )
    failing.append_until_poisoned()
    failing.judge()


def test_a_failed_sync_poisons_its_log(failing: Failing) -> None:
    write_numbered(failing.log, 2)
    failing.disk.arm(DiskFault.SYNC_EIO, is_segment)
    done = trio.run(failing.store.commit)
    assert done.logs == []
    assert done.poisoned == [failing.log]
    assert "sync failed" in (failing.log.poisoned or "")
    # The kernel has marked the pages clean: the next sync would succeed, and must not count.
    assert trio.run(failing.store.commit).logs == []
    failing.judge()


def test_a_failed_sync_of_one_log_does_not_stop_the_others(failing: Failing) -> None:
    write_numbered(failing.log, 2)
    failing.other_made += write_numbered(failing.other, 2)
    failing.disk.arm(DiskFault.SYNC_EIO, lambda path: path == failing.log.segments[-1].path)
    done = trio.run(failing.store.commit)
    assert ([log.log_id for log in done.logs], done.poisoned) == ([PRESSURE], [failing.log])
    assert failing.other.committed_no == 4
    failing.judge()


def test_a_failed_sync_of_a_directory_poisons_the_log_with_a_new_name_in_it(
    failing: Failing,
) -> None:
    write_numbered(failing.log, *[2] * 20, size_bytes=50)
    assert len(failing.log.segments) > 1
    failing.other_made += write_numbered(failing.other, 1)
    failing.disk.arm(DiskFault.SYNC_EIO, is_bucket)
    done = trio.run(failing.store.commit)
    assert done.poisoned == [failing.log]
    assert done.logs == [failing.other], "its file had a durable name before"
    failing.judge()


def test_a_log_that_an_append_has_poisoned_is_named_by_the_next_commit(failing: Failing) -> None:
    """Others wait for what was appended to it before: they must be told."""
    write_numbered(failing.log, 1)
    failing.disk.arm(DiskFault.APPEND_EIO, is_segment)
    with pytest.raises(LogPoisoned):
        write_numbered(failing.log, 1)
    done = trio.run(failing.store.commit)
    assert (done.logs, done.poisoned) == ([], [failing.log])
    assert trio.run(failing.store.commit).poisoned == []
    failing.judge()


def test_an_append_that_fails_during_a_commit_does_not_undo_it() -> None:
    failing = Failing()

    async def main() -> None:
        failing.made += write_numbered(failing.log, 2)
        failing.disk.odds = DiskFaults(sync_slow=1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing.store.commit)
            await trio.testing.wait_all_tasks_blocked()
            failing.disk.arm(DiskFault.APPEND_EIO, is_segment)
            with pytest.raises(LogPoisoned):
                write_numbered(failing.log, 1)
        failing.disk.odds = DiskFaults()

    simulate(1, main)
    assert failing.log.poisoned is not None
    assert failing.log.committed_no == 5
    assert read_ranges(failing.log).records == by_number(failing.made)


def test_what_is_appended_during_a_commit_belongs_to_the_next() -> None:
    failing = Failing()

    async def main() -> None:
        failing.made += write_numbered(failing.log, 2)
        failing.disk.odds = DiskFaults(sync_slow=1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing.store.commit)
            await trio.testing.wait_all_tasks_blocked()
            failing.made += write_numbered(failing.log, *[3] * 30, size_bytes=40)
        failing.disk.odds = DiskFaults()
        assert failing.log.committed_no == 5
        assert failing.store.dirty()
        await failing.store.commit()
        assert failing.log.committed_no == 95

    simulate(1, main)
    assert read_ranges(failing.log).records == by_number(failing.made)
    failing.disk.power_loss()
    assert read_ranges(held(open_store(failing.disk))).records == by_number(failing.made)


@pytest.mark.parametrize(
    "fault", [DiskFault.ENTRY_EIO, DiskFault.APPEND_EIO, DiskFault.APPEND_ENOSPC]
)
def test_an_index_that_cannot_be_written_does_no_harm(fault: DiskFault) -> None:
    disk = SimDisk(4)
    disk.arm(fault, is_index, count=10**6)
    store = open_store(disk)
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    made: list[bytes] = []
    for _ in range(30):
        made += write_numbered(log, 3, size_bytes=50)
        assert trio.run(store.commit).logs == [log]
    assert log.poisoned is None
    assert read_ranges(log).records == by_number(made)
    store.close()
    for _ in range(2):
        store = open_store(disk)
        assert read_ranges(held(store)).records == by_number(made)
        store.close()
    assert disk.faults[fault] > 0


def test_a_full_disk_does_not_stop_the_start() -> None:
    """How else could retention make room?"""
    disk = SimDisk(5)
    store = open_store(disk)
    store.begin(BROKER)
    made = write_numbered(store.create(TEMPERATURE), *[3] * 30, size_bytes=50)
    disk.kill()
    disk.capacity_bytes = 0
    disk.arm(DiskFault.ENTRY_ENOSPC, is_index, count=10**6)
    store = open_store(disk)
    assert read_ranges(held(store)).records == by_number(made)
    assert store.expire(RetentionRules(age_s=None, log_bytes_max=3000))


def test_a_segment_that_cannot_be_dropped_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.begin(BROKER)
    for log_id in (TEMPERATURE, PRESSURE):
        write_numbered(store.create(log_id), *[3] * 30, size_bytes=50)
    trio.run(store.commit)
    stuck = held(store).segments[0].path
    remove = disk.remove

    def refuse(path: str) -> None:
        if path == stuck:
            raise PermissionError(1, "not permitted", path)
        remove(path)

    rules = RetentionRules(age_s=None, log_bytes_max=2500)
    whole = read_ranges(held(store)).records
    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", refuse)
        with pytest.raises(StorageFailed, match="temp"):
            store.expire(rules)
    assert held(store, PRESSURE).size_bytes <= 2500
    assert read_ranges(held(store)).records == whole
    store.expire(rules)
    assert held(store).size_bytes <= 2500
    assert not disk.exists(stuck)


@pytest.mark.parametrize("where", [is_segment, is_bucket], ids=["file", "folder"])
def test_a_successor_that_cannot_be_synced_poisons_its_log(where: Callable[[str], bool]) -> None:
    """What is appended to it would be acked, and its name or its beginning may be lost."""
    failing = Failing()
    failing.disk.arm(DiskFault.SYNC_EIO, where)
    failing.clock.advance(100)
    with pytest.raises(StorageFailed):
        failing.store.expire(RetentionRules(age_s=50))
    assert failing.log.poisoned is not None
    with pytest.raises(LogPoisoned):
        write_numbered(failing.log, 1)
    assert read_ranges(failing.log).records == by_number(failing.made), "nothing was dropped"


def test_a_successor_that_has_no_room_is_made_the_next_time() -> None:
    """The disk is full; other logs make room."""
    failing = Failing()
    failing.clock.advance(100)
    failing.disk.arm(DiskFault.APPEND_ENOSPC, is_segment)
    with pytest.raises(StorageFailed):
        failing.store.expire(RetentionRules(age_s=50))
    assert failing.log.poisoned is None
    made = write_numbered(failing.log, 2)
    trio.run(failing.store.commit)
    assert read_ranges(failing.log).records == by_number(failing.made + made)
    failing.store.expire(RetentionRules(age_s=50))
    assert read_ranges(failing.log).expired == [(1, 3)]
    assert read_ranges(failing.log).records == by_number(made, 4)


# Segments without a record ------------------------------------------------------------------------


def copy_that_expired(clock: StoppedClock, disk: SimDisk) -> FileStore:
    """A copy of another node's log whose messages have all expired, opened again."""
    store = FileStore(disk, clock, DIRECTORY, SMALL)
    write_numbered(store.create(TEMPERATURE), 4)
    trio.run(store.commit)
    clock.advance(100)
    store.expire(RetentionRules(age_s=50))
    store.close()
    return FileStore(disk, clock, DIRECTORY, SMALL)


def test_a_copy_goes_on_after_all_of_it_has_expired() -> None:
    clock = StoppedClock()
    disk = SimDisk(clock=clock)
    store = copy_that_expired(clock, disk)
    log = store.create(TEMPERATURE)
    assert (log.first_no, log.next_no) == (5, 5)
    clock.advance(40)
    made = write_numbered(log, 2)
    trio.run(store.commit)
    assert read_ranges(log).records == by_number(made, 5)
    clock.advance(40)
    # The empty segment is too old by now, and what took its place is not.
    store.expire(RetentionRules(age_s=50))
    assert read_ranges(log).records == by_number(made, 5)
    store.close()
    assert read_ranges(held(open_store(disk))).records == by_number(made, 5)


def test_a_file_left_without_a_record_is_put_aside_and_not_removed() -> None:
    clock = StoppedClock()
    disk = SimDisk(clock=clock)
    store = copy_that_expired(clock, disk)
    (empty,) = segments_of(snapshot(disk))
    data = snapshot(disk)[empty]
    write_numbered(store.create(TEMPERATURE), 2)
    assert snapshot(disk)[empty + ".torn1"] == data


def test_a_file_that_has_two_names_is_put_aside(tmp_path: Path) -> None:
    """A power loss may leave a renamed file under both names; then renaming it does nothing."""
    files = RealFiles()
    store = FileStore(files, StoppedClock(), str(tmp_path))
    store.begin(BROKER)
    write_numbered(store.create(TEMPERATURE), 2)
    store.close()
    (path,) = tmp_path.glob("logs/*/*.seg")
    empty = path.with_name("00000001-00000000000000000003.seg")
    empty.write_bytes(path.read_bytes()[:RECORDS_AT])
    empty.with_name(empty.name + ".torn1").hardlink_to(empty)
    store = FileStore(files, StoppedClock(), str(tmp_path))
    log = held(store)
    write_numbered(log, 1)
    trio.run(store.commit)
    assert read_log(log).records.keys() == {1, 3}
    names = sorted(each.name for each in tmp_path.glob("logs/*/*.torn*"))
    assert names == [f"{empty.name}.torn1", f"{empty.name}.torn2"]
    store.close()


def test_an_index_without_its_segment_is_not_believed() -> None:
    """Its segment was dropped, and the process killed before it could remove the index too."""
    disk = SimDisk()
    store = open_store(disk)
    write_numbered(store.create(TEMPERATURE), 2, 5, size_bytes=33)
    store.close()
    (path,) = segments_of(snapshot(disk))
    disk.remove(path)
    store = open_store(disk)
    made = write_numbered(store.create(PRESSURE), 1, 1, 1, 1, 1, size_bytes=50)
    trio.run(store.commit)
    assert segments_of(snapshot(disk)).keys() == {path}, "it has the same name"
    disk.kill()
    log = held(open_store(disk), PRESSURE)
    assert log.committed_no == 5
    assert read_ranges(log).records == by_number(made)


def test_two_numbers_for_one_topic_are_one_log() -> None:
    """A log that was lost from sight and begun again."""
    images: list[dict[str, bytes]] = []
    for first_no in (1, 7):
        disk = SimDisk()
        store = open_store(disk)
        if first_no > 1:
            write_numbered(store.create(PRESSURE), 1)
        log = store.create(TEMPERATURE)
        log.append(record(TEMPERATURE, 1, numbered(1, 6)), 6, UTC_US)
        if first_no > 1:
            write_numbered(log, 3)
        store.close()
        images.append(snapshot(disk))
    assert len(images[0] | images[1]) == 4
    log = held(open_store(disk_with(images[0] | images[1])))
    assert log.committed_no == 9
    assert sorted(read_log(log).records) == [1, 7]


# The lock -----------------------------------------------------------------------------------------


def test_a_data_directory_is_open_once(tmp_path: Path) -> None:
    clock = StoppedClock()
    store = FileStore(RealFiles(), clock, str(tmp_path))
    with pytest.raises(DataDirectoryInUse):
        FileStore(RealFiles(), clock, str(tmp_path))
    with pytest.raises(DataDirectoryInUse):
        FileStore(RealFiles(), clock, str(tmp_path), read_only=True)
    with pytest.raises(DataDirectoryInUse):
        list(verify_directory(RealFiles(), str(tmp_path)))
    store.begin(BROKER)
    store.close()
    FileStore(RealFiles(), clock, str(tmp_path)).close()


HOLDER = """
import sys
from busnode.segments.file_store import FileStore
from busnode.world.real_clock import RealClock
from busnode.world.real_files import RealFiles
try:
    store = FileStore(RealFiles(), RealClock(), sys.argv[1])
except Exception as error:
    print(type(error).__name__, flush=True)
else:
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_data_directory_is_open_in_one_process(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    store = FileStore(RealFiles(), StoppedClock(), str(tmp_path))
    with start() as second:
        assert second.communicate()[0] == "DataDirectoryInUse\n"
    store.close()
    with start() as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "open\n"
        with pytest.raises(DataDirectoryInUse):
            FileStore(RealFiles(), StoppedClock(), str(tmp_path))
        second.kill()
        second.wait()
        FileStore(RealFiles(), StoppedClock(), str(tmp_path)).close()


def test_an_opening_that_fails_lets_go_of_the_lock() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.begin(BROKER)
    write_numbered(store.create(TEMPERATURE), 1)
    store.close()
    disk.arm(DiskFault.SYNC_EIO, is_bucket)
    with pytest.raises(StorageFailed):
        open_store(disk)
    assert held(open_store(disk)).committed_no == 1


def test_what_is_no_data_directory_is_not_made_one_by_reading(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory):
        FileStore(RealFiles(), StoppedClock(), str(tmp_path), read_only=True)
    with pytest.raises(NotADataDirectory):
        list(verify_directory(RealFiles(), str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_other_things_in_a_data_directory_are_left_alone(tmp_path: Path) -> None:
    bucket = tmp_path / "logs" / BROKER.hex()
    bucket.mkdir(parents=True)
    strange = [
        tmp_path / "notes.txt",
        tmp_path / "logs" / "readme",
        bucket / "1.seg",
        bucket / "00000001-00000000000000000001.seg.torn",
        bucket / "00000001-00000000000000000001.idx",
    ]
    for path in strange:
        path.write_text("mine")
    store = FileStore(RealFiles(), StoppedClock(), str(tmp_path))
    assert list(store.logs()) == []
    store.close()
    assert [path.read_text() for path in strange] == ["mine"] * len(strange)


def test_a_folder_whose_name_failed_is_put_aside_and_made_anew() -> None:
    """After a failed sync nobody knows whether the folder will be there after a power loss."""
    for seed in range(10):
        disk = SimDisk(seed)
        store = open_store(disk)
        disk.arm(DiskFault.SYNC_EIO, lambda path: path.endswith("/logs"))
        with pytest.raises(StorageFailed):
            store.begin(BROKER)
        with pytest.raises(SecondWriter):
            store.begin(BROKER)
        other = TEMPERATURE._replace(broker_id=BrokerId(bytes(range(16))))
        store.begin(other.broker_id)
        for log_id in (TEMPERATURE, other):
            write_numbered(store.create(log_id), 1)
        assert len(trio.run(store.commit).logs) == 2
        disk.power_loss()
        again = open_store(disk)
        assert [held(again, log_id).committed_no for log_id in (TEMPERATURE, other)] == [1, 1]


COPY = TEMPERATURE
SMALL_COPY = StoreOptions(segment_bytes_max=1000)


async def _fail_a_copy(disk: SimDisk, log: Log, store: Store, fault: DiskFault) -> None:
    """Some of it durable, some not, and then the disk fails in the middle of more."""
    write_numbered(log, *[3] * 6, size_bytes=60)
    await store.commit()
    write_numbered(log, *[3] * 3, size_bytes=60)
    disk.arm(fault, lambda path: path.endswith(".seg"))
    with suppress(LogPoisoned):
        write_numbered(log, *[3] * 9, size_bytes=60)
    await store.commit()
    assert log.poisoned is not None


@pytest.mark.parametrize(
    "fault", [DiskFault.APPEND_ENOSPC, DiskFault.APPEND_EIO, DiskFault.SYNC_EIO]
)
@pytest.mark.parametrize("end", ["power loss", "kill", "close"])
def test_a_copy_that_a_disk_failed_goes_on_behind_what_is_durable(
    fault: DiskFault, end: str
) -> None:
    for seed in range(8):
        disk = SimDisk(seed)
        store = FileStore(disk, StoppedClock(), DIRECTORY, SMALL_COPY)
        log = store.create(COPY)

        async def main(disk: SimDisk = disk, log: Log = log, store: Store = store) -> None:
            for _ in range(3):
                await _fail_a_copy(disk, log, store, fault)
                before_no = log.committed_no
                log.take_up_again()
                assert (log.next_no, log.poisoned) == (before_no + 1, None)
                assert log.committed_no == before_no
            write_numbered(log, *[3] * 8, size_bytes=60)
            assert (await store.commit()).logs == [log]

        trio.run(main)
        whole = read_ranges(log)
        assert whole.holes == []
        last_no = log.committed_no
        if end == "close":
            store.close()
        elif end == "kill":
            disk.kill()
        else:
            disk.power_loss()
        for _ in range(2):
            again = FileStore(disk, StoppedClock(), DIRECTORY, SMALL_COPY)
            recovered = held(again, COPY)
            assert recovered.committed_no >= last_no
            reading = read_ranges(recovered)
            assert reading.holes == []
            assert {n: r for n, r in reading.records.items() if n <= last_no} == whole.records
            again.close()


def test_what_a_copy_never_synced_is_not_missed_where_it_was_sent_again(tmp_path: Path) -> None:
    """In the middle of what lies behind the durable end of the old file there is damage."""
    files = RealFiles()
    store = FileStore(files, StoppedClock(), str(tmp_path))
    log = store.create(COPY)

    async def main() -> None:
        write_numbered(log, *[3] * 6, size_bytes=60)
        await store.commit()
        write_numbered(log, *[3] * 3, size_bytes=60)
        log.poison("the sync of these has failed")
        log.take_up_again()
        write_numbered(log, *[3] * 6, size_bytes=60)
        await store.commit()

    trio.run(main)
    whole = read_ranges(log)
    assert whole.holes == []
    old, new = log.segments
    assert (old.next_no, new.first_no) == (19, 19)
    store.close()
    with Path(old.path).open("r+b") as file:
        file.seek(old.size_bytes + 150)
        file.write(b"damage")
    size_bytes = Path(old.path).stat().st_size
    for _ in range(2):
        again = FileStore(files, StoppedClock(), str(tmp_path))
        reading = read_ranges(held(again, COPY))
        assert reading.holes == []
        assert reading.records == whole.records
        again.close()
    assert Path(old.path).stat().st_size == size_bytes > old.size_bytes, "nothing was removed"
    assert [log.holes for log in verify_directory(files, str(tmp_path))] == [[]]


def test_a_copy_that_goes_on_before_the_next_commit_has_nothing_for_it() -> None:
    """A commit that hangs at another log's file keeps the next one from hearing of the failure."""
    disk = SimDisk()
    store = open_store(disk)
    log = store.create(COPY)

    async def main() -> None:
        write_numbered(log, 3, size_bytes=60)
        disk.arm(DiskFault.APPEND_EIO, is_segment)
        with pytest.raises(LogPoisoned):
            write_numbered(log, 3, size_bytes=60)
        log.take_up_again()
        nothing = await store.commit()
        assert (nothing.logs, nothing.poisoned) == ([], [])
        write_numbered(log, 3, size_bytes=60)
        assert (await store.commit()).logs == [log]

    trio.run(main)
    assert log.committed_no == 3


def test_a_copy_goes_on_in_a_file_whose_name_another_had_that_could_not_be_synced() -> None:
    """Where all open files wait for a commit one is synced on the spot; that may fail."""
    disk = SimDisk()
    store = open_store(disk, StoreOptions(open_files_max=1))
    log, other = store.create(COPY), store.create(PRESSURE._replace(broker_id=COPY.broker_id))

    async def main() -> None:
        write_numbered(log, 3, size_bytes=60)
        disk.arm(DiskFault.SYNC_EIO, is_segment)
        write_numbered(other, 3, size_bytes=60)
        assert (await store.commit()).poisoned == [log]
        log.take_up_again()
        write_numbered(log, 3, size_bytes=60)
        assert (await store.commit()).logs == [log]

    trio.run(main)
    assert log.committed_no == 3


def test_taking_a_copy_up_again_waits_for_no_disk() -> None:
    """A full disk fails thousands of copies at once."""
    disk = SimDisk()
    store = open_store(disk)
    log = store.create(COPY)

    async def main() -> None:
        await _fail_a_copy(disk, log, store, DiskFault.APPEND_ENOSPC)
        disk.arm(DiskFault.SYNC_EIO, is_bucket)
        log.take_up_again()
        disk.disarm()
        write_numbered(log, 3, size_bytes=60)
        assert (await store.commit()).logs == [log]

    trio.run(main)


def test_the_limit_of_log_numbers_fits_the_file_name() -> None:
    assert len(str(file_store.LOG_NO_MAX)) == 8


def test_a_closed_store_has_written_down_all_it_knows() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.begin(BROKER)
    write_numbered(store.create(TEMPERATURE), *[2] * 20, size_bytes=100)
    store.close()
    for path, data in segments_of(snapshot(disk)).items():
        index = snapshot(disk)[index_path(path)]
        assert int.from_bytes(index[-32:-24], "little") == len(data)
