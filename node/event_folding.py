"""A storm of events told in a few: pure.

The first of equal events passes at once. Those that follow within a while are counted, and told as
one when it is over. So a cluster in trouble is heard of at once and drowns nobody who listens.
"""

from dataclasses import dataclass, replace
from typing import Final

from busnode.node.event import Event

WITHIN_S: Final = 10.0
DISTINCT_MAX: Final = 20
"""Different texts of one kind that pass within that time; the others are counted together. A
thousand logs may expire at once, and each has a text of its own."""

Key = tuple[str, str | None]
"""Kind and text; no text stands for all that are too many."""


@dataclass(slots=True)
class _Fold:
    until: float
    last: Event
    count: int = 0


class Folding:
    """It knows no clock: it is told the time."""

    def __init__(self, within_s: float = WITHIN_S, distinct_max: int = DISTINCT_MAX) -> None:
        self._within_s = within_s
        self._distinct_max = distinct_max
        self._folds: dict[Key, _Fold] = {}
        self._distinct: dict[str, int] = {}

    def handle(self, event: Event, now: float) -> list[Event]:
        """Something has happened: what is to be told now."""
        told = self.due(now)
        key: Key = event.kind, event.text
        if key not in self._folds and self._distinct.get(event.kind, 0) >= self._distinct_max:
            key = event.kind, None
        fold = self._folds.get(key)
        if fold is None:
            self._folds[key] = _Fold(now + self._within_s, event)
            self._distinct[event.kind] = self._distinct.get(event.kind, 0) + 1
            return [*told, event]
        fold.last = event
        fold.count += event.count
        return told

    def due(self, now: float) -> list[Event]:
        """What was counted for long enough."""
        told: list[Event] = []
        for key, fold in list(self._folds.items()):
            if now < fold.until:
                continue
            if fold.count:
                told.append(_together(fold, alike=key[1] is not None))
                fold.until, fold.count = now + self._within_s, 0  # it may go on
            else:
                del self._folds[key]
                self._distinct[key[0]] -= 1
        return told

    def next_due(self) -> float | None:
        """When something that was counted is to be told."""
        return min((fold.until for fold in self._folds.values() if fold.count), default=None)


def _together(fold: _Fold, *, alike: bool) -> Event:
    text = fold.last.text if alike else f"{fold.count:,} more, the last: {fold.last.text}"
    return replace(fold.last, count=fold.count, text=text)
