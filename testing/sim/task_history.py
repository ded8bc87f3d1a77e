"""What happens to tasks in a run: noted by those who enqueue them, work on them and look after
dead letters, together with what the disks knew at that moment.

A task's id stands here with its queue: two queues of one owner have the same ids.
"""

from dataclasses import dataclass

from busnode.testing.sim.history import Event
from busnode.wire.ids import LogId


@dataclass(frozen=True, slots=True)
class TaskSent(Event):
    client: str
    payload: bytes
    queue: str
    not_before: float
    """It was delayed until then."""
    key: str
    """Empty: none."""
    retry: str


@dataclass(frozen=True, slots=True)
class TaskAcked(Event):
    client: str
    payload: bytes
    id: str
    log_id: LogId
    msg_no: int
    level: str
    safe_at: tuple[str, ...]
    """Whose disks had it for sure when the ack came."""


@dataclass(frozen=True, slots=True)
class TaskRefused(Event):
    client: str
    payload: bytes
    code: str


@dataclass(frozen=True, slots=True)
class Leased(Event):
    """What is said of one lease of a task."""

    worker: str
    id: str
    log_id: LogId
    """The log of its owner, in which it has this number."""
    number: int
    fence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TaskGiven(Leased):
    """A worker has it in hand."""

    payload: bytes
    node: str
    """Whose it is."""
    lease_s: float
    asked_at: float
    """It was given out after this."""
    fenced_at: tuple[str, ...]
    """On which disks it is written that such a fence may have been given out."""


@dataclass(frozen=True, slots=True)
class TaskSaid(Leased):
    """The worker says what becomes of it."""

    verb: str


@dataclass(frozen=True, slots=True)
class TaskAnswered(Leased):
    verb: str
    said_at: float
    code: str
    """Why it was refused; empty when it is so, and durable."""
    level: str
    """At which level it is durable; empty when it was refused, or others were that it came with."""
    known_at: tuple[str, ...]
    """On which disks that is written."""
    claimed_by: tuple[str, ...]
    """Nodes that went on with the owner's tasks themselves already."""
    had_mirror: bool
    """Whether all that the owner acked since it was said had to be on a second disk."""


@dataclass(frozen=True, slots=True)
class LetterAsked(Event):
    """Somebody wants a dead letter to be requeued or deleted."""

    client: str
    act: str
    id: str


@dataclass(frozen=True, slots=True)
class LetterActed(Event):
    """And was told that it is."""

    client: str
    act: str
    id: str


@dataclass(frozen=True, slots=True)
class TaskFound(Event):
    """In the end, in a queue of a node: not finished."""

    node: str
    id: str
    log_id: LogId
    number: int
    state: str
    attempts: int
    error: str
    """The last."""
    payload: bytes
