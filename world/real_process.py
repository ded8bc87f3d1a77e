"""The real process: what it was given by whoever started it, and what it uses."""
# ruff: noqa: PLC0415 - a wrong flag is told without trio, in half the time

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType, TracebackType

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

END_S = 15.0
"""How long a child may take to end when it is asked to: a node drains for 10 s."""


def environment() -> Mapping[str, str]:
    return dict(os.environ)


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


def load() -> float:
    """How many tasks have wanted a processor on average over the last minute."""
    return os.getloadavg()[0]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def raise_file_limit() -> int:
    """Allow as many open files as this process may allow itself; returns how many that are.

    Shells and service managers give 1024 of them, and a client is one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def load(module: str) -> ModuleType:
    """Import a module in a thread, where it has not been: a large library takes longer than the
    loop may be held up."""
    import trio

    found = sys.modules.get(module)
    if found is None or getattr(getattr(found, "__spec__", None), "_initializing", False):
        return await trio.to_thread.run_sync(import_module, module)
    return found


class Child:
    """A process of our own that is told and asked in lines, on its stdin and stdout; what it writes
    to stderr goes where ours goes. Leaving the block ends it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float) -> str:
        """The next line that it says. Raises EOFError when it ends instead, or TimeoutError."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{self._process.args} has said nothing for {timeout_s:g} s")
            data = os.read(out, 65536)
            if not data:
                raise EOFError(f"{self._process.args} ended with code {self._process.wait()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def end(self) -> int:
        """Ask it to end, and see to it that it does; returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, and what it was told last was not read
        self._process.terminate()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()
