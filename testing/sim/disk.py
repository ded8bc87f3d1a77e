"""A simulated disk of one machine: it keeps what fsync promises, and nothing more."""

import errno
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import trio

from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.directory import Directory, File, Inode, Journal
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.faults import DiskFault, DiskFaults, FaultPlan, Trap, anywhere
from busnode.testing.sim.handles import Boot, SimAppendFile, SimLock, SimReadFile
from busnode.testing.sim.tree import Tree, failure, parts
from busnode.world.clock import Clock
from busnode.world.files import AppendFile, Lock, ReadFile


class SimDisk:
    """The seam `Files`, in memory, with faults.

    What survives `power_loss` is told in `contents` (bytes) and `directory` (names). `kill` is
    the death of the process alone: all that was written stays, synced or not, and what was dirty
    is still dirty. After either one every handle and lock is gone: a handle raises EBADF.

    Everything that happens by chance comes from the seed. Only `sync_all` needs an event loop.
    """

    def __init__(
        self,
        seed: int | str = 0,
        odds: DiskFaults | None = None,
        *,
        clock: Clock | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        self._plan = FaultPlan(SimEntropy(seed).fork("disk"), odds or DiskFaults())
        self._clock = clock or SimClock()
        self._tree = Tree(Directory(self._clock.utc_us()))
        self._journal = Journal()
        self._boot = Boot()
        self._failed_syncs = 0
        self.capacity_bytes = capacity_bytes
        """All files together; None is without end. An append beyond it is short: ENOSPC."""
        self.on_gone: Callable[[str, File, int, File | None], None] = _nobody
        """Told of a file whose bytes from some point on a program is about to do away with, and of
        the one that takes its place, if one does."""

    # What a test does to it

    @property
    def faults(self) -> Counter[DiskFault]:
        """How often each kind of fault has struck."""
        return self._plan.counts

    @property
    def has_doubts(self) -> bool:
        """Whether a sync has failed since the power was last lost: what it was for is in doubt."""
        return self.faults[DiskFault.SYNC_EIO] > self._failed_syncs

    @property
    def odds(self) -> DiskFaults:
        return self._plan.odds

    @odds.setter
    def odds(self, odds: DiskFaults) -> None:
        self._plan.odds = odds

    def arm(
        self,
        fault: DiskFault,
        where: Callable[[str], bool] = anywhere,
        *,
        count: int = 1,
        skip: int = 0,
    ) -> None:
        """Let the fault strike the next `count` operations on such a path, after `skip` of them.

        For a rename the path is the new one.
        """
        self._plan.arm(Trap(fault, where, skip, count))

    def disarm(self) -> None:
        """What was armed and has not struck never will."""
        self._plan.disarm()

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Damage one durable byte at rest; ValueError when it is not durable."""
        self._tree.file(path).contents.flip_bit(offset, bit)
        self.faults[DiskFault.BIT_FLIP] += 1

    def durable_files(self) -> Iterator[tuple[str, File]]:
        """The files that a power loss would certainly leave, whatever it does to their contents."""
        waiting: list[tuple[str, Inode]] = [("", self._tree.root)]
        while waiting:
            path, inode = waiting.pop()
            if isinstance(inode, File):
                yield path, inode
            else:
                names = self._journal.certain(inode)
                waiting += ((f"{path}/{name}", each) for name, each in names.items())

    @property
    def names_version(self) -> int:
        """As long as it is the same, the same names are durable."""
        return self._journal.version

    def durable_entries(self, path: str) -> dict[str, Inode]:
        """What a directory would certainly hold after a power loss; nothing where there is none."""
        found: Inode = self._tree.root
        for part in parts(path):
            entries = {} if isinstance(found, File) else self._journal.certain(found)
            if part not in entries:
                return {}
            found = entries[part]
        return {} if isinstance(found, File) else self._journal.certain(found)

    def copy(self, seed: str, clock: Clock) -> "SimDisk":
        """Another disk with the same files, all of them durable: as somebody clones a machine."""
        made = SimDisk(seed, clock=clock)
        for path in self._paths("", self._tree.root):
            made.make_directory(posixpath.dirname(path))
            file = made.append_to(path)
            file.append(self._tree.file(path).contents.cached)
            file.sync()
            file.close()
        for inode in made._tree.inodes():
            if isinstance(inode, Directory):
                made._journal.sync(inode, made._journal.mark)
        return made

    def _paths(self, path: str, directory: Directory) -> Iterator[str]:
        for name, inode in sorted(directory.entries.items(), key=lambda each: each[0]):
            if isinstance(inode, File):
                yield f"{path}/{name}"
            else:
                yield from self._paths(f"{path}/{name}", inode)

    def kill(self) -> None:
        """The process dies; the machine stays up."""
        self.faults[DiskFault.KILL] += 1
        self._restart()

    def power_loss(self) -> None:
        """The machine stops, and comes back with what its disk then holds."""
        self.faults[DiskFault.POWER_LOSS] += 1
        self._failed_syncs = self.faults[DiskFault.SYNC_EIO]
        self._restart()
        self._journal.power_loss(self._plan)
        for inode in self._tree.inodes(durable=True):
            match inode:
                case Directory():
                    inode.entries = dict(inode.durable)
                case File():
                    inode.contents.power_loss(self._plan)

    # What a node does with it

    def append_to(self, path: str) -> AppendFile:
        directory, name = self._tree.place(path)
        found = directory.entries.get(name)
        if found is None:
            found = File(self._clock.utc_us())
            self._enter(path, directory, name, found)
        if isinstance(found, Directory):
            raise failure(errno.EISDIR, path)
        return SimAppendFile(
            path, found, self._boot, self._plan, clock=self._clock, room=self._room
        )

    def open(self, path: str) -> ReadFile:
        return SimReadFile(path, self._tree.file(path), self._boot, self._plan)

    def names(self, directory: str) -> list[str]:
        return sorted(self._tree.directory(directory).entries)

    def exists(self, path: str) -> bool:
        try:
            self._tree.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_directory(self, path: str) -> None:
        made = ""
        for part in parts(path):
            made += f"/{part}"
            directory, name = self._tree.place(made)
            found = directory.entries.get(name)
            if found is None:
                self._enter(made, directory, name, Directory(self._clock.utc_us()))
            elif isinstance(found, File):
                raise failure(errno.ENOTDIR if made != path else errno.EEXIST, made)

    def rename(self, old: str, new: str) -> None:
        inode = self._tree.find(old)
        directory, name = self._tree.place(new)
        replaced = directory.entries.get(name)
        if replaced is inode:
            return
        match inode, replaced:
            case File(), Directory():
                raise failure(errno.EISDIR, new)
            case Directory(), File():
                raise failure(errno.ENOTDIR, new)
            case Directory(), Directory() if replaced.entries:
                raise failure(errno.ENOTEMPTY, new)
            case Directory(), _ if f"{new}/".startswith(f"{old}/"):
                raise failure(errno.EINVAL, new)
            case _:
                pass
        self._strike_entry(new)
        if isinstance(replaced, File):
            self.on_gone(new, replaced, 0, inode if isinstance(inode, File) else None)
        linked = self._journal.link(directory, name, inode)
        self._journal.unlink(*self._tree.place(old), moved_by=linked)

    def remove(self, path: str) -> None:
        found = self._tree.find(path)
        if isinstance(found, Directory) and found.entries:
            raise failure(errno.ENOTEMPTY, path)
        if isinstance(found, File):
            self.on_gone(path, found, 0, None)
        self._journal.unlink(*self._tree.place(path))

    def truncate(self, path: str, size_bytes: int) -> None:
        file = self._tree.file(path)
        if size_bytes > len(file.contents.cached):
            raise failure(errno.EINVAL, path)
        self.on_gone(path, file, size_bytes, None)
        file.contents.cut(size_bytes)
        file.modified_us = self._clock.utc_us()
        if self._plan.strikes(DiskFault.SYNC_EIO, path):
            file.contents.fail_sync()
            raise failure(errno.EIO, path)
        file.contents.sync()

    def modified_us(self, path: str) -> int:
        return self._tree.find(path).modified_us

    def sync_directory(self, directory: str) -> None:
        self._sync_directory(directory, self._boot, self._journal.mark)

    def lock(self, path: str) -> Lock | None:
        self.append_to(path).close()
        file = self._tree.file(path)
        if any(held is file for held in self._boot.locked):
            return None
        return SimLock(file, self._boot)

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        """As the real one it cannot be cancelled; a crash ends it at once, with EBADF.

        What is appended or named while it waits stays dirty.
        """
        boot, mark = self._boot, self._journal.mark
        ends = [file.size_bytes for file in files]
        slow = [self._plan.strikes(DiskFault.SYNC_SLOW, file.path) for file in files]
        with trio.CancelScope(shield=True) as scope:
            await trio.lowlevel.checkpoint()
            if any(slow):
                delay_s = self._plan.entropy.between(0.0, self.odds.sync_slow_s_max)
                scope.deadline = trio.current_time() + delay_s
                await boot.crashed.wait()
        syncs: list[Callable[[], None]] = []
        for file, end in zip(files, ends, strict=True):
            assert isinstance(file, SimAppendFile)
            syncs.append(partial(file.sync_to, end))
        syncs += [partial(self._sync_directory, each, boot, mark) for each in directories]
        outcomes: list[OSError | None] = []
        for sync in syncs:
            try:
                sync()
            except OSError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    # Inside

    def _sync_directory(self, path: str, boot: Boot, mark: int) -> None:
        """Sync what was there at the mark."""
        if boot is not self._boot:
            raise failure(errno.EBADF, path)
        directory = self._tree.directory(path)
        if self._plan.strikes(DiskFault.SYNC_EIO, path):
            self._journal.fail_sync(directory, mark)
            raise failure(errno.EIO, path)
        self._journal.sync(directory, mark)

    def _restart(self) -> None:
        self._boot.crashed.set()
        self._boot = Boot()

    def _enter(self, path: str, directory: Directory, name: str, inode: Inode) -> None:
        self._strike_entry(path)
        self._journal.link(directory, name, inode)

    def _strike_entry(self, path: str) -> None:
        if self._plan.strikes(DiskFault.ENTRY_ENOSPC, path):
            raise failure(errno.ENOSPC, path)
        if self._plan.strikes(DiskFault.ENTRY_EIO, path):
            raise failure(errno.EIO, path)

    def _room(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - self._tree.size_bytes())


def _nobody(path: str, file: File, size_bytes: int, by: File | None) -> None:
    del path, file, size_bytes, by
