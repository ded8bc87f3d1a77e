"""A cluster of nodes in processes of their own that find each other by mDNS on loopback.

A node keeps its ports and its disk when it is killed and started again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from busnode.client import Message, Subscription, connect

COMMAND: Final = [sys.executable, "-c", "from busnode.node.cli import main; main()", "start"]
PATIENCE_S: Final = 30.0
"""Far more than anything here takes on a busy machine."""


class Node:
    """One node: a process, its ports and its disk, which stay the same when it is started again."""

    def __init__(self, cluster_id: str, name: str, folder: Path, **options: str) -> None:
        self.cluster_id = cluster_id
        self.name = name
        self._folder = folder
        self._options = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        self._ports: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self.told: dict[str, Any] = {}
        self.command = COMMAND

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return str(self.told["client"])

    @property
    def url(self) -> str:
        return f"{'bus+tls' if '--tls-cert' in self._options else 'bus'}://{self.address}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        settings = {
            "--cluster-id": self.cluster_id, "--name": self.name, "--http-port": "off",
            "--data": str(self._folder / self.name), "--port": "0", "--peer-port": "0",
            **self._options, **self._ports,
        }  # fmt: skip
        words = [word for setting in settings.items() for word in setting]
        around = {k: v for k, v in os.environ.items() if not k.startswith("BUSNODE_")}
        with (self._folder / f"{self.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                [*self.command, *words, "--json"], env=around, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.told = json.loads(self._process.stdout.readline())
        self._ports = {
            "--port": self.told["client"].rpartition(":")[2],
            "--peer-port": self.told["peer"].rpartition(":")[2],
        }

    def wipe(self) -> None:
        """It loses its disk."""
        shutil.rmtree(self._folder / self.name)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """It does nothing more from now on; who waits in the kernel for a disk does not come back
        from there."""
        self.send(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        give_up_at = time.monotonic() + PATIENCE_S
        while not all(_is_frozen(task / "stat") for task in tasks.iterdir()):
            assert time.monotonic() < give_up_at, f"{self.name} goes on"

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            self.wait()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code


def _is_frozen(stat: Path) -> bool:
    """Whether a thread is stopped (T), or in the kernel, from where it comes back stopped (D)."""
    return stat.read_text().rpartition(")")[2].split()[0] in "TD"


class Cluster:
    def __init__(self, folder: Path, cluster_id: str | None = None, **options: str) -> None:
        """`options` are flags of each node."""
        self.id = cluster_id or f"test-{uuid.uuid4().hex[:12]}"
        self.nodes: list[Node] = []
        self._folder = folder
        self._options = options
        self.tls_ca = options.get("tls_ca")
        folder.mkdir(exist_ok=True)

    def add(self, name: str) -> Node:
        node = Node(self.id, name, self._folder, **self._options)
        node.start()
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.end()

    def url(self, *first: Node) -> str:
        """All nodes, these alone where some are named."""
        scheme = "bus+tls" if "tls_cert" in self._options else "bus"
        return f"{scheme}://" + ",".join(node.address for node in first or self.nodes)

    async def status(self, node: Node) -> dict[str, Any]:
        async with connect(
            node.url, name="status", deadline_s=PATIENCE_S, tls_ca=self.tls_ca
        ) as bus:
            found: dict[str, Any] = json.loads((await bus.request("/$sys/status")).payload)
            return found

    async def meshed(self) -> float:
        """How long it took until each node was linked with each other one, both ways."""
        began = time.monotonic()
        names = {node.name for node in self.nodes}
        with trio.fail_after(PATIENCE_S):
            for node in self.nodes:
                while True:
                    cluster = (await self.status(node))["cluster"]
                    peers = cluster["peers"]
                    linked = {p["name"] for p in peers if p["link"] == "up" and p["dials_us"]}
                    if linked == names - {node.name} and not cluster["missing_links"]:
                        break
                    await trio.sleep(0.01)
        return time.monotonic() - began

    async def mirrored(self) -> float:
        """How long it took until an ack of each node waits for a mirror."""
        began = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            for node in self.nodes:
                while (await self.status(node))["cluster"]["level"] != "mirrored":
                    await trio.sleep(0.01)
        return time.monotonic() - began


@asynccontextmanager
async def cluster_of(folder: Path, size: int, **options: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, **options)
    try:
        for number in range(1, size + 1):
            await trio.to_thread.run_sync(cluster.add, f"n{number}")
        yield cluster
    finally:
        cluster.close()


async def until(holds: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    with trio.move_on_after(PATIENCE_S) as scope:
        while not holds():
            await trio.sleep(0.005)
    assert not scope.cancelled_caught, f"{what} did not come"
    return time.monotonic() - began


async def take(messages: Subscription, count: int) -> list[Message]:
    with trio.fail_after(PATIENCE_S):
        return [await anext(messages) for _ in range(count)]


def logged_failure(log: str) -> str:
    """Where a node's log tells of an error that it should have handled, and what came then."""
    log = log.replace("Unpack failed", "")  # what msgpack says of a frame that was refused
    places = [place for word in ("Traceback", "failed") if (place := log.find(word)) >= 0]
    return log[max(0, min(places) - 500) : min(places) + 4000] if places else ""
