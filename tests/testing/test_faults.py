"""Faults of a simulated disk: armed, drawn from the seed, and counted."""

import errno
from collections.abc import Callable

import pytest
import trio
import trio.testing

from busnode.testing.sim import DiskFault, DiskFaults, SimDisk
from busnode.testing.sim.simulation import simulate
from busnode.world.files import AppendFile, ReadFile, read_whole


def contents(disk: SimDisk, path: str) -> bytes:
    return read_whole(disk, path, 1 << 20)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(DiskFault.APPEND_ENOSPC, errno.ENOSPC), (DiskFault.APPEND_EIO, errno.EIO)],
)
def test_an_append_fails_after_a_part_of_it(fault: DiskFault, code: int) -> None:
    sizes: set[int] = set()
    for seed in range(50):
        disk = SimDisk(seed)
        file = disk.append_to("/x")
        file.append(b"good")
        disk.arm(fault)
        with pytest.raises(OSError, match=f"Errno {code}"):
            file.append(b"0123456789")
        found = contents(disk, "/x")
        assert (b"good" + b"0123456789").startswith(found)
        assert file.size_bytes == len(found)
        assert disk.faults == {fault: 1}
        sizes.add(len(found))
    assert sizes == set(range(4, 14)), "never all of it"


@pytest.mark.parametrize(
    ("fault", "code"),
    [(DiskFault.ENTRY_ENOSPC, errno.ENOSPC), (DiskFault.ENTRY_EIO, errno.EIO)],
)
@pytest.mark.parametrize(
    "operation",
    [
        lambda disk: disk.append_to("/new"),
        lambda disk: disk.make_directory("/new"),
        lambda disk: disk.rename("/old", "/new"),
        lambda disk: disk.lock("/new"),
    ],
    ids=["create", "make directory", "rename", "lock"],
)
def test_a_name_that_cannot_be_given_changes_nothing(
    fault: DiskFault, code: int, operation: Callable[[SimDisk], object]
) -> None:
    disk = SimDisk()
    disk.append_to("/old").close()
    disk.arm(fault, lambda path: path == "/new")
    with pytest.raises(OSError, match=f"Errno {code}"):
        operation(disk)
    assert disk.names("/") == ["old"]
    assert disk.faults == {fault: 1}
    operation(disk)
    assert "new" in disk.names("/")


def test_a_file_that_is_there_is_opened_without_making_a_name() -> None:
    disk = SimDisk()
    disk.append_to("/old").close()
    disk.arm(DiskFault.ENTRY_EIO)
    disk.append_to("/old").close()
    disk.make_directory("/")
    assert not disk.faults


def test_a_read_can_fail_and_the_next_one_succeed() -> None:
    disk = SimDisk()
    file = disk.append_to("/x")
    file.append(b"x")
    disk.arm(DiskFault.READ_EIO)
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        contents(disk, "/x")
    assert contents(disk, "/x") == b"x"


@pytest.mark.parametrize("crash", [False, True])
def test_what_is_cold_takes_virtual_time_to_fetch(crash: bool) -> None:
    async def main() -> None:
        disk = SimDisk(odds=DiskFaults(read_cold=1.0, read_cold_s_max=100.0))
        disk.append_to("/x").append(b"contents")
        file = disk.open("/x")
        assert not file.is_in_memory(0, 8)
        assert file.read_in_memory(0, 8) is None
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            if crash:
                nursery.start_soon(fetch_in_vain, file)
                await trio.testing.wait_all_tasks_blocked()
                disk.kill()
            else:
                nursery.start_soon(file.fetch, 0, 8)
        assert (trio.current_time() > began) is not crash

    async def fetch_in_vain(file: ReadFile) -> None:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            await file.fetch(0, 8)

    simulate(1, main)


def test_a_fault_strikes_where_and_when_it_was_armed() -> None:
    disk = SimDisk()
    one, other = disk.append_to("/one"), disk.append_to("/other")
    disk.arm(DiskFault.SYNC_EIO, lambda path: path == "/one", skip=1, count=2)
    struck: list[bool] = []
    for _ in range(5):
        other.sync()
        try:
            one.sync()
        except OSError:
            struck.append(True)
        else:
            struck.append(False)
    assert struck == [False, True, True, False, False]
    assert disk.faults == {DiskFault.SYNC_EIO: 2}


def test_what_strikes_no_operation_cannot_be_armed() -> None:
    with pytest.raises(AttributeError):
        SimDisk().arm(DiskFault.POWER_LOSS)


def test_a_bit_flips_at_rest_and_only_in_what_is_durable() -> None:
    disk = SimDisk()
    file = disk.append_to("/x")
    file.append(b"\x00\x00")
    file.sync()
    file.append(b"\x00")
    disk.sync_directory("/")
    disk.flip_bit("/x", 1, 3)
    assert contents(disk, "/x") == b"\x00\x08\x00"
    disk.power_loss()
    assert contents(disk, "/x")[:2] == b"\x00\x08"
    assert disk.faults[DiskFault.BIT_FLIP] == 1
    file = disk.append_to("/x")
    file.append(b"x")
    for offset, bit in ((file.size_bytes - 1, 0), (99, 0), (-1, 0), (0, 8)):
        with pytest.raises(ValueError, match=r"durable|no bit"):
            disk.flip_bit("/x", offset, bit)


def test_what_is_in_doubt_is_not_at_rest() -> None:
    disk = SimDisk()
    file = disk.append_to("/x")
    file.append(b"x")
    disk.arm(DiskFault.SYNC_EIO)
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        file.sync()
    with pytest.raises(ValueError, match="durable"):
        disk.flip_bit("/x", 0, 0)


@pytest.mark.parametrize(
    "fault",
    [
        DiskFault.APPEND_ENOSPC,
        DiskFault.APPEND_EIO,
        DiskFault.SYNC_EIO,
        DiskFault.ENTRY_ENOSPC,
        DiskFault.ENTRY_EIO,
        DiskFault.READ_EIO,
    ],
)
def test_each_fault_is_drawn_as_often_as_its_odds_say(fault: DiskFault) -> None:
    disk = SimDisk(5)
    disk.odds = DiskFaults(**{fault: 0.5})
    failures = 0
    for number in range(200):
        try:
            file = disk.append_to(f"/{number}")
            file.append(b"x")
            file.sync()
            contents(disk, f"/{number}")
        except OSError:
            failures += 1
    assert failures == disk.faults[fault] == disk.faults.total()
    assert 60 < failures < 140


async def test_a_slow_sync_takes_virtual_time_and_what_comes_meanwhile_stays_dirty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for seed in range(50):
        disk = SimDisk(seed, DiskFaults(sync_slow=1.0, sync_slow_s_max=100.0))
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.append_to("/d/x")
        file.append(b"before")
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.sync_all, [file], ["/d"])
            await trio.testing.wait_all_tasks_blocked()
            file.append(b" after")
            disk.append_to("/d/y").close()
        assert 0 < trio.current_time() - begun <= 100
        assert disk.faults[DiskFault.SYNC_SLOW] == 1
        disk.power_loss()
        found = contents(disk, "/d/x")
        assert found.startswith(b"before")
        if found == b"before" and not disk.exists("/d/y"):
            return
    pytest.fail("no seed has lost what came while the sync was slow")


async def gather(disk: SimDisk, file: AppendFile, results: list[OSError | None]) -> None:
    results += await disk.sync_all([file], ["/"])


async def test_before_a_slow_sync_has_ended_nothing_is_promised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lost = 0
    for seed in range(50):
        disk = SimDisk(seed)
        file = disk.append_to("/x")
        disk.sync_directory("/")
        file.append(b"x" * 100)
        disk.arm(DiskFault.SYNC_SLOW)
        results: list[OSError | None] = []

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather, disk, file, results)
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
            disk.power_loss()
        assert trio.current_time() == begun, "a crash ends the wait"
        assert [error and error.errno for error in results] == [errno.EBADF] * 2
        lost += contents(disk, "/x") != b"x" * 100
    assert lost


async def test_a_sync_that_fails_in_sync_all_leaves_the_bytes_in_doubt() -> None:
    disk = SimDisk(1)
    files = [disk.append_to(path) for path in ("/x", "/y")]
    for file in files:
        file.append(b"x")
    disk.arm(DiskFault.SYNC_EIO, lambda path: path == "/y")
    first, second = await disk.sync_all(files)
    assert first is None
    assert second is not None
    assert second.errno == errno.EIO
    assert await disk.sync_all(files) == [None, None]
    disk.flip_bit("/x", 0, 0)
    with pytest.raises(ValueError, match="durable"):
        disk.flip_bit("/y", 0, 0)
