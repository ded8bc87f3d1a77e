"""Files that commands write: keys and certificates, which must not exist yet, and users."""

import os
from typing import Final

SECRET: Final = 0o600
PUBLIC: Final = 0o644


def write_new_file(path: str, data: bytes, mode: int) -> None:
    """FileExistsError where there is one: a key that is overwritten is lost. It never has a wider
    mode than this, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def append_secret(path: str, data: bytes) -> None:
    """Add lines to a file that only its owner can read; it is made where it is missing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, SECRET)
    with open(descriptor, "ab") as file:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            file.write(b"\n")  # whoever has edited it has left its last line without an end
        file.write(data)
        file.flush()
        os.fsync(descriptor)
