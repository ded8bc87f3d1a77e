"""The real files as a process has them that may be killed: after that it writes nothing more.

What was written is there for whoever opens the files next, as the system keeps it; what the dead
process would still have written, synced or renamed while its tasks are ended never happens.
"""

import errno
from collections.abc import Sequence

import trio

from busnode.world.files import AppendFile, Bytes
from busnode.world.real_files import RealAppendFile, RealFiles


class MortalFiles(RealFiles):
    """All that changes something fails after `die`. Locks and files can still be closed."""

    def __init__(self) -> None:
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def check(self) -> None:
        if self._is_dead:
            raise OSError(errno.EIO, "this process is dead")

    def append_to(self, path: str) -> AppendFile:
        self.check()
        return MortalAppendFile(path, self)

    def make_directory(self, path: str) -> None:
        self.check()
        super().make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.check()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.check()
        super().remove(path)

    def truncate(self, path: str, size_bytes: int) -> None:
        self.check()
        super().truncate(path, size_bytes)

    def sync_directory(self, directory: str) -> None:
        self.check()
        super().sync_directory(directory)

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        outcomes = await super().sync_all(files, directories)
        if self._is_dead:
            await trio.sleep_forever()  # the dead do not hear how it went
        return outcomes


class MortalAppendFile(RealAppendFile):
    __slots__ = ("_files",)

    def __init__(self, path: str, files: MortalFiles) -> None:
        super().__init__(path)
        self._files = files

    def append(self, data: Bytes) -> None:
        self._files.check()
        super().append(data)

    def sync(self) -> None:
        self._files.check()
        super().sync()
