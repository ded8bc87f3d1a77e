"""Commands and nodes as processes, for tests that look at them from outside.

Nodes on one machine find each other by multicast on loopback, so each test has cluster ids of its
own.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

COMMAND = [sys.executable, "-c", "from busnode.node.cli import main; main()"]
PATIENCE_S = 60.0
"""For whatever must come in the end; a machine may be busy with other things."""


def unique_cluster() -> str:
    return f"test-{os.urandom(6).hex()}"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BUSNODE_")}


def wait_for(condition: Callable[[], object], what: str) -> None:
    give_up_at = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < give_up_at, f"in vain for {PATIENCE_S:g} s: {what}"
        sleep(0.02)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def is_running(pid: int) -> bool:
    """False also for one that has ended and waits for its parent to take notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Process:
    """A command that runs until it is told to end, heard in lines of JSON."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.hear_line())
        return told

    def hear_line(self) -> str:
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        give_up_at = monotonic() + PATIENCE_S
        while b"\n" not in self._unread:
            readable, _, _ = select.select([out], [], [], max(0.0, give_up_at - monotonic()))
            assert readable, "it says nothing"
            data = os.read(out, 65536)
            assert data, f"it ended: {self.process.communicate()[1]!r}"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def hear_of(self, event: str) -> dict[str, Any]:
        """The next event of a kind; others before it are passed over."""
        while (told := self.hear())["event"] != event:
            pass
        return told

    def end(self, signal_no: int) -> tuple[int, str]:
        """Exit code and what it wrote to stderr."""
        self.process.send_signal(signal_no)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors.decode()


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    started = Process(*arguments)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGCONT)
        started.process.kill()
        started.process.communicate()


class Node(Process):
    """`busnode start` on free ports, ready."""

    def __init__(self, cluster_id: str, name: str, data: Path, *options: str) -> None:
        ports = ["--port", "0", "--peer-port", "0", "--http-port", "0"]
        who = ["--cluster-id", cluster_id, "--name", name, "--data", str(data / name)]
        super().__init__("start", "--json", "--log-level", "error", *who, *ports, *options)
        self.cluster_id = cluster_id
        self.ready = self.hear()
        self.url = f"bus://{self.ready['client']}"
        self.peer = str(self.ready["peer"])

    def status(self) -> dict[str, Any]:
        with urlopen(f"http://{self.ready['http']}/status", timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def links(self) -> int:
        """Nodes that it is linked to both ways."""
        peers = self.status()["cluster"]["peers"]
        return sum(peer["link"] == "up" and peer["dials_us"] for peer in peers)

    def signal(self, signal_no: int) -> None:
        os.kill(self.pid, signal_no)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()
