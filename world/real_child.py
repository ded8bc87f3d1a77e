"""A process of our own: for what is measured from outside, a node and its clients."""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

END_S = 15.0
"""How long it may take to end when it is asked to: a node drains for 10 s."""


class Child:
    """Is told and asked in lines, on its stdin and stdout; what it writes to stderr goes where ours
    goes. Leaving the block ends it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = " ".join(command)
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
                raise TimeoutError(f"{self._name} has said nothing for {timeout_s:g} s")
            data = os.read(out, 65536)
            if not data:
                raise EOFError(f"{self._name} ended with code {self._process.wait()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def end(self) -> int:
        """Ask it to end, and see to it that it does; returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended and not read what it was told last
            self._process.stdin.close()
        self._process.terminate()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()
