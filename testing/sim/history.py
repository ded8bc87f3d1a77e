"""What happened in a run, in the order in which it did: what checkers judge, and what a trace is.

Everything has its virtual time. A line of text is made of each event as it is added, and a hash of
all lines: two runs with the same hash were the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import trio
from xxhash import xxh3_64

from busnode.wire.ids import LogId

Position = tuple[tuple[LogId, int], ...]

EVENTS_MAX: Final = 100_000
"""Of a run; a busy one has some 15,000. Where there are more, something goes on without end."""


@dataclass(frozen=True, slots=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True)
class NodeUp(Event):
    node: str
    broker_id: str


DISK_LOST: Final = "its disk is lost"
"""How the way ends in which a node is down that has lost its disk."""


@dataclass(frozen=True, slots=True)
class NodeDown(Event):
    node: str
    how: str


@dataclass(frozen=True, slots=True)
class NodeCrashed(Event):
    """A node, or a part of one, ended by an error that it should have handled."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class FaultBegun(Event):
    number: int
    kind: str
    on: str
    detail: str


@dataclass(frozen=True, slots=True)
class FaultEnded(Event):
    number: int


@dataclass(frozen=True, slots=True)
class FaultSkipped(Event):
    """It could not be done, or would have destroyed more than promises cover."""

    number: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Healed(Event):
    """From here on nothing is wrong any more."""


@dataclass(frozen=True, slots=True)
class Calm(Event):
    """From here on all is settled, and nothing goes wrong any more."""

    clones: int
    """Nodes that began as copies of others, and stay."""


@dataclass(frozen=True, slots=True)
class Unsettled(Event):
    """Something that should have come in time after all had healed, and has not."""

    what: str


@dataclass(frozen=True, slots=True)
class Sent(Event):
    client: str
    payload: bytes
    topic: str
    kind: str
    """`persistent`, `mirrored` (demanded), `live` or `queue`."""
    connections: int


@dataclass(frozen=True, slots=True)
class Acked(Event):
    client: str
    payload: bytes
    log_id: LogId
    msg_no: int
    level: str
    safe_at: tuple[str, ...]
    """Whose disks had it for sure when the ack came."""
    connections: int


@dataclass(frozen=True, slots=True)
class NotAcked(Event):
    client: str
    payload: bytes
    code: str


@dataclass(frozen=True, slots=True)
class Began(Event):
    """A consumer has a subscription, from this position on."""

    consumer: str
    session: int
    start: str
    position: Position
    is_fresh: bool
    """Whether it may have had no position before: who begins with the earliest is not told of what
    has expired."""


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    consumer: str
    session: int
    log_id: LogId | None
    msg_no: int
    payload: bytes
    is_safe: bool
    """Whether some disk had it for sure."""
    connections: int


@dataclass(frozen=True, slots=True)
class GapTold(Event):
    consumer: str
    session: int
    log_id: LogId
    first: int
    last: int
    reason: str
    held: tuple[int, ...]
    """Of its numbers those that a node within reach had, and that had not expired."""


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A consumer's session ended, cleanly or not."""

    consumer: str
    session: int
    how: str


@dataclass(frozen=True, slots=True)
class Asked(Event):
    client: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Answered(Event):
    client: str
    payload: bytes
    answer: bytes
    code: str


@dataclass(frozen=True, slots=True)
class Served(Event):
    """A provider got a request."""

    provider: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gone(Event):
    """A node did away with durable records."""

    node: str
    path: str
    log_id: LogId
    first: int
    last: int
    reason: str
    """Why that is all right; empty when it is not."""
    is_kept: bool
    """Whether the disk still has it, in another file; else it has expired."""


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A fault took messages from all disks that had them: nobody can serve them any more."""

    log_id: LogId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HandedOver(Event):
    """A durable position was saved at one home, which died, and found at another one."""

    saved: Position
    found: Position


@dataclass(frozen=True, slots=True)
class Untold(Event):
    """A cursor in a log of which nothing is left, and no gap was told."""

    home: str
    log_id: LogId


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """What a node or a client keeps in memory, of one kind."""

    who: str
    what: str
    amount: int
    limit: int


E = TypeVar("E", bound=Event)


class History:
    def __init__(self, told: Callable[[str], None] | None = None) -> None:
        """`told` gets each line as it is made."""
        self.events: list[Event] = []
        self.on_full: Callable[[], None] | None = None
        """Called once, when there is more than a run can have."""
        self._told = told
        self._hash = xxh3_64()

    @staticmethod
    def now() -> float:
        return trio.current_time()

    def add(self, event: Event) -> None:
        self.events.append(event)
        line = as_line(event)
        self._hash.update(line.encode())
        if self._told is not None:
            self._told(line)
        if len(self.events) == EVENTS_MAX and self.on_full is not None:
            self.on_full()

    def of(self, kind: type[E]) -> Iterator[E]:
        return (event for event in self.events if isinstance(event, kind))

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def as_line(event: Event) -> str:
    named = [f"{name}={_text(getattr(event, name))}" for name in _names(type(event))]
    return f"{event.at:11.6f} {type(event).__name__} {' '.join(named)}\n"


def _names(kind: type[Event]) -> tuple[str, ...]:
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(each.name for each in fields(kind)[1:])
    return found


_NAMES: dict[type[Event], tuple[str, ...]] = {}


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case LogId():
            return str(value)
        case bytes():
            return value[:40].decode(errors="replace").strip()
        case tuple():
            return _row(value)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return str(value)


def _row(values: tuple[Any, ...]) -> str:
    return "[" + " ".join(map(_text, values)) + "]"
