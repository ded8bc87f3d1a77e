"""Where a benchmark is played: a node in a process of its own, and players in theirs."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any, Final

import click

from busnode.world.real_child import Child
from busnode.world.real_process import load, processor_s, processors, resident_bytes
from busnode.world.world import World

Report = dict[str, Any]

HEAR_S: Final = 300.0
"""How long a player may take for anything: far more than it takes on the slowest machine, so that
what never comes ends a run and does not hang it."""

CLUSTER: Final = {"peer_port": "0", "mdns": "off"}
"""What a node is told that is to be found by others of a stage, and by nobody else."""

HEARTBEAT: Final = "20s"
"""The longest there is: a player that is stopped on purpose is let go after three of them."""

COMMAND: Final = "__import__('busnode.node.cli').node.cli.main()"
ROLE: Final = "__import__('busnode.node.bench_roles').node.bench_roles.main()"
"""What Python is given to run. One expression each: a profiler that names a process by its command
line takes a semicolon for the end of the name."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload is given."""

    world: World
    directory: str
    """A scratch folder on the disk to be measured."""
    rounds: int
    scale: float
    progress: Callable[[str], None]

    def messages(self, full: int) -> int:
        """A number of messages at this scale."""
        return max(100, round(full * self.scale))

    def report(self, workload: str, payload_bytes: int) -> Report:
        """The beginning of a report. With others at work on the same processors rates say little,
        so it tells of them too."""
        return {
            "workload": workload,
            "payload_bytes": payload_bytes,
            "rounds": self.rounds,
            "scale": self.scale,
            "processors": processors(),
            "load_before": round(load(), 1),
        }


class Player:
    """A process in a role of `bench_roles`, or the node."""

    def __init__(self, child: Child, name: str) -> None:
        self._child = child
        self.name = name
        self.ready = self.hear()

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self._child.pid)

    @property
    def processor_s(self) -> float:
        return processor_s(self._child.pid)

    def tell(self, **order: Any) -> None:
        with self._present():
            self._child.tell(json.dumps(order))

    def hear(self) -> dict[str, Any]:
        with self._present():
            answer: dict[str, Any] = json.loads(self._child.hear(HEAR_S))
        return answer

    @contextmanager
    def _present(self) -> Generator[None, None, None]:
        """What went wrong in it is on stderr; here it is said that it did."""
        try:
            yield
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            raise click.ClickException(f"the {self.name} failed: {error}") from error

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.hear()

    def end(self) -> None:
        self._child.end()


def node_command(data: str, **more: str) -> list[str]:
    settings = {
        "--cluster-id": "bench", "--data": data, "--port": "0", "--http-port": "off",
        "--peer-port": "off", "--heartbeat": HEARTBEAT, "--log-level": "error",
        **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
    }  # fmt: skip
    words = [word for setting in settings.items() for word in setting]
    return [sys.executable, "-c", COMMAND, "start", *words, "--json"]


class Stage:
    """A node and its players; leaving the block ends them all."""

    def __init__(self, directory: str, tls_ca: str | None = None, **settings: str) -> None:
        """`settings` are flags of the node beyond the usual; `tls_ca` is who has signed its
        certificate, if it has one."""
        self._tls_ca = tls_ca
        self._directory = directory
        self._stack = ExitStack()
        self._players: list[Player] = []
        self.node = self.add_node("node", **settings)
        self.address: str = self.node.ready["client"]
        self.url = f"{'bus' if tls_ca is None else 'bus+tls'}://{self.address}"

    def directory_of(self, name: str) -> str:
        """Where a node of this stage has its data."""
        return f"{self._directory}/{name}"

    def add_node(self, name: str, **settings: str) -> Player:
        command = node_command(self.directory_of(name), **settings)
        try:
            player = Player(self._stack.enter_context(Child(command)), name)
        except BaseException:
            self._stack.close()
            raise
        self._players.append(player)
        return player

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def player(self, role: str, **more: Any) -> Player:
        """One who is ready. Those whose role needs the node get its address."""
        where = {"url": self.url, "address": self.address, "tls_ca": self._tls_ca}
        order = {"role": role, **where, **more}
        command = [sys.executable, "-c", ROLE, json.dumps(order)]
        player = Player(self._stack.enter_context(Child(command)), role)
        self._players.append(player)
        return player

    def dismiss(self, player: Player) -> None:
        """It has done its part."""
        player.end()
        self._players.remove(player)

    def processor_s(self) -> dict[str, float]:
        """What each role has used of processors so far."""
        used: dict[str, float] = {}
        for player in self._players:
            used[player.name] = used.get(player.name, 0.0) + player.processor_s
        return used


class Effort:
    """What each process uses of processors for a message, over some rounds. Unlike a rate it hardly
    depends on who else is at work."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before = stage.processor_s()
        self._messages = 0

    def add(self, messages: int) -> None:
        self._messages += messages

    def report(self) -> Report:
        after = self._stage.processor_s()
        return {
            name: round((used - self._before.get(name, 0.0)) / self._messages * 1e6, 3)
            for name, used in after.items()
        }


def middle(values: list[float], digits: int = 0) -> float:
    """The median, rounded."""
    value = median(values)
    return round(value, digits) if digits else round(value)
