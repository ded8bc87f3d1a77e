"""One node of a local cluster: a `busnode start` that is started again with what it had."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from busnode.wire.errors import BusnodeError
from busnode.world.files import Files
from busnode.world.real_bound_child import BoundChild

COMMAND: Final = "__import__('busnode.node.cli').node.cli.main()"

LOG_TAIL_BYTES: Final = 16 * 1024
"""How much of its log is read for the last line when a node has died."""

STEADY_S: Final = 10.0
"""A node that lived this long and died has met a new fault."""
FIRST_S: Final = 0.5
MOST_S: Final = 10.0


class NodeDied(BusnodeError):
    """A node of the local cluster has ended by itself; the text says how."""

    code = "NODE_DIED"
    advice = "The text is the last of its log; --data DIR keeps the whole of it."

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(slots=True)
class Restarts:
    """Decides how long to wait before a node that has died is started again."""

    failures: int = 0

    def pause_s(self, lived_s: float) -> float:
        if lived_s >= STEADY_S:
            self.failures = 0
        pause_s = min(MOST_S, FIRST_S * 2.0**self.failures)
        self.failures = min(self.failures + 1, 32)
        return pause_s


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is reached, once it has told."""

    broker_id: str
    client: str
    peer: str
    http: str


@dataclass(frozen=True, slots=True)
class Ports:
    """Port numbers; 0 is a free one."""

    client: int = 0
    peer: int = 0
    http: int = 0


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class DevNode:
    """Its process, its ports and its data. `start` it, `wait` for its end, `start` it again."""

    def __init__(self, name: str, cluster_id: str, directory: str, ports: Ports) -> None:
        self.name = name
        self.place: Place | None = None
        """None until it was ready once."""
        self.ready = False
        """Whether its process runs and has said so."""
        self._cluster_id = cluster_id
        self._data = f"{directory}/{name}"
        self._log = f"{directory}/{name}.log"
        self._ports = ports
        self._child: BoundChild | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self, seeds: Sequence[str], files: Files) -> Place:
        """Returns when it is ready. Raises NodeDied when it ends instead."""
        assert self._child is None
        self._child = child = BoundChild(COMMAND, self._arguments(seeds), self._log)
        try:
            told: dict[str, Any] = json.loads(await child.hear())
        except EOFError:
            code = await child.wait()
            raise NodeDied(self.last_words(files, code), code) from None
        self.place = Place(*(str(told[key]) for key in ("broker_id", "client", "peer", "http")))
        # The next life is at the same addresses: clients and other nodes know them.
        place = self.place
        self._ports = Ports(_port(place.client), _port(place.peer), _port(place.http))
        self.ready = True
        return place

    def _arguments(self, seeds: Sequence[str]) -> list[str]:
        settings = {
            "--cluster-id": self._cluster_id, "--name": self.name, "--data": self._data,
            "--listen": "127.0.0.1", "--port": str(self._ports.client),
            "--peer-port": str(self._ports.peer), "--http-port": str(self._ports.http),
        }  # fmt: skip
        words = [word for setting in settings.items() for word in setting]
        words += [word for seed in seeds for word in ("--seed", seed)]
        return ["start", *words, "--json"]

    async def wait(self) -> int:
        """Its exit code, when its process has ended."""
        assert self._child is not None
        code = await self._child.wait()
        self.ready = False
        return code

    def last_words(self, files: Files, code: int) -> str:
        """What it wrote last, and how it ended."""
        if code < 0:
            return f"{self.name} was ended by signal {-code}"  # of which its log knows nothing
        how = f"ended with exit code {code}"
        last = next((line for line in reversed(_tail(files, self._log)) if line.strip()), "")
        with suppress(ValueError, KeyError, TypeError):  # a line for people
            last = str(json.loads(last)["text"])
        return f"{self.name} {how}: {last}" if last else f"{self.name} {how}"

    def kill(self) -> None:
        self.ready = False
        if self._child is not None:
            self._child.kill()

    async def leave(self) -> None:
        """Let it say its goodbyes."""
        if self._child is not None:
            self._child.terminate()
            await self.wait()

    def close(self) -> None:
        """Its process is gone when this returns."""
        self.ready = False
        if self._child is not None:
            self._child.close()
            self._child = None


def _tail(files: Files, path: str) -> list[str]:
    file = files.open(path)
    try:
        size_bytes = file.size_bytes()
        tail = bytearray(min(size_bytes, LOG_TAIL_BYTES))
        with memoryview(tail) as view:
            file.read_into(view, size_bytes - len(tail))
    finally:
        file.close()
    return tail.decode(errors="replace").splitlines()
