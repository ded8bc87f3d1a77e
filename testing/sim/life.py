"""The disk and the network as one process has them: with its death both are gone for it.

A simulated process is ended by cancelling its tasks, and they do what tasks do when they are
cancelled: close, sync, say goodbye. A process that is killed does none of that. So from its death
on its files fail and its dials hang, whatever its tasks try.
"""

import errno
from collections.abc import Sequence

import trio

from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.network import SimHost
from busnode.world.files import AppendFile, Lock, ReadFile
from busnode.world.network import Address, Crowd, Listener, Stream, Tls
from busnode.world.task_crowd import TaskCrowd
from busnode.world.tls import TlsTerms


class DiskOfLife:
    """The seam `Files` of one process. Open handles end with the disk's own `kill`."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def _there(self) -> SimDisk:
        if self._is_dead:
            raise OSError(errno.EBADF, "this process is dead")
        return self._disk

    def append_to(self, path: str) -> AppendFile:
        return self._there().append_to(path)

    def open(self, path: str) -> ReadFile:
        return self._there().open(path)

    def names(self, directory: str) -> list[str]:
        return self._there().names(directory)

    def exists(self, path: str) -> bool:
        return self._there().exists(path)

    def make_directory(self, path: str) -> None:
        self._there().make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._there().rename(old, new)

    def remove(self, path: str) -> None:
        self._there().remove(path)

    def truncate(self, path: str, size_bytes: int) -> None:
        self._there().truncate(path, size_bytes)

    def modified_us(self, path: str) -> int:
        return self._there().modified_us(path)

    def sync_directory(self, directory: str) -> None:
        self._there().sync_directory(directory)

    def lock(self, path: str) -> Lock | None:
        return self._there().lock(path)

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        return await self._there().sync_all(files, directories)


class HostOfLife:
    """The seam `Network` of one process."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        if self._is_dead:
            await trio.sleep_forever()
        return await self._host.dial(address, tls)  # one that comes after its death nobody takes

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        if self._is_dead:
            raise OSError(errno.EBADF, "this process is dead")
        return await self._host.listen(address, tls)

    def tls(self, terms: TlsTerms) -> Tls:
        return self._host.tls(terms)

    def crowd(self) -> Crowd:
        return TaskCrowd()

    def reachable_at(self, address: Address) -> list[Address]:
        return self._host.reachable_at(address)
