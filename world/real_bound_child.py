"""A process that never outlives us: for a cluster that is to leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import trio

LINE_BYTES_MAX = 64 * 1024
"""A child that says more without an end of line is not one of ours."""

BOUND = "__import__('busnode.world.real_process').world.real_process.die_with({}); {}"
"""The child binds itself, before it does anything else. The other way, code between fork and exec,
is unsafe where there are threads, and in Python there are some soon."""


class BoundChild:
    """Runs a Python statement with arguments. The kernel kills it when we are gone, however we go.

    What it says on stdout is heard in lines, what it writes to stderr is appended to a file. It is
    in a session of its own, so a Ctrl-C is for us alone. It is to be made in the main thread: the
    kernel binds it to the thread that makes it.
    """

    def __init__(self, statement: str, arguments: Sequence[str], log_path: str) -> None:
        bound = BOUND.format(os.getpid(), statement)
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", bound, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._ended = os.pidfd_open(self._process.pid)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def hear(self) -> str:
        """The next line that it says. Raises EOFError when it ends instead."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            await trio.lowlevel.wait_readable(out)
            data = os.read(out, LINE_BYTES_MAX)
            if not data or len(self._unread) > LINE_BYTES_MAX:
                raise EOFError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    async def wait(self) -> int:
        """Its exit code when it has ended; less than 0 is the signal that ended it."""
        while self._process.poll() is None:
            await trio.lowlevel.wait_readable(self._ended)
        return self._process.returncode

    def terminate(self) -> None:
        """Ask it to leave."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As a loss of power would end it."""
        self._process.kill()

    def close(self) -> None:
        """End it if it has not ended, and let go of what it cost."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self._ended)
