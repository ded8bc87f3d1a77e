"""A node in a process of its own on a host of `namespaces`, and its clients there."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

from busnode.node.config import CLIENT_PORT

from .namespaces import PATIENCE_S, Host, wait_for

Status = dict[str, Any]


class HostedNode:
    """A node on a host, of its name, and commands that talk to it from there.

    It is ready when this returns, and uses three ports from the first on.
    """

    def __init__(
        self, host: Host, cluster_id: str, folder: Path, first_port: int = CLIENT_PORT
    ) -> None:
        self.name = host.name
        self.host = host
        self.port = first_port
        data = folder / f"{host.name}-{first_port}"
        log = data.with_suffix(".log")
        host.logs.append(log)
        ports = [f"--{kind}port={first_port + n}" for n, kind in enumerate(("", "peer-", "http-"))]
        options = ["--interface", "eth0", "--insecure", "--name", host.name, "--data", str(data)]
        with log.open("a") as stderr:
            self.process = host.popen(
                ["start", "--json", "--cluster-id", cluster_id, *options, *ports], self.port, stderr
            )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, f"the node on {host.name} ended at once: {log.read_text()}"
        told = json.loads(ready)
        assert told["client"] == f"{host.address}:{first_port}"
        self.broker_id: str = told["broker_id"]

    def kill(self) -> None:
        """As a loss of power does it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def status(self) -> Status:
        found: Status = self.host.http(self.port + 2, "/status")
        return found

    def cluster(self) -> Status:
        found: Status = self.status()["cluster"]
        return found

    def peers(self) -> dict[str, Status]:
        """The rows of other nodes by their name."""
        return {row["name"]: row for row in self.cluster()["peers"]}

    def linked(self) -> set[str]:
        """Nodes with a link in both directions."""
        rows = self.peers().values()
        return {row["name"] for row in rows if row["link"] == "up" and row["dials_us"]}

    def publish(self, topic: str, payloads: Sequence[str], *options: str) -> None:
        """`busnode pub`; when it returns all is sent and, where persistent, acked."""
        arguments = ["pub", topic, "--lines", *options]
        process = self.host.popen(arguments, self.port, subprocess.PIPE)
        output, errors = process.communicate("".join(f"{p}\n" for p in payloads), PATIENCE_S)
        assert (process.returncode, errors) == (0, ""), output

    @contextmanager
    def publisher(self, topic: str, *options: str) -> Iterator[Callable[[str], None]]:
        """`busnode pub` that goes on: what it yields publishes one more message."""
        arguments = ["pub", topic, "--lines", *options]
        process = self.host.popen(arguments, self.port, subprocess.DEVNULL)
        stdin = process.stdin
        assert stdin is not None

        def publish(payload: str) -> None:
            stdin.write(f"{payload}\n")
            stdin.flush()

        yield publish
        stdin.close()
        assert process.wait(PATIENCE_S) == 0

    def subscribe(self, pattern: str, *options: str) -> "Subscriber":
        """`busnode sub`, when the node knows of it."""
        process = self.host.popen(
            ["sub", pattern, "--json", *options], self.port, subprocess.DEVNULL
        )

        def is_known() -> bool:
            clients = self.status()["clients"]
            return any(
                each["pattern"] == pattern for client in clients for each in client["subscriptions"]
            )

        wait_for(is_known, f"{self.name} knows of a subscription to {pattern}")
        return Subscriber(process)


class Subscriber:
    """All messages that `busnode sub` has printed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.messages: list[dict[str, Any]] = []
        assert process.stdout is not None
        self._reader = Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stdout: IO[str]) -> None:
        with suppress(ValueError):  # it was closed while we read
            for line in stdout:
                self.messages.append(json.loads(line))

    def payloads(self, topic: str | None = None) -> list[str]:
        return [each["payload"] for each in self.messages if topic in (None, each["topic"])]

    def logs(self) -> dict[tuple[str, str], list[int]]:
        """The numbers of persistent messages in the order in which they came, for each log."""
        found: dict[tuple[str, str], list[int]] = {}
        for each in self.messages:
            if each["msg_no"] is not None:
                found.setdefault((each["broker_id"], each["topic"]), []).append(each["msg_no"])
        return found
