"""What became of tasks, as those who listen are told: `/$sys/task/completed` and `…/failed`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgpack

from busnode.client.messages import EPOCH, NO_HEADERS

COMPLETED: Final = "/$sys/task/completed"
FAILED: Final = "/$sys/task/failed"


class Attempt(NamedTuple):
    """One that did not work."""

    attempt: int
    at: datetime
    worker: str
    error: str


class TaskEvent(NamedTuple):
    """A task was completed, or became a dead letter."""

    id: str
    queue: str
    payload: bytes
    headers: Mapping[str, str]
    attempts: int
    history: Sequence[Attempt]
    """Those that failed."""
    worker: str
    at: datetime


Hook = Callable[[TaskEvent], Awaitable[object] | object]


def attempts_of(rows: Iterable[Any]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(attempt, EPOCH + timedelta(microseconds=at_us), worker, error)
        for attempt, at_us, worker, error in rows
    )


def event_of(payload: bytes) -> TaskEvent:
    """Raises ValueError or the like for what is none."""
    told: dict[str, Any] = msgpack.unpackb(payload)
    headers: Mapping[str, str] = told.get("headers") or NO_HEADERS
    return TaskEvent(
        told["id"],
        told["queue"],
        told["payload"],
        {name: value for name, value in headers.items() if not name.startswith("$")},
        told["attempts"],
        attempts_of(told.get("history", ())),
        told.get("worker", ""),
        EPOCH + timedelta(microseconds=told["at_us"]),
    )
