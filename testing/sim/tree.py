"""The tree of directories and files of a simulated disk, by path."""

import errno
import os

from busnode.testing.sim.directory import Directory, File, Inode


class Tree:
    """Finds things by their current names; it changes nothing."""

    def __init__(self, root: Directory) -> None:
        self.root = root

    def find(self, path: str) -> Inode:
        found: Inode = self.root
        for part in parts(path):
            if isinstance(found, File):
                raise failure(errno.ENOTDIR, path)
            if part not in found.entries:
                raise failure(errno.ENOENT, path)
            found = found.entries[part]
        return found

    def file(self, path: str) -> File:
        found = self.find(path)
        if isinstance(found, Directory):
            raise failure(errno.EISDIR, path)
        return found

    def directory(self, path: str) -> Directory:
        found = self.find(path)
        if isinstance(found, File):
            raise failure(errno.ENOTDIR, path)
        return found

    def place(self, path: str) -> tuple[Directory, str]:
        """The directory that holds or would hold the last name of a path, and that name."""
        *parents, name = parts(path)
        return self.directory("/" + "/".join(parents)), name

    def inodes(self, *, durable: bool = False) -> list[Inode]:
        """All that have a name, or a durable one; each once, also where two names have one file."""
        found: list[Inode] = [self.root]
        seen = {id(self.root)}
        for inode in found:
            if isinstance(inode, Directory):
                for child in (inode.durable if durable else inode.entries).values():
                    if id(child) not in seen:
                        seen.add(id(child))
                        found.append(child)
        return found

    def size_bytes(self) -> int:
        files = [inode for inode in self.inodes() if isinstance(inode, File)]
        return sum(len(file.contents.cached) for file in files)


def parts(path: str) -> list[str]:
    names = path.split("/")[1:] if path != "/" else []
    if path[:1] != "/" or any(name in ("", ".", "..") for name in names):
        raise ValueError(f"not an absolute path in its shortest form: {path!r}")
    return names


def failure(code: int, path: str) -> OSError:
    """The exception that the system would raise: FileNotFoundError for ENOENT, and so on."""
    return OSError(code, os.strerror(code), path)
