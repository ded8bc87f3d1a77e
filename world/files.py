"""The seam to the disk.

A file is append and sync, nothing else: what is written once is never written again. A failed
or short append, and a failed sync, leave the file in a state that nobody knows; the caller must
give the file up (`segments` poisons the log) and never retry.

Paths are absolute strings with `/`. All operations raise `OSError` with an errno.
"""

import posixpath
from collections.abc import Sequence
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """A file open for appending. It has one owner, who closes it."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int:
        """Where the next append goes."""
        ...

    def append(self, data: Bytes) -> None:
        """Write all of `data` at the end, or raise; on a raise some of it may be there."""
        ...

    def sync(self) -> None:
        """Return when the contents are durable. Blocks: for start-up, closing and tools."""
        ...

    def close(self) -> None: ...


class ReadFile(Protocol):
    """A file open for reading, also while another handle appends to it."""

    @property
    def path(self) -> str: ...

    def size_bytes(self) -> int: ...

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset`; returns how much there was, less than asked at the end."""
        ...

    def read_in_memory(self, offset: int, length: int) -> Bytes | None:
        """The bytes there, or None where a disk would have to be waited for or the file ends.

        A system that cannot tell lets us wait.
        """
        ...

    def is_in_memory(self, offset: int, length: int) -> bool:
        """Whether it can, most likely, be read without waiting for a disk. False where the file
        ends before, and where the system cannot tell."""
        ...

    async def fetch(self, offset: int, length: int) -> None:
        """Bring bytes into memory without blocking the loop, and see that each can be read.

        Raises an OSError whose text names the byte that cannot; ENODATA where the file ends before.
        """
        ...

    def fileno(self) -> int:
        """For `Stream.send_range` alone: what the kernel copies from.

        `io.UnsupportedOperation` where there is no such thing: the stream then reads it instead.
        """
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock on a path, held until `close` or the death of the process."""

    def close(self) -> None: ...


class Files(Protocol):
    """The file system as far as busnode uses it."""

    def append_to(self, path: str) -> AppendFile:
        """Open for appending; created when it is missing."""
        ...

    def open(self, path: str) -> ReadFile: ...

    def names(self, directory: str) -> list[str]:
        """Sorted names of a directory's entries."""
        ...

    def exists(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Make it with its parents; no error when it is there.

        Each new level is an entry of the one above: durable after `sync_directory` of that one.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Put `old` in the place of `new`, at once for every reader."""
        ...

    def remove(self, path: str) -> None:
        """Take the name of a file away, or of an empty directory. Open handles go on working."""
        ...

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut a file that nobody appends to; durable when it returns. EINVAL when it is shorter."""
        ...

    def modified_us(self, path: str) -> int:
        """When a file was last written, in microseconds since 1970."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Make the entries of a directory durable: names made, renamed and removed."""
        ...

    def lock(self, path: str) -> Lock | None:
        """Take the lock on `path`, or None when another process has it."""
        ...

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        """Sync files, and directories with new entries, in parallel without blocking the loop.

        One outcome for each, those of the files first.

        What was appended before the call is durable where the outcome is None. Appending may go
        on meanwhile; whether that is durable too is not known.
        """
        ...


def read_whole(files: Files, path: str, size_max: int) -> bytes:
    """The contents of a small file; at most `size_max` bytes, so that a wrong file harms nobody."""
    file = files.open(path)
    try:
        contents = bytearray(min(file.size_bytes(), size_max))
        with memoryview(contents) as view:
            count = file.read_into(view, 0)
        return bytes(contents[:count])
    finally:
        file.close()


def remove_tree(files: Files, path: str) -> None:
    """Remove a file, or a folder and all that is in it."""
    try:
        files.remove(path)
    except OSError:
        for name in files.names(path):
            remove_tree(files, f"{path}/{name}")
        files.remove(path)


def replace_whole(files: Files, path: str, data: bytes, *, durable: bool = True) -> None:
    """Make `data` the contents of `path`: a reader sees the old or the new, never a mix.

    Without `durable` a power loss may leave the old, the new, or a damaged one.
    """
    scratch = path + ".new"
    if files.exists(scratch):
        files.remove(scratch)
    file = files.append_to(scratch)
    try:
        file.append(data)
        if durable:
            file.sync()
    finally:
        file.close()
    files.rename(scratch, path)
    if durable:
        files.sync_directory(posixpath.dirname(path))
