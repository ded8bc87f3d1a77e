"""Cursors in logs that nobody holds who is up, or behind their end: gaps, unless somebody comes
with the log in time, or with more of it.

Pure: it is told the time. A consumer that returns while a node restarts lacks nothing, and must not
hear that it does; nor one that was shown by a mirror what the origin has not synced yet.
"""

from typing import Final, NamedTuple

from busnode.node.subscription import Subscription
from busnode.wire.ids import LogId

RETURN_S: Final = 10.0
"""How long a holder may take to come back: a process restarts, and finds the others, in less."""


class UnknownCursor(NamedTuple):
    subscription: Subscription
    log_id: LogId
    msg_no: int


class UnknownCursors:
    """Those of all subscriptions, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Subscription, tuple[float, list[UnknownCursor]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, cursors: list[UnknownCursor], now: float) -> None:
        """Cursors of one subscription, which has just begun."""
        if cursors:
            self._waiting[cursors[0].subscription] = now + RETURN_S, cursors

    def forget(self, subscription: Subscription) -> None:
        self._waiting.pop(subscription, None)

    def due(self, now: float) -> list[UnknownCursor]:
        """Those that have waited for long enough; they are looked at once."""
        due: list[UnknownCursor] = []
        for subscription, (due_at, cursors) in list(self._waiting.items()):
            if due_at > now:
                break
            del self._waiting[subscription]
            due += cursors
        return due
