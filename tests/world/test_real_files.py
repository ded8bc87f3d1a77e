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

from busnode.world.files import Bytes
from busnode.world.real_files import SYNC_THREADS, RealFiles

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
