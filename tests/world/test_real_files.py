"""What only the real file system can show."""

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from busnode.world import real_files
from busnode.world.files import Bytes
from busnode.world.real_files import FETCH_THREADS, LOOK_EVERY_BYTES, SYNC_THREADS, RealFiles
from busnode.world.real_threads import Threads

HOLD_LOCK = """
import sys
from busnode.world.real_files import RealFiles
lock = RealFiles().lock(sys.argv[1])
print("held" if lock else "taken", flush=True)
sys.stdin.read()
"""

SYNC_IN_CHILD = """
import os, sys, trio
from busnode.world.real_files import RealFiles
async def sync():
    file = RealFiles().append_to(sys.argv[1])
    file.append(b"x")
    outcomes = await RealFiles().sync_all([file])
    file.close()
    return outcomes
assert trio.run(sync) == [None]
child = os.fork()
if child == 0:
    os._exit(0 if trio.run(sync) == [None] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Held:
    """A file whose sync ends when the test lets it, in whatever thread it runs."""

    path = "held"
    size_bytes = 0

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def append(self, data: Bytes) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        self.entered.set()
        assert self.let_go.wait(60)

    def close(self) -> None:
        pass


def test_a_full_disk_is_called_full() -> None:
    file = RealFiles().append_to("/dev/full")
    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
        file.append(b"x")
    file.close()


@pytest.mark.parametrize(("free_blocks", "code"), [(0, errno.ENOSPC), (1_000_000, errno.EIO)])
def test_a_short_write_is_called_what_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_blocks: int, code: int
) -> None:
    space = os.statvfs(tmp_path)
    counted = list(space)
    counted[4] = free_blocks
    monkeypatch.setattr(os, "fstatvfs", lambda fd: os.statvfs_result(counted))
    file = RealFiles().append_to(str(tmp_path / "x"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="only 10 of 11 bytes") as raised:
            file.append(b"x" * 11)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == code
    assert raised.value.filename == str(tmp_path / "x")
    file.close()


def test_nothing_is_inherited_by_another_program(tmp_path: Path) -> None:
    files = RealFiles()
    file, reader = files.append_to(str(tmp_path / "x")), files.open(str(tmp_path / "x"))
    lock = files.lock(str(tmp_path / "lock"))
    assert lock is not None
    listing = ["ls", "-l", "/proc/self/fd"]
    inherited = subprocess.run(listing, check=True, capture_output=True, close_fds=False, text=True)
    assert "->" in inherited.stdout
    assert str(tmp_path) not in inherited.stdout
    file.close()
    reader.close()
    lock.close()


def test_what_cannot_be_known_is_not_called_absent(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"Errno {errno.ENAMETOOLONG}"):
        RealFiles().exists(str(tmp_path / ("x" * 300)))


def test_a_lock_is_held_against_other_processes_and_falls_with_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert RealFiles().lock(path) is None
        assert Path(path).read_text() == f"{holder.pid}\n"
        holder.kill()
        holder.wait()
        lock = RealFiles().lock(path)
        assert lock is not None
    assert Path(path).read_text() == f"{os.getpid()}\n"
    lock.close()


async def test_the_loop_goes_on_while_a_file_is_synced() -> None:
    files = [Held() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(RealFiles().sync_all, files)
        for file in files:
            while not file.entered.is_set():
                await trio.sleep(0)
            file.let_go.set()


async def test_files_are_synced_in_parallel() -> None:
    """Each of them ends only when all were begun."""
    files = [Held() for _ in range(SYNC_THREADS)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(RealFiles().sync_all, files)
        while not all(file.entered.is_set() for file in files):
            await trio.sleep(0)
        for file in files:
            file.let_go.set()


async def test_a_cancelled_sync_gives_no_file_back_before_it_has_ended() -> None:
    file = Held()
    returned = trio.Event()

    async def sync() -> None:
        await RealFiles().sync_all([file])
        returned.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert not returned.is_set()
        file.let_go.set()
    assert returned.is_set()


async def test_a_bug_in_a_file_reaches_who_waits_and_costs_no_thread(tmp_path: Path) -> None:
    class Buggy(Held):
        def sync(self) -> None:
            raise ZeroDivisionError

    for _ in range(SYNC_THREADS + 1):
        with pytest.raises(ZeroDivisionError):
            await RealFiles().sync_all([Buggy()])
    file = RealFiles().append_to(str(tmp_path / "x"))
    assert await RealFiles().sync_all([file]) == [None]
    file.close()


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", SYNC_IN_CHILD, str(tmp_path / "x")]
    subprocess.run(arguments, check=True, timeout=60)


# What is cold -------------------------------------------------------------------------------------


def cold_file(path: Path, size_bytes: int) -> str:
    """A file that the kernel has forgotten, as far as it does what it is asked for."""
    path.write_bytes(bytes(size_bytes))
    forget(path, 0, 0)
    return str(path)


def forget(path: Path, offset: int, length: int) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)


def can_tell(directory: Path) -> bool:
    """Whether this file system tells what is in memory, and forgets what it is asked to."""
    path = cold_file(directory / "probe", 4096)
    return not RealFiles().open(path).is_in_memory(0, 4096)


async def test_what_is_cold_is_known_to_be_and_is_in_memory_once_fetched(tmp_path: Path) -> None:
    if not can_tell(tmp_path):
        pytest.skip("this file system keeps everything in memory")
    size_bytes = 8 * LOOK_EVERY_BYTES
    file = RealFiles().open(cold_file(tmp_path / "x", size_bytes))
    assert not file.is_in_memory(0, size_bytes)
    await file.fetch(0, size_bytes)
    assert file.is_in_memory(0, size_bytes)
    assert file.read_in_memory(0, size_bytes) == bytes(size_bytes)
    for hole in range(8):
        # Whoever asks makes the kernel read ahead, so each question needs its own hole.
        forget(tmp_path / "x", hole * LOOK_EVERY_BYTES, LOOK_EVERY_BYTES)
        assert not file.is_in_memory(0, size_bytes), f"{hole} is forgotten"
        await file.fetch(0, size_bytes)
        forget(tmp_path / "x", hole * LOOK_EVERY_BYTES, LOOK_EVERY_BYTES)
        assert file.read_in_memory(0, size_bytes) is None, "a part of it is none of it"
        await file.fetch(0, size_bytes)


class SlowDisk:
    """`os.preadv` as a disk makes it: who may wait does, until the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cold_from: int = 0) -> None:
        self.entered = 0
        self.let_go = threading.Event()
        self.error: OSError | None = None
        self._cold_from = cold_from
        self._preadv = os.preadv
        monkeypatch.setattr(os, "preadv", self._read)

    def _read(self, fd: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            if offset >= self._cold_from:
                raise BlockingIOError
            return self._preadv(fd, buffers, offset, flags)
        assert threading.current_thread() is not threading.main_thread()
        self.entered += 1
        assert self.let_go.wait(60)
        if self.error is not None and offset >= self._cold_from:
            raise self.error
        end = self._cold_from - offset if offset < self._cold_from else 1 << 40
        return min(end, self._preadv(fd, buffers, offset))


async def test_the_loop_goes_on_while_bytes_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many at once as there are threads, and one more that waits its turn."""
    (tmp_path / "x").write_bytes(bytes(100_000))
    file = RealFiles().open(str(tmp_path / "x"))
    disk = SlowDisk(monkeypatch)
    async with trio.open_nursery() as nursery:
        for _ in range(FETCH_THREADS + 1):
            nursery.start_soon(file.fetch, 0, 100_000)
        while disk.entered < FETCH_THREADS:
            await trio.sleep(0)
        assert not file.is_in_memory(0, 100_000)
        disk.let_go.set()
    assert disk.entered == FETCH_THREADS + 1


async def test_who_is_cancelled_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    file = RealFiles().open(str(tmp_path / "x"))
    disk = SlowDisk(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.fetch, 0, 100)
        while not disk.entered:
            await trio.sleep(0)
        nursery.cancel_scope.cancel()
    disk.let_go.set()
    await file.fetch(0, 100)


async def test_who_gives_up_leaves_no_descriptor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    file = RealFiles().open(str(tmp_path / "x"))
    await file.fetch(0, 100)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        disk = SlowDisk(monkeypatch)
        async with trio.open_nursery() as nursery:
            for _ in range(FETCH_THREADS):
                nursery.start_soon(file.fetch, 0, 100)
            while disk.entered < FETCH_THREADS:
                await trio.sleep(0)
            nursery.cancel_scope.cancel()
        disk.let_go.set()
        monkeypatch.undo()
        with trio.fail_after(10):
            while len(os.listdir("/proc/self/fd")) > before:
                await trio.sleep(0.001)


async def test_without_descriptors_syncing_goes_on_and_fetching_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(count: int, flags: int) -> int:
        raise OSError(errno.EMFILE, f"no eventfd ({count}, {flags})")

    appended = RealFiles().append_to(str(tmp_path / "x"))
    appended.append(b"x")
    missing = str(tmp_path / "missing")
    file = RealFiles().open(str(tmp_path / "x"))
    monkeypatch.setattr(os, "eventfd", none_left)
    monkeypatch.setattr(real_files, "_syncing", Threads(2, "test"))
    monkeypatch.setattr(real_files, "_fetching", Threads(2, "test"))
    done, failed = await RealFiles().sync_all([appended], [missing])
    assert done is None
    assert failed is not None
    assert failed.errno == errno.ENOENT
    with pytest.raises(OSError, match=f"Errno {errno.EMFILE}"):
        await file.fetch(0, 1)
    appended.close()


async def test_an_error_names_the_byte_at_which_it_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(100_000))
    file = RealFiles().open(str(tmp_path / "x"))
    disk = SlowDisk(monkeypatch, cold_from=81_920)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    disk.let_go.set()
    with pytest.raises(OSError, match="error at byte 81920") as raised:
        await file.fetch(50_000, 50_000)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path / "x"))


async def test_where_the_system_cannot_tell_little_is_read_and_much_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def read(fd: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)
    (tmp_path / "x").write_bytes(b"contents")
    file = RealFiles().open(str(tmp_path / "x"))
    assert file.read_in_memory(0, 8) == b"contents"
    assert file.read_in_memory(0, 9) is None
    assert not file.is_in_memory(0, 8)
    await file.fetch(0, 8)
