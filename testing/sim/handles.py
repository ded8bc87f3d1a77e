"""Open files and locks of a simulated disk."""

import errno
import os
from collections.abc import Callable

import trio

from busnode.testing.sim.directory import File
from busnode.testing.sim.faults import DiskFault, FaultPlan
from busnode.testing.sim.tree import failure
from busnode.world.clock import Clock
from busnode.world.files import Bytes


class Boot:
    """The time from one start of the process to its end; handles and locks belong to it."""

    def __init__(self) -> None:
        self.crashed = trio.Event()
        self.locked: list[File] = []


class Handle:
    """What is common to open files: a path, and an end by `close` or by a crash."""

    def __init__(self, path: str, file: File, boot: Boot, plan: FaultPlan) -> None:
        self.path = path
        self._file = file
        self._boot = boot
        self._plan = plan
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed or self._boot.crashed.is_set():
            raise failure(errno.EBADF, self.path)


class SimAppendFile(Handle):
    def __init__(
        self,
        path: str,
        file: File,
        boot: Boot,
        plan: FaultPlan,
        *,
        clock: Clock,
        room: Callable[[], int | None],
    ) -> None:
        super().__init__(path, file, boot, plan)
        self._clock = clock
        self._room = room

    @property
    def size_bytes(self) -> int:
        return len(self._file.contents.cached)

    def append(self, data: Bytes) -> None:
        self._check_open()
        self._file.modified_us = self._clock.utc_us()
        room = self._room()
        if room is not None and room < len(data):
            self._plan.counts[DiskFault.APPEND_ENOSPC] += 1
            self._file.contents.append(data[:room])
            raise failure(errno.ENOSPC, self.path)
        if self._plan.strikes(DiskFault.APPEND_ENOSPC, self.path):
            self._file.contents.append(data[: self._plan.part_of(len(data))])
            raise failure(errno.ENOSPC, self.path)
        if self._plan.strikes(DiskFault.APPEND_EIO, self.path):
            self._file.contents.append(data[: self._plan.part_of(len(data))])
            raise failure(errno.EIO, self.path)
        self._file.contents.append(data)

    def sync(self) -> None:
        self.sync_to(self.size_bytes)

    def sync_to(self, end: int) -> None:
        """Sync what was there when the file ended at `end`."""
        self._check_open()
        if self._plan.strikes(DiskFault.SYNC_EIO, self.path):
            self._file.contents.fail_sync(end)
            raise failure(errno.EIO, self.path)
        self._file.contents.sync(end)


class SimReadFile(Handle):
    def size_bytes(self) -> int:
        self._check_open()
        return len(self._file.contents.cached)

    def read_into(self, view: memoryview, offset: int) -> int:
        self._check_open()
        if self._plan.strikes(DiskFault.READ_EIO, self.path):
            raise failure(errno.EIO, self.path)
        found = self._file.contents.cached[offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)

    def read_in_memory(self, offset: int, length: int) -> Bytes | None:
        if not self.is_in_memory(offset, length):
            return None
        found = bytearray(length)
        with memoryview(found) as view:
            self.read_into(view, offset)
        return found

    def is_in_memory(self, offset: int, length: int) -> bool:
        self._check_open()
        if self._plan.strikes(DiskFault.READ_COLD, self.path):
            return False
        return offset + length <= len(self._file.contents.cached)

    async def fetch(self, offset: int, length: int) -> None:
        """It takes virtual time; a crash ends it at once, with EBADF."""
        delay_s = self._plan.entropy.between(0.0, self._plan.odds.read_cold_s_max)
        with trio.move_on_after(delay_s):
            await self._boot.crashed.wait()
        self._check_open()
        if self._plan.strikes(DiskFault.READ_EIO, self.path):
            text = f"{os.strerror(errno.EIO)} at byte {offset}"
            raise OSError(errno.EIO, text, self.path)
        end = len(self._file.contents.cached)
        if offset + length > end:
            raise OSError(errno.ENODATA, f"the file ends at byte {end}", self.path)

    def fileno(self) -> int:
        """There is no kernel below: a simulated stream reads the file instead."""
        raise failure(errno.EBADF, self.path)


class SimLock:
    def __init__(self, file: File, boot: Boot) -> None:
        self._file = file
        self._boot = boot
        self._closed = False
        boot.locked.append(file)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._boot.locked.remove(self._file)
