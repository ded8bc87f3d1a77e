"""What was appended goes to the disk before it is synced, where there is much of it.

A sync that finds 128 MiB to be written gives them to the disk at once, and whoever syncs something
small meanwhile waits behind them. So the system is asked to begin with every few megabytes. It only
begins what the sync would: that still waits for all of it, and has the error where there is one.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial

from busnode.world.real_threads import Threads

WRITE_OUT_BYTES = 4 * 1024 * 1024
"""When it begins. A log that is published to is synced before it has so much, so this is for copies
that catch up. Measured beside one on the same disk: syncs of a publisher's log took up to 41 ms
without, and 8 with it (ADR 0013)."""

SYNC_FILE_RANGE_WRITE = 2


class WritingOut:
    """Of one file, which is told what happens to it."""

    __slots__ = ("_begun_bytes", "_is_busy")

    def __init__(self, size_bytes: int) -> None:
        self._begun_bytes = size_bytes
        """Up to where the file is on the disk, or on its way."""
        self._is_busy = False
        """Whether a thread has some of it to begin with: one at a time for a file."""

    def appended(self, fd: int, size_bytes: int) -> None:
        if size_bytes - self._begun_bytes >= WRITE_OUT_BYTES and not self._is_busy:
            self._begin(fd, size_bytes)

    def syncing(self, size_bytes: int) -> None:
        """In whatever thread: all of it is about to be written."""
        self._begun_bytes = size_bytes

    def _begin(self, fd: int, size_bytes: int) -> None:
        """In a thread, since it waits where the disk has no room for more requests, and with a
        descriptor of its own, since the file may be closed before that has its turn."""
        try:
            own_fd = os.dup(fd)
        except OSError:
            return  # the sync has more to do
        self._is_busy = True
        try:
            _threads.leave(partial(self._write_out, own_fd, self._begun_bytes, size_bytes))
        except (OSError, RuntimeError):  # no descriptor or no thread is left
            os.close(own_fd)
            self._is_busy = False
        else:
            self._begun_bytes = size_bytes

    def _write_out(self, fd: int, start: int, end: int) -> None:
        """Runs in a thread."""
        write_out = _sync_file_range()
        if write_out is not None:
            write_out(fd, start, end - start, SYNC_FILE_RANGE_WRITE)
        os.close(fd)
        self._is_busy = False


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Python does not have it. The advice DONTNEED, which it has, begins to write too, and throws
    out of memory what is through. None where the C library lacks it."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call: Callable[[int, int, int, int], int] = function
    return call


_threads = Threads(1, "busnode-write-out")
