"""What this node's clients want and provide, counted: what every other node is told, once.

Pure: each change returns what all links are to be told, and a new link is told everything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from busnode.wire.control import Control, Interest, Provide, Unprovide
from busnode.wire.ids import Pattern
from busnode.wire.limits import MIB

QUEUE_CREDIT_BYTES: Final = 1 * MIB
"""What another node may send ahead for the members of a queue group here."""


@dataclass(slots=True)
class _Wanted:
    number: int
    members: int


@dataclass(slots=True)
class _Provided:
    number: int
    providers: int
    eager: int


class Interests:
    """By pattern, and for queue groups by their name: how many clients, under which number."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[Pattern, str | None], _Wanted] = {}
        self._provided: dict[Pattern, _Provided] = {}
        self._queues: dict[int, tuple[str, Pattern]] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._wanted) + len(self._provided)

    def number(self, pattern: Pattern, queue: str | None = None) -> int | None:
        """The number under which an interest was told, or None when there is none."""
        found = self._wanted.get((pattern, queue))
        return None if found is None else found.number

    def queue_of(self, number: int) -> tuple[str, Pattern] | None:
        """The queue group that was told under a number."""
        return self._queues.get(number)

    def want(self, pattern: Pattern, queue: str | None = None) -> list[Control]:
        """One more client wants it. For a queue group their number counts, else only the first."""
        wanted = self._wanted.get((pattern, queue))
        if wanted is None:
            wanted = self._wanted[pattern, queue] = _Wanted(self._number(), 0)
            if queue is not None:
                self._queues[wanted.number] = queue, pattern
        wanted.members += 1
        told = queue is not None or wanted.members == 1
        return [_interest(pattern, queue, wanted)] if told else []

    def unwant(self, pattern: Pattern, queue: str | None = None) -> list[Control]:
        wanted = self._wanted[pattern, queue]
        wanted.members -= 1
        if not wanted.members:
            del self._wanted[pattern, queue]
            self._queues.pop(wanted.number, None)
        told = queue is not None or not wanted.members
        return [_interest(pattern, queue, wanted)] if told else []

    def provide(self, pattern: Pattern, eager: bool) -> list[Control]:
        """One more client answers requests. Told again when the first one comes that is eager."""
        provided = self._provided.get(pattern)
        if provided is None:
            provided = self._provided[pattern] = _Provided(self._number(), 0, 0)
        provided.providers += 1
        provided.eager += eager
        told = provided.providers == 1 or (eager and provided.eager == 1)
        return [Provide(provided.number, pattern, provided.eager > 0)] if told else []

    def unprovide(self, pattern: Pattern, eager: bool) -> list[Control]:
        provided = self._provided[pattern]
        provided.providers -= 1
        provided.eager -= eager
        if not provided.providers:
            del self._provided[pattern]
            return [Unprovide(provided.number)]
        told = eager and not provided.eager
        return [Provide(provided.number, pattern, False)] if told else []

    def everything(self) -> Iterator[Control]:
        """What a new link is told, as it is when each is asked for: telling takes a while."""
        for pattern, queue in list(self._wanted):
            wanted = self._wanted.get((pattern, queue))
            if wanted is not None:
                yield _interest(pattern, queue, wanted)
        for pattern in list(self._provided):
            provided = self._provided.get(pattern)
            if provided is not None:
                yield Provide(provided.number, pattern, provided.eager > 0)

    def _number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number


def _interest(pattern: Pattern, queue: str | None, wanted: _Wanted) -> Interest:
    if queue is None:
        return Interest(wanted.number, pattern, None, min(wanted.members, 1), 0)
    return Interest(wanted.number, pattern, queue, wanted.members, QUEUE_CREDIT_BYTES)
