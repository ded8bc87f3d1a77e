"""Much that is appended goes to the disk before anybody syncs it."""

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from busnode.world import real_writing_out
from busnode.world.real_files import RealFiles
from busnode.world.real_threads import Threads
from busnode.world.real_writing_out import WRITE_OUT_BYTES

SYS_CACHESTAT = 451


class CacheStat(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writing", "evicted", "recently_evicted")
    ]


def dirty_pages(path: Path) -> int:
    """Pages of a file that nobody has begun to write."""
    found = CacheStat()
    everything = (ctypes.c_uint64 * 2)(0, 0)
    fd = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(SYS_CACHESTAT, fd, everything, ctypes.byref(found), 0):
            pytest.skip(f"cachestat: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)
    return int(found.dirty)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def descriptors_of(path: Path) -> list[str]:
    """Those of one file, and those that wake threads: others may still be closed meanwhile."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one with which they are listed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(each for each in found if each in (str(path), "anon_inode:[eventfd]"))


async def test_much_is_written_without_a_sync_and_little_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    file = RealFiles().append_to(str(path))
    file.append(bytes(WRITE_OUT_BYTES - 4096))
    if not dirty_pages(path):
        pytest.skip("this file system keeps nothing in memory, or all of it")
    file.append(bytes(4096))
    file.append(bytes(4096))
    with trio.fail_after(10):  # the system itself begins after 30 s
        while dirty_pages(path) > 1:
            await trio.sleep(0.001)
    assert dirty_pages(path) == 1
    file.close()


def test_what_was_synced_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_asked_for(fd: int) -> int:
        raise AssertionError(f"{fd} is written out")

    file = RealFiles().append_to(str(tmp_path / "x"))
    with monkeypatch.context() as context:
        context.setattr(os, "dup", not_asked_for)
        for _ in range(4):
            file.append(bytes(WRITE_OUT_BYTES - 4096))
            file.sync()
        file.append(bytes(4096))
    file.close()


async def test_a_file_may_be_closed_while_it_is_written_out(tmp_path: Path) -> None:
    before = descriptors()
    for number in range(10):
        file = RealFiles().append_to(str(tmp_path / str(number)))
        file.append(bytes(WRITE_OUT_BYTES))
        file.close()
        assert (tmp_path / str(number)).stat().st_size == WRITE_OUT_BYTES
    with trio.fail_after(10):
        while descriptors() > before + 1:  # what wakes the thread stays
            await trio.sleep(0.001)


@pytest.mark.parametrize("missing", ["dup", "eventfd"])
def test_without_descriptors_the_sync_does_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def none_left(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    file = RealFiles().append_to(str(tmp_path / "x"))
    before = descriptors_of(tmp_path / "x")
    monkeypatch.setattr(real_writing_out, "_threads", Threads(1, "test"))
    with monkeypatch.context() as context:
        context.setattr(os, missing, none_left)
        file.append(bytes(WRITE_OUT_BYTES))
    assert descriptors_of(tmp_path / "x") == before
    file.append(b"and on it goes")  # and it is tried again
    file.sync()
    file.close()
