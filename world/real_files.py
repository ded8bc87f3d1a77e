"""The real file system. Syncing and reading from the disk are done in threads."""

import errno
import fcntl
import os
from collections.abc import Sequence
from functools import partial

from busnode.world.files import AppendFile, Bytes, Lock, ReadFile
from busnode.world.real_threads import Threads
from busnode.world.real_writing_out import WritingOut

SYNC_THREADS = 16
"""They wait in the kernel, where one commit of the journal serves all who wait for it. Measured on
ext4 with 2 cores, 100 files: 36 ms one by one, 18 with 2 threads, 11 with 4, 9 with 8, 7 with 16,
and no less with 32."""

FETCH_THREADS = 16
"""They wait in the kernel too; a disk that others share takes as many requests at once."""

FETCH_AHEAD_BYTES = 8 * 1024 * 1024
"""Asked for behind what is fetched: whoever reads on finds it there, or on its way. Replay of a
cold log over loopback: 0.8 GB/s with 2 MiB, 1.05 with 8, no more with 16."""

LOOK_EVERY_BYTES = 128 * 1024
"""Where it is looked whether a file is in memory: what Linux reads ahead at least, unless told."""

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


class RealAppendFile:
    """A file descriptor with O_APPEND."""

    __slots__ = ("_fd", "_size_bytes", "_writing_out", "path")

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.path = path
        self._fd = os.open(path, flags, FILE_MODE)
        self._size_bytes = os.fstat(self._fd).st_size
        self._writing_out = WritingOut(self._size_bytes)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, data: Bytes) -> None:
        written = os.write(self._fd, data)
        self._size_bytes += written
        if written != len(data):
            raise _short_write(self._fd, self.path, written, len(data))
        self._writing_out.appended(self._fd, self._size_bytes)

    def sync(self) -> None:
        if self._fd < 0:  # here alone Python has an error of its own for it
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        self._writing_out.syncing(self._size_bytes)
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealReadFile:
    __slots__ = ("_fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read_into(self, view: memoryview, offset: int) -> int:
        filled = 0
        while filled < len(view):
            count = os.preadv(self._fd, [view[filled:]], offset + filled)
            if count == 0:
                break
            filled += count
        return filled

    def read_in_memory(self, offset: int, length: int) -> Bytes | None:
        found = bytearray(length)
        try:
            count = os.preadv(self._fd, [found], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            count = os.preadv(self._fd, [found], offset)
        return found if count == length else None

    def is_in_memory(self, offset: int, length: int) -> bool:
        """A byte here and there is looked at, and the last one: 5 µs for 256 KiB. To look at every
        page is to copy it, which was up to a quarter of the speed at which they are sent. The
        kernel reads and forgets pages in stretches, so it is seldom wrong.
        """
        fd, last = self._fd, offset + length - 1
        try:
            while offset < last:
                if not os.preadv(fd, _ONE, offset, os.RWF_NOWAIT):
                    return False
                offset += LOOK_EVERY_BYTES
            return bool(os.preadv(fd, _ONE, last, os.RWF_NOWAIT))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False

    async def fetch(self, offset: int, length: int) -> None:
        """Who is cancelled does not wait for the disk: the thread holds the file, and nobody what
        it reads."""
        (error,) = await _fetching.run([partial(self._read, offset, length)], wait_for_all=False)
        if error is not None:
            raise error

    def _read(self, offset: int, length: int) -> None:
        """Runs in a thread."""
        ahead = length + FETCH_AHEAD_BYTES
        os.posix_fadvise(self._fd, offset, ahead, os.POSIX_FADV_WILLNEED)
        end = offset + length
        while offset < end:
            try:
                count = os.preadv(self._fd, _nowhere(end - offset), offset)
            except OSError as error:
                text = f"{error.strerror} at byte {offset}"
                raise OSError(error.errno, text, self.path) from None
            if not count:
                raise OSError(errno.ENODATA, f"the file ends at byte {offset}", self.path)
            offset += count

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A range that is being sent holds its file; nobody else knows when that is over.
        self.close()


class RealLock:
    """An flock. The kernel drops it when the process dies, so no stale lock can remain."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        """The file stays: another process may have it open already, to wait for the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFiles:
    """The machine's file system."""

    def append_to(self, path: str) -> AppendFile:
        return RealAppendFile(path)

    def open(self, path: str) -> ReadFile:
        return RealReadFile(path)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        """Raises when it cannot be known: `os.path.exists` would call an unreadable file absent."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_directory(self, path: str) -> None:
        os.makedirs(path, DIRECTORY_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except IsADirectoryError:
            os.rmdir(path)

    def truncate(self, path: str, size_bytes: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if size_bytes > os.fstat(fd).st_size:
                raise OSError(errno.EINVAL, "cannot cut a file to more than it has", path)
            os.ftruncate(fd, size_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)

    def modified_us(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1000

    def sync_directory(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock | None:
        """The file holds the process id of the holder, for people; nothing reads it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return RealLock(fd)

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        """It cannot be cancelled: a sync in the kernel always ends, and if the caller went on
        before that it would close a file whose number a thread is about to hand to fdatasync;
        the number may by then be another file's, and that one's error be taken for ours.
        """
        syncs = [file.sync for file in files]
        syncs += [partial(self.sync_directory, directory) for directory in directories]
        return await _syncing.run(syncs, wait_for_all=True)


def _short_write(fd: int, path: str, written: int, wanted: int) -> OSError:
    """The kernel took some of it and did not say why; a second write would, but is forbidden."""
    space = os.fstatvfs(fd)
    full = space.f_bavail * space.f_frsize < wanted - written
    text = f"only {written} of {wanted} bytes were written"
    return OSError(errno.ENOSPC if full else errno.EIO, text, path)


_PAGE = memoryview(bytearray(4096))
"""Where bytes go that nobody wants to see, from any thread."""

_ONE = [bytearray(1)]
_IOV_MAX = 1024


def _nowhere(length: int) -> list[memoryview]:
    """Buffers for so many bytes, or for the first of them, that are all the same one."""
    pages, rest = divmod(length, len(_PAGE))
    if pages >= _IOV_MAX:
        return [_PAGE] * _IOV_MAX
    return [*[_PAGE] * pages, _PAGE[:rest]] if rest else [_PAGE] * pages


_syncing = Threads(SYNC_THREADS, "busnode-sync")
_fetching = Threads(FETCH_THREADS, "busnode-fetch")
