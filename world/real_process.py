"""The real process: what it was given by whoever started it, and what it uses."""

import ctypes
import gc
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Names and numbers of malloc.h."""

PR_SET_PDEATHSIG = 1
"""Of prctl.h."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def environment() -> Mapping[str, str]:
    return dict(os.environ)


def signal_session(pid: int, signal_no: int) -> None:
    """To a process that leads a session of its own, and to all that it has started in it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal_no)


def host_name() -> str:
    return os.uname().nodename


def absolute(path: str) -> str:
    """The path as `world.files` wants it, from what a person has typed."""
    return os.path.abspath(os.path.expanduser(path))


def resident_bytes(pid: int | None = None) -> int:
    """Memory of a process that is in RAM now; of this one unless another is named."""
    with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def processor_s(pid: int) -> float:
    """Seconds that a process has had of processors, in its own code and in the system's."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # before it is a name with anything in it
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Interpreter(NamedTuple):
    path: str
    version: str
    is_optimized: bool
    """Compiled with its optimizations. Those that come with a system are, whatever they say."""


def interpreter() -> Interpreter:
    """The Python that runs this process."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_optimized = "--enable-optimizations" in arguments or sys.base_prefix == "/usr"
    return Interpreter(sys.executable, sys.version.split()[0], is_optimized)


def load() -> float:
    """How many tasks have wanted a processor on average over the last minute."""
    return os.getloadavg()[0]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, up to some megabytes, for the next buffer.

    By default it gives every large block back to the system, and the next one costs a page fault
    for each 4 KiB: measured, a third of the processor time of a node that forwarded large batches.
    Where there is no such library nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 4 * 1024 * 1024)
    mallopt(M_TRIM_THRESHOLD, 16 * 1024 * 1024)


def leave_alone_what_is_there() -> None:
    """Let the garbage collector pass over all objects that there are now: modules, classes and what
    a node has once it has started. They never become garbage, and to look at these 40,000 took 10
    ms of each full collection, while everybody waits."""
    gc.freeze()
    gc.set_threshold(700, 3, 33)


def raise_file_limit() -> int:
    """Allow as many open files as this process may allow itself; returns how many that are.

    Shells and service managers give 1024 of them, and a client is one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def die_with(parent_pid: int) -> None:
    """Be killed when the parent is gone: at once if it is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


class FileLimits(NamedTuple):
    """How many files may be open."""

    allowed: int
    """In one process that raises its limit as far as it may."""
    open_everywhere: int
    """On this machine, now."""
    allowed_everywhere: int


def file_limits() -> FileLimits:
    with open("/proc/sys/fs/file-nr", "rb") as file:
        opened, unused, most = (int(field) for field in file.read().split())
    return FileLimits(resource.getrlimit(resource.RLIMIT_NOFILE)[1], opened - unused, most)


class DiskSpace(NamedTuple):
    free_bytes: int
    """For those who are not root."""
    total_bytes: int


def disk_space(path: str) -> DiskSpace:
    """Of the file system that a path is on, or would be. Raises `OSError`."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
