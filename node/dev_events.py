"""What happens to a local cluster, as it is told to whoever watches."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from busnode.node.presentation import duration, printable


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened. Its fields are what JSON has of it."""

    kind: ClassVar[str]

    def text(self) -> str:
        raise NotImplementedError

    def told(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Started(Event):
    kind = "started"
    node: str
    client: str
    peer: str
    http: str

    def text(self) -> str:
        return f"{self.node} started"


@dataclass(frozen=True, slots=True)
class Killed(Event):
    kind = "killed"
    node: str

    def text(self) -> str:
        return f"{self.node} killed"


@dataclass(frozen=True, slots=True)
class Died(Event):
    """By itself, or by somebody else."""

    kind = "died"
    node: str
    reason: str
    again_in_s: float

    def text(self) -> str:
        return f"{printable(self.reason)}; started again in {duration(self.again_in_s)}"


@dataclass(frozen=True, slots=True)
class Restarted(Event):
    kind = "restarted"
    node: str
    client: str
    """Where it was before."""
    took_s: float

    def text(self) -> str:
        return f"{self.node} restarted in {duration(self.took_s)}"


@dataclass(frozen=True, slots=True)
class Meshed(Event):
    kind = "meshed"
    nodes: int
    took_s: float
    again: bool

    def text(self) -> str:
        again = "meshed again after" if self.again else f"{self.nodes} nodes meshed in"
        return f"{again} {duration(self.took_s)}"


@dataclass(frozen=True, slots=True)
class Torn(Event):
    """All processes run, and yet links are missing or nodes silent."""

    kind = "torn"
    missing: list[str]
    silent: list[str]

    def text(self) -> str:
        silent = [f"{node} does not answer" for node in self.silent]
        missing = [f"missing link: {printable(link)}" for link in self.missing]
        return "; ".join(silent + missing) or "not fully meshed"


@dataclass(frozen=True, slots=True)
class Ended(Event):
    kind = "ended"
    nodes: int

    def text(self) -> str:
        return f"all {self.nodes} nodes have ended" if self.nodes > 1 else "the node has ended"
