"""Disks that can lose their power: ext4 in an image file, mounted through a loop device.

The shutdown ioctl of ext4 stops the file system between two instructions: what was not synced never
reaches the image, neither bytes of a file nor the name of a new one, and the journal is not
flushed. Mounted again, it is what a machine finds after a power cut. One thing is kinder than life:
what ext4 has handed to the image is there, also when nothing told the device to make it durable.

All of it needs the rights of root and a kernel with ext4 and loop devices.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Thread
from typing import Final

PATIENCE_S: Final = 60.0
"""For whatever must come in the end; a machine may be busy with other things."""

PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Where mkfs is; a user's own path often lacks the last two."""

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
"""The harshest of its three ways: the journal stops where it is."""

IMAGE_BYTES: Final = 512 * 1024 * 1024
"""Far more than is written to it. The file is sparse, so it takes what is used alone."""

TOOLS: Final = ("mkfs.ext4", "e2fsck", "mount", "umount")

GUARD: Final = """
trap '' INT TERM HUP
cat >/dev/null
for file in $(grep -lsaF -- "$1" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    [ "$pid" = $$ ] || kill -9 "$pid" 2>/dev/null
done
umount -l "$1" 2>/dev/null
rm -f "$2"
"""
"""Waits until whoever made the disk is gone, however it went, and removes what it has left: the
processes that name the disk, the mount, with it the loop device, and the image."""


class CannotRun(Exception):
    """A command of the system refused."""


def run(*command: str) -> str:
    ended = subprocess.run(
        command,
        env={**os.environ, "PATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if ended.returncode:
        said = ended.stdout.strip().replace("\n", " ")
        raise CannotRun(f"{' '.join(command)}: {said or ended.returncode}")
    return ended.stdout


def cannot_be() -> str | None:
    """Why there can be no power cuts on this machine, and what would help; None if there can."""
    if os.geteuid():
        return "only root can cut the power of a disk: run it as root"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if absent:
        return f"there are no power cuts without {', '.join(absent)}: apt-get install e2fsprogs"
    try:
        with TemporaryDirectory(prefix="busnode-probe-") as folder, CutDisk(Path(folder, "d")) as d:
            cut([d])
            d.restore()
    except (CannotRun, OSError) as error:
        return (
            f"this machine mounts no ext4 images that can be cut ({error}): it takes "
            "CAP_SYS_ADMIN, loop devices and ext4"
        )
    return None


class CutDisk:
    """A disk at a path, for as long as the context lasts. Raises CannotRun where it cannot be.

    Whoever works on it must be dead before it is restored or left. Should the process that made it
    die before, all of it goes too, with whatever names the path on its command line.
    """

    def __init__(self, path: Path, image_bytes: int = IMAGE_BYTES) -> None:
        self.path = path
        self.cuts = 0
        self._image = path.with_name(f"{path.name}.image")
        self._image_bytes = image_bytes
        self._root = -1
        self._stack = ExitStack()

    def __enter__(self) -> "CutDisk":
        with ExitStack() as stack:
            self.path.mkdir(parents=True)
            stack.callback(self._image.unlink, missing_ok=True)
            with self._image.open("xb") as image:
                image.truncate(self._image_bytes)
            run("mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(self._image))
            guard = subprocess.Popen(
                ["sh", "-c", GUARD, "guard", str(self.path), str(self._image)],
                env={**os.environ, "PATH": PATH},
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            stack.callback(guard.communicate)
            self._mount()
            stack.callback(self._unmount)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _mount(self) -> None:
        # Without errors=remount-ro a cut that the kernel takes for damage would stop the machine
        # on systems that are set up so.
        options = "loop,noatime,errors=remount-ro"
        run("mount", "-t", "ext4", "-o", options, str(self._image), str(self.path))
        self._root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _unmount(self) -> None:
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)
            run("umount", str(self.path))

    def cut(self) -> None:
        """The power is gone, now: nothing more reaches the disk, and who works on it gets EIO. Only
        who is just syncing may be told that it succeeded: freeze the process before."""
        fcntl.ioctl(self._root, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        self.cuts += 1

    def restore(self) -> None:
        """The power is back."""
        self._unmount()
        self._mount()

    def check(self) -> None:
        """Raises CannotRun if the file system itself is damaged."""
        self._unmount()
        run("e2fsck", "-f", "-n", str(self._image))
        self._mount()


def cut(disks: Sequence[CutDisk]) -> None:
    """All of them lose their power at the same instant."""
    together = Barrier(len(disks))

    def at_once(disk: CutDisk) -> None:
        together.wait()
        disk.cut()

    threads = [Thread(target=at_once, args=[disk]) for disk in disks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
