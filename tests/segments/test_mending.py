"""Good records in the place of damaged ones: the old segment or the new one, and never less."""

import random
from collections.abc import Callable

import pytest
import trio

from busnode.segments import log as log_module
from busnode.segments import survey as survey_module
from busnode.segments.damage import Hole, Mended, Patch
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.memory_store import MemoryStore
from busnode.segments.retention import RetentionRules
from busnode.segments.segment import RECORDS_AT, index_path
from busnode.segments.steps import Step, Steps, Sync, work_off
from busnode.segments.store import StoreOptions
from busnode.segments.verification import verify_directory
from busnode.testing.sim import DiskFault, SimDisk
from busnode.wire.errors import BadRecord
from busnode.wire.ids import MsgNo

from .samples import (
    BROKER,
    DIRECTORY,
    TEMPERATURE,
    StoppedClock,
    by_number,
    read_log,
    read_ranges,
    record,
    write_numbered,
)

pytestmark = pytest.mark.damage

SMALL = StoreOptions(segment_bytes_max=2048)
COUNTS = (2, 1, 3, 1, 2, 1, 4, 2, 1, 3, 2, 2, 1, 1, 3, 2, 1, 2, 3, 1)


@pytest.fixture(autouse=True)
def _dense_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points every 300 bytes, so that small segments have several."""
    monkeypatch.setattr(log_module, "POINT_EVERY_BYTES", 300)
    monkeypatch.setattr(survey_module, "POINT_EVERY_BYTES", 300)


class Damaged:
    """A store with some segments, the records that were written, and damage in one of them."""

    def __init__(self, seed: int = 0, options: StoreOptions = SMALL) -> None:
        self.disk = SimDisk(seed, clock=StoppedClock())
        self.options = options
        store = self.opened()
        store.begin(BROKER)
        log = store.create(TEMPERATURE)
        self.records = by_number(write_numbered(log, *COUNTS, size_bytes=60))
        trio.run(store.commit)
        store.close()
        self.last_no = sum(COUNTS)

    def opened(self) -> FileStore:
        return FileStore(self.disk, StoppedClock(), DIRECTORY, self.options)

    def write(self, log: FileLog, *counts: int) -> None:
        first_no = int(log.next_no)
        self.records |= by_number(write_numbered(log, *counts, size_bytes=60), first_no)

    def flip(self, number: int, inside: int = 100) -> None:
        """Damage the record that begins with a number."""
        store = self.opened()
        log = held(store)
        found = log.reader(number - 1).next_range(1)
        assert not isinstance(found, Hole)
        assert found is not None
        path, offset = found.file.path, found.offset
        store.close()
        self.disk.flip_bit(path, offset + inside, 3)

    def between(self, first_no: int, last_no: int) -> bytes:
        return b"".join(data for no, data in self.records.items() if first_no <= no <= last_no)


def held(store: FileStore) -> FileLog:
    log = store.get(TEMPERATURE)
    assert log is not None
    return log


def examined(log: FileLog) -> list[Hole]:
    for segment in list(log.segments):
        log.survey_again(segment)
    return log.holes()


def patches(damaged: Damaged, log: FileLog) -> list[Patch]:
    return [Patch(hole, damaged.between(hole.first_no, hole.last_no)) for hole in log.holes()]


def judge_whole(damaged: Damaged) -> None:
    """All that was written is there, after a restart too, and nothing is wrong with the files."""
    store = damaged.opened()
    assert read_ranges(held(store)).records == damaged.records
    assert held(store).holes() == []
    store.close()
    (verified,) = verify_directory(damaged.disk, DIRECTORY)
    assert (verified.holes, verified.flaws) == ([], [])


def quarantined(disk: SimDisk) -> list[str]:
    folder = f"{DIRECTORY}/quarantine/{BROKER.hex()}"
    return disk.names(folder) if disk.exists(folder) else []


@pytest.mark.parametrize("number", [1, 4, 18, 38])
def test_a_damaged_record_is_put_right_and_its_bytes_are_kept(number: int) -> None:
    damaged = Damaged()
    damaged.flip(number)
    store = damaged.opened()
    log = held(store)
    (hole,) = examined(log)
    assert hole.first_no == number
    reading = log.reader(0)
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert log.holes() == []
    assert read_ranges(log).records == damaged.records
    assert reading.next_range(1 << 20) is not None
    (name,) = quarantined(damaged.disk)
    assert name.endswith(f"-{number:020d}.bad")
    store.close()
    judge_whole(damaged)


def test_several_holes_of_a_segment_are_mended_at_once_and_others_stay() -> None:
    damaged = Damaged()
    for number in (1, 4, 18):
        damaged.flip(number)
    store = damaged.opened()
    log = held(store)
    assert [hole.first_no for hole in examined(log)] == [1, 4, 18]
    wanted = [patch for patch in patches(damaged, log) if patch.hole.first_no != 4]
    done = work_off(damaged.disk, log.mend(wanted))
    assert [mended.hole.first_no for mended in done] == [1], "those of the first one's segment"
    assert [hole.first_no for hole in log.holes()] == [4, 18]
    for _ in range(2):
        work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)


def test_a_hole_may_be_filled_from_its_front_and_the_rest_later() -> None:
    damaged = Damaged()
    store = damaged.opened()
    path = held(store).segments[0].path
    last_no = held(store).segments[0].next_no - 1
    store.close()
    for offset in range(RECORDS_AT + 150, RECORDS_AT + 1200, 40):
        damaged.disk.flip_bit(path, offset, 1)
    store = damaged.opened()
    log = held(store)
    (hole,) = examined(log)
    assert hole.last_no - hole.first_no > 3
    numbers = [no for no in damaged.records if hole.first_no <= no <= hole.last_no]
    part = Patch(hole, damaged.between(numbers[0], numbers[1]))
    (mended,) = work_off(damaged.disk, log.mend([part]))
    assert (mended.hole, mended.last_no) == (hole, numbers[2] - 1)
    (rest,) = log.holes()
    assert (rest.first_no, rest.last_no) == (numbers[2], hole.last_no)
    assert rest.last_no <= last_no
    store.close()
    store = damaged.opened()
    log = held(store)
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    store.close()
    judge_whole(damaged)


@pytest.mark.parametrize("start", [RECORDS_AT, RECORDS_AT + 150])
def test_a_hole_may_be_filled_from_its_middle_or_its_end_and_the_rest_later(start: int) -> None:
    damaged = Damaged()
    store = damaged.opened()
    path = held(store).segments[0].path
    store.close()
    for offset in range(start, start + 1000, 40):
        damaged.disk.flip_bit(path, offset, 1)
    store = damaged.opened()
    log = held(store)
    (hole,) = examined(log)
    numbers = [no for no in damaged.records if hole.first_no <= no <= hole.last_no]
    assert len(numbers) > 3
    middle, last = numbers[1], numbers[-1]
    for first_no, last_no in ((middle, numbers[2] - 1), (last, hole.last_no)):
        (there,) = (each for each in log.holes() if each.first_no <= first_no <= each.last_no)
        part = Patch(there, damaged.between(first_no, last_no))
        (mended,) = work_off(damaged.disk, log.mend([part]))
        assert mended[:3] == (there, first_no, last_no)
        store.close()
        store = damaged.opened()
        log = held(store)
    left = [(each.first_no, each.last_no) for each in log.holes()]
    assert left == [(hole.first_no, middle - 1), (numbers[2], last - 1)]
    while log.holes():
        assert work_off(damaged.disk, log.mend(patches(damaged, log)[:1]))
    store.close()
    judge_whole(damaged)


@pytest.mark.parametrize("place", [1, 2])
def test_a_segment_that_is_missing_is_written(place: int) -> None:
    damaged = Damaged()
    store = damaged.opened()
    gone = held(store).segments[place]
    store.close()
    damaged.disk.remove(gone.path)
    damaged.disk.remove(index_path(gone.path))
    store = damaged.opened()
    log = held(store)
    (hole,) = log.holes()
    assert (hole.first_no, hole.last_no) == (gone.first_no, gone.next_no - 1)
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)


def test_the_segment_that_is_written_to_is_mended_once_it_is_durable() -> None:
    damaged = Damaged(options=StoreOptions())
    store = damaged.opened()
    log = held(store)
    # A copy that goes on: its new segment is the active one.
    damaged.write(log, 2, 1, 2)
    trio.run(store.commit)
    damaged.disk.flip_bit(log.segments[-1].path, RECORDS_AT + 100, 2)
    assert [hole.first_no for hole in examined(log)] == [damaged.last_no + 1]
    damaged.write(log, 3)
    assert work_off(damaged.disk, log.mend(patches(damaged, log))) == [], "not durable yet"
    trio.run(store.commit)
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    damaged.write(log, 1)
    trio.run(store.commit)
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)


def test_what_a_copy_never_synced_stays_no_part_of_a_segment_that_is_mended() -> None:
    """A disk failed it once: behind its end there are records that stand in the next file too."""
    damaged = Damaged(options=StoreOptions())
    store = damaged.opened()
    log = held(store)
    damaged.write(log, 2, 1)
    trio.run(store.commit)
    written = int(log.next_no)
    write_numbered(log, 2, 3, size_bytes=60)
    log.poison("the sync of these has failed")
    log.take_up_again()
    assert log.next_no == written
    damaged.write(log, 2, 3, 1)
    trio.run(store.commit)
    old = log.segments[-2]
    before_bytes = damaged.disk.open(old.path).size_bytes()
    damaged.disk.flip_bit(old.path, RECORDS_AT + 100, 2)
    assert [hole.first_no for hole in examined(log)] == [damaged.last_no + 1]
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    mended = log.segments[-2]
    assert (mended.size_bytes, mended.next_no) == (old.size_bytes, old.next_no)
    assert read_ranges(log).records == damaged.records
    assert damaged.disk.open(mended.path).size_bytes() == before_bytes, "nothing was removed"
    store.close()
    store = damaged.opened()
    assert read_ranges(held(store)).records == damaged.records
    store.close()


def test_what_a_log_wrote_that_takes_no_more_is_mended_up_to_where_it_is_durable() -> None:
    """It stays as it is until the node starts again: its damage cannot wait for that."""
    damaged = Damaged(options=StoreOptions())
    store = damaged.opened()
    log = held(store)
    damaged.write(log, 2, 1, 2)
    trio.run(store.commit)
    durable = dict(damaged.records)
    damaged.write(log, 2, 3)
    damaged.disk.arm(DiskFault.SYNC_EIO)
    assert trio.run(store.commit).poisoned == [log]
    old = log.segments[-1]
    before_bytes = damaged.disk.open(old.path).size_bytes()
    damaged.disk.flip_bit(old.path, RECORDS_AT + 100, 2)
    assert [hole.first_no for hole in examined(log)] == [damaged.last_no + 1]
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert read_ranges(log).records == durable
    assert damaged.disk.open(old.path).size_bytes() == before_bytes, "nothing was removed"
    store.close()
    judge_whole(damaged)


def test_an_empty_segment_before_a_missing_one_is_filled() -> None:
    damaged = Damaged()
    store = damaged.opened()
    first, second = held(store).segments[:2]
    store.close()
    damaged.disk.remove(index_path(first.path))
    damaged.disk.truncate(first.path, RECORDS_AT)
    store = damaged.opened()
    log = held(store)
    assert log.segments[0].empty
    (hole,) = log.holes()
    assert (hole.first_no, hole.last_no) == (1, second.first_no - 1)
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert log.holes() == []
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)


def test_records_that_are_not_those_that_are_missing_change_nothing() -> None:
    damaged = Damaged()
    damaged.flip(4)
    store = damaged.opened()
    log = held(store)
    (hole,) = examined(log)
    good = damaged.between(4, hole.last_no)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for records in (
        b"",
        bytes(flipped),
        good[:-1],
        damaged.between(7, 9),
        damaged.between(4, 9),
        record(TEMPERATURE._replace(broker_id=bytes(16)), 4, [b"x"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadRecord):
            work_off(damaged.disk, log.mend([Patch(hole, records)]))
    assert log.holes() == [hole]
    assert quarantined(damaged.disk) == []


def test_a_reader_that_stands_behind_the_damage_goes_on_where_it_was() -> None:
    """The bytes behind it move when what takes its place has another length."""
    damaged = Damaged(options=StoreOptions())
    store = damaged.opened()
    path = held(store).segments[0].path
    store.close()
    for offset in range(RECORDS_AT + 100, RECORDS_AT + 900, 40):
        damaged.disk.flip_bit(path, offset, 1)
    store = damaged.opened()
    log = held(store)
    (hole,) = examined(log)
    starts = [no - 1 for no in damaged.records if no > hole.last_no]
    readers = [log.reader(after_no) for after_no in starts]
    for reader in readers:
        assert reader.next_range(1) is not None
    # Its front alone: what stands behind it moves to the front.
    part = Patch(hole, damaged.between(hole.first_no, hole.first_no))
    assert work_off(damaged.disk, log.mend([part]))
    for reader in readers:
        expected = reader.next_no
        while (found := reader.next_range(1)) is not None:
            assert not isinstance(found, Hole)
            data = bytearray(found.length)
            found.file.read_into(memoryview(data), found.offset)
            assert bytes(data) == damaged.between(expected, found.last_no)
            expected = MsgNo(found.last_no + 1)
        assert expected == log.next_no
    store.close()


def test_what_was_damaged_is_kept_as_long_as_its_segment() -> None:
    damaged = Damaged()
    damaged.flip(1)
    damaged.flip(18)
    clock = StoppedClock()
    store = FileStore(damaged.disk, clock, DIRECTORY, damaged.options)
    log = held(store)
    examined(log)
    for _ in range(2):
        work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert len(quarantined(damaged.disk)) == 2
    log.drop_first()
    assert len(quarantined(damaged.disk)) == 1
    clock.advance(10)
    store.expire(RetentionRules(age_s=1))
    assert quarantined(damaged.disk) == []
    store.close()


# The power goes -----------------------------------------------------------------------------------


def cut_after(steps: Steps[list[Mended]], disk: SimDisk, count: int) -> int:
    """Work off so many steps, then stop; how many there were."""
    done = 0
    try:
        step: Step = next(steps)
        while done < count:
            if isinstance(step, Sync):
                if step.file is not None:
                    step.file.sync()
                if step.directory is not None:
                    disk.sync_directory(step.directory)
            done += 1
            step = next(steps)
    except StopIteration:
        pass
    return done


def _flipped(damaged: Damaged) -> None:
    damaged.flip(4)


def _removed(damaged: Damaged) -> None:
    store = damaged.opened()
    gone = held(store).segments[1]
    store.close()
    damaged.disk.remove(gone.path)
    damaged.disk.sync_directory(gone.path.rpartition("/")[0])


@pytest.mark.parametrize("damage", [_flipped, _removed])
@pytest.mark.parametrize("seed", range(12))
def test_wherever_the_power_goes_there_is_the_old_segment_or_the_new_one(
    seed: int, damage: Callable[[Damaged], None]
) -> None:
    print(f"seed {seed}")
    count = 0
    while True:
        damaged = Damaged(seed)
        damage(damaged)
        store = damaged.opened()
        log = held(store)
        (hole,) = examined(log)
        steps = log.mend(patches(damaged, log))
        done = cut_after(steps, damaged.disk, count)
        if random.Random(f"{seed} {count}").random() < 0.3:
            damaged.disk.kill()
        else:
            damaged.disk.power_loss()
        store = damaged.opened()
        log = held(store)
        found = read_ranges(log)
        assert log.committed_no == damaged.last_no, f"after {count} steps"
        if found.holes:
            assert found.spans == [(hole.first_no, hole.last_no)], f"after {count} steps"
            lacking = set(damaged.records) - set(found.records)
            assert all(hole.first_no <= no <= hole.last_no for no in lacking)
        else:
            assert found.records == damaged.records
        assert read_log(log).spans == found.spans
        store.close()
        (verified,) = verify_directory(damaged.disk, DIRECTORY)
        assert len(verified.holes) == len(found.holes)
        # And it can be mended from there.
        if found.holes:
            store = damaged.opened()
            log = held(store)
            assert work_off(damaged.disk, log.mend(patches(damaged, log)))
            store.close()
        judge_whole(damaged)
        if done < count:
            break
        count += 1
    assert count > 4


@pytest.mark.parametrize(
    "fault", [DiskFault.APPEND_ENOSPC, DiskFault.SYNC_EIO, DiskFault.ENTRY_EIO, DiskFault.READ_EIO]
)
def test_a_disk_that_fails_while_it_is_mended_leaves_what_was_there(fault: DiskFault) -> None:
    for skip in range(6):
        damaged = Damaged(skip)
        damaged.flip(4)
        store = damaged.opened()
        log = held(store)
        (hole,) = examined(log)
        damaged.disk.arm(fault, lambda path: DIRECTORY in path, skip=skip)
        try:
            work_off(damaged.disk, log.mend(patches(damaged, log)))
        except OSError:
            assert log.holes() == [hole]
        damaged.disk._plan._traps.clear()  # it may not have sprung
        reading = read_ranges(log)
        assert reading.spans in ([], [(hole.first_no, hole.last_no)])
        store.close()
        damaged.disk.power_loss()
        store = damaged.opened()
        log = held(store)
        assert log.committed_no == damaged.last_no
        examined(log)
        assert read_ranges(log).spans in ([], [(hole.first_no, hole.last_no)])
        store.close()


# Sectors that cannot be read ----------------------------------------------------------------------


class BadSectorDisk(SimDisk):
    """Some bytes of one file cannot be read, ever."""

    bad: tuple[str, int, int] = ("", 0, 0)

    def open(self, path: str):  # type: ignore[no-untyped-def]
        file = super().open(path)
        bad_path, start, end = self.bad
        if path == bad_path:
            inner = file.read_into

            def read_into(view: memoryview, offset: int) -> int:
                if offset < end and offset + len(view) > start:
                    raise OSError(5, "Input/output error", path)
                return inner(view, offset)

            file.read_into = read_into  # type: ignore[method-assign]
        return file


def test_a_sector_that_cannot_be_read_costs_its_records_and_not_the_start() -> None:
    damaged = Damaged(options=StoreOptions())
    store = damaged.opened()
    log = held(store)
    damaged.write(log, *[3] * 400)
    trio.run(store.commit)
    path = log.segments[-1].path
    size = log.segments[-1].size_bytes
    last_no = log.committed_no
    store.close()
    disk = BadSectorDisk(1, clock=StoppedClock())
    disk._tree, disk._journal = damaged.disk._tree, damaged.disk._journal
    damaged.disk = disk
    disk.remove(index_path(path))
    assert size > 5 * 4096
    disk.bad = (path, 4096 * 3, 4096 * 3 + 512)
    store = damaged.opened()
    log = held(store)
    assert log.committed_no == last_no
    (hole,) = log.holes()
    assert hole.offset <= disk.bad[1]
    assert hole.reason.endswith(f"cannot be read: Input/output error at byte {disk.bad[1]}")
    assert 4096 <= hole.length < 4096 + 1000
    assert work_off(disk, log.mend(patches(damaged, log)))
    disk.bad = ("", 0, 0)
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)


def test_the_store_in_memory_can_be_mended_too() -> None:
    store = MemoryStore(SimDisk(), StoppedClock())
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    write_numbered(log, 2)
    log.skip_to(MsgNo(6))
    write_numbered(log, 2)
    trio.run(store.commit)
    (hole,) = log.holes()
    missing = record(TEMPERATURE, 3, [b"3", b"4", b"5"])
    with pytest.raises(BadRecord):
        work_off(SimDisk(), log.mend([Patch(hole, missing[:-1])]))
    assert work_off(SimDisk(), log.mend([Patch(hole, missing)]))
    assert read_ranges(log).spans == []


@pytest.mark.parametrize("cut_at", [RECORDS_AT, RECORDS_AT + 300, RECORDS_AT + 1000])
def test_a_file_that_is_cut_while_it_is_in_use_is_examined_and_mended(cut_at: int) -> None:
    damaged = Damaged()
    store = damaged.opened()
    log = held(store)
    segment = log.segments[0]
    damaged.disk.truncate(segment.path, cut_at)
    (hole,) = examined(log)
    assert hole.last_no == segment.next_no - 1
    for after_no in range(log.committed_no):
        first_no = max(hole.first_no, after_no + 1)
        spans = [(first_no, hole.last_no)] if after_no < hole.last_no else []
        assert read_ranges(log, after_no).spans == spans
    assert work_off(damaged.disk, log.mend(patches(damaged, log)))
    assert read_ranges(log).records == damaged.records
    store.close()
    judge_whole(damaged)
