"""Where a consumer keeps its position while it is away: memory, a file, or the user's own place."""

import os
import posixpath
from typing import Final, Protocol

from busnode.client.positions import Position
from busnode.wire.errors import Refused, StorageFailed
from busnode.world.files import Files, read_whole

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A position of half a million logs: what is larger was not written by us."""


class CursorStore(Protocol):
    """A place for one subscription's position. Implement it to keep positions in a database.

    `save` is called now and then while messages are worked off, and at the end; never twice at
    once. What it raises reaches the consumer.
    """

    async def load(self) -> Position | None:
        """The position that was saved last, or None when there is none yet."""
        ...

    async def save(self, position: Position) -> None:
        """Keep it. When this returns, `load` gives it back after a crash."""
        ...


class MemoryCursorStore:
    """Keeps the position for as long as the process lives."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position

    async def load(self) -> Position | None:
        return self.position

    async def save(self, position: Position) -> None:
        self.position = position


class FileCursorStore:
    """Keeps the position in a file that is replaced as a whole: old or new, never half of it."""

    def __init__(self, path: str | os.PathLike[str], files: Files) -> None:
        self._path = os.fspath(path)
        self._files = files

    async def load(self) -> Position | None:
        try:
            if not self._files.exists(self._path):
                return None
            text = read_whole(self._files, self._path, FILE_BYTES_MAX)
        except OSError as error:
            raise StorageFailed(f"cursors in {self._path} cannot be read: {error}") from error
        try:
            return Position.decode(text)
        except Refused as error:
            raise StorageFailed(
                f"cursors in {self._path}: {error.text}. Put a good copy in its place, or "
                "remove it to begin anew"
            ) from error

    async def save(self, position: Position) -> None:
        """As `world.files.replace_whole`, but the loop goes on while the disk is at work."""
        try:
            await self._replace(position.encode().encode())
        except OSError as error:
            raise StorageFailed(f"cursors cannot be kept in {self._path}: {error}") from error

    async def _replace(self, data: bytes) -> None:
        scratch = self._path + ".new"
        if self._files.exists(scratch):
            self._files.remove(scratch)
        file = self._files.append_to(scratch)
        try:
            file.append(data)
            _check(await self._files.sync_all([file]))
        finally:
            file.close()
        self._files.rename(scratch, self._path)
        _check(await self._files.sync_all([], [posixpath.dirname(self._path) or "."]))


def _check(outcomes: list[OSError | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error
