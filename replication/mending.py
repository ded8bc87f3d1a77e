"""Which holes in this node's logs are filled from other copies, when, and who is asked.

A machine without IO. A hole is tried at once when it becomes known, and again later with longer
and longer pauses: whoever has the range may be away. When a node comes, all are tried again.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from busnode.replication.mirror_choice import rendezvous
from busnode.wire.ids import BrokerId, LogId, MsgNo

AGAIN_S_FIRST: Final = 2.0
AGAIN_S_MAX: Final = 600.0
"""A range that nobody had ten times is still asked for: it costs each holder one look."""

UNCONFIRMED_MAX: Final = 4
"""How often what could not be read, and is found to be good, is read again before it is given up:
a disk that hesitates now and then is no reason for a gap."""

HOLES_MAX: Final = 10_000
"""Holes that are remembered: those beyond are found again when others are filled."""


class HoleKey(NamedTuple):
    """A hole is known by where it begins."""

    log_id: LogId
    first_no: MsgNo


class _Attempt:
    __slots__ = ("due_at", "is_known", "is_open", "pause_s", "unconfirmed")

    def __init__(self, now: float) -> None:
        self.due_at = now
        self.unconfirmed = 0
        self.pause_s = AGAIN_S_FIRST
        self.is_open = True
        """Whether it is not known yet if somebody has it."""
        self.is_known = True


class MendPlan:
    """It knows no clock: it is told the time."""

    def __init__(self) -> None:
        self._attempts: dict[HoleKey, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def met(self, key: HoleKey, now: float, *, is_known: bool = True) -> bool:
        """A hole is there, or, where it is not `is_known`, something could not be read; whether it
        is worth waiting for. False when nobody had it a short while ago."""
        attempt = self._attempts.get(key)
        if attempt is None:
            if len(self._attempts) >= HOLES_MAX:
                return False
            attempt = self._attempts[key] = _Attempt(now)
        attempt.is_known = is_known
        return attempt.is_open or attempt.due_at <= now

    def take(self, now: float, *, is_known: bool = True) -> HoleKey | None:
        """One that is to be tried now, if there is one. It is tried before another is taken. What
        is not known to be a hole is looked at on this node's disk, and does not wait until others
        have answered for all that is: hence one at a time of each."""
        for key, attempt in self._attempts.items():
            if attempt.due_at <= now and attempt.is_known == is_known:
                attempt.is_open = True
                return key
        return None

    def failed(self, key: HoleKey, now: float) -> None:
        """Nobody had it."""
        self._wait(key, now, is_open=False)

    def postponed(self, key: HoleKey, now: float) -> None:
        """Somebody who may have it could not be asked, and is expected to come back."""
        self._wait(key, now, is_open=True)

    def _wait(self, key: HoleKey, now: float, *, is_open: bool) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.is_open = is_open
            attempt.due_at = now + attempt.pause_s
            attempt.pause_s = min(2 * attempt.pause_s, AGAIN_S_MAX)

    def unconfirmed(self, key: HoleKey, now: float) -> bool:
        """A reader met it, and who looked found nothing wrong; whether it is worth reading again.
        If it is met again, it is looked at again soon."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return True
        attempt.unconfirmed += 1
        if attempt.unconfirmed > UNCONFIRMED_MAX:
            self.failed(key, now)
            return False
        attempt.is_open = True
        attempt.due_at = now + AGAIN_S_FIRST / 2
        return True

    def gone(self, key: HoleKey) -> None:
        """It was mended, or has expired."""
        self._attempts.pop(key, None)

    def came(self, now: float) -> None:
        """A node has come, or tells of more: it may have what the others lack."""
        for attempt in self._attempts.values():
            attempt.due_at = min(attempt.due_at, now)
            attempt.pause_s = AGAIN_S_FIRST


def whom_to_ask(
    broker_id: BrokerId, members: Iterable[BrokerId], holders: Iterable[BrokerId]
) -> list[BrokerId]:
    """In which order nodes are asked for what is missing of an incarnation's logs: first the one
    that writes them, then those who are known to hold some. The others come last, and are asked
    too: what nodes tell each other is a little behind."""
    known = set(holders)
    return sorted(
        rendezvous(broker_id, members), key=lambda node: (node != broker_id, node not in known)
    )
