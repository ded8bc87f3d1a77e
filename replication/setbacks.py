"""When a copy that a disk has failed may be tried again.

A machine without IO or clock. A disk that was full for a minute must not cost its node the copies
for good; one that stays full must not be tried with every connection.
"""

from dataclasses import dataclass
from typing import Final

from busnode.wire.ids import BrokerId

PAUSE_S_FIRST: Final = 5.0
PAUSE_S_MAX: Final = 60.0
"""A full disk is emptied by retention or by a person: looking once a minute is soon enough."""

FORGOTTEN_S: Final = 600.0
"""A failure so long after the one before has nothing to do with it."""


@dataclass(slots=True)
class _Setback:
    until: float
    pause_s: float
    is_over: bool = False


class Setbacks:
    """By incarnation: since when, and for how long, its copies are left alone."""

    def __init__(self) -> None:
        self._setbacks: dict[BrokerId, _Setback] = {}

    def add(self, broker_id: BrokerId, now: float) -> None:
        """A copy of that incarnation could not be written: the more often, the longer it rests."""
        self._setbacks = {b: s for b, s in self._setbacks.items() if now < s.until + FORGOTTEN_S}
        before = self._setbacks.get(broker_id)
        pause_s = PAUSE_S_FIRST
        if before is not None:
            pause_s = min(before.pause_s * 2, PAUSE_S_MAX) if before.is_over else before.pause_s
        self._setbacks[broker_id] = _Setback(now + pause_s, pause_s)

    def __len__(self) -> int:
        return len(self._setbacks)

    def left_s(self, broker_id: BrokerId, now: float) -> float:
        """How long its copies must still be left alone."""
        setback = self._setbacks.get(broker_id)
        return 0.0 if setback is None else max(0.0, setback.until - now)

    def may_try(self, broker_id: BrokerId, now: float) -> bool:
        """Whether a copy that was lost has rested for long enough."""
        setback = self._setbacks.get(broker_id)
        return setback is not None and not setback.is_over and now >= setback.until

    def tried(self, broker_id: BrokerId) -> None:
        """All its copies are taken up again: the next failure is a new one."""
        setback = self._setbacks.get(broker_id)
        if setback is not None:
            setback.is_over = True
