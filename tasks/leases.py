"""Who has which task, until when, and with which fence."""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Final

LEASE_S_MAX: Final = 24 * 3600.0
"""Who works on one task for longer extends its lease."""

SPARE_MAX: Final = 1000
"""Grants of which nothing is left that may stay in the heap beside those that matter."""


class Grant:
    """A run of tasks that was given to a worker at once: number and fence grow together."""

    __slots__ = ("expires_at_s", "first", "last", "left", "name", "offset", "worker")

    def __init__(
        self, first: int, last: int, fence: int, worker: int, name: str, expires_at_s: float
    ) -> None:
        self.first = first
        self.last = last
        self.offset = fence - first
        """What is added to a number to get its fence."""
        self.worker = worker
        self.name = name
        self.expires_at_s = expires_at_s
        self.left = last - first + 1

    def __lt__(self, other: "Grant") -> bool:
        return self.expires_at_s < other.expires_at_s


class Leases:
    """By number. One object for a run of tasks, and an entry in a table for each."""

    def __init__(self) -> None:
        self.grants: dict[int, Grant] = {}
        self._order: list[Grant] = []
        self._live = 0

    def __len__(self) -> int:
        return len(self.grants)

    def __contains__(self, number: int) -> bool:
        return number in self.grants

    def give(self, grant: Grant) -> None:
        if grant.left == 1:
            self.grants[grant.first] = grant
        else:
            self.grants.update(zip(range(grant.first, grant.last + 1), repeat(grant), strict=False))
        self._live += 1
        heappush(self._order, grant)

    def take(self, number: int, fence: int, worker: int, at_s: float) -> Grant | None:
        """End a lease, if it is this worker's and not over."""
        grant = self.grants.get(number)
        if (
            grant is None
            or number + grant.offset != fence
            or grant.worker != worker
            or grant.expires_at_s <= at_s
        ):
            return None
        self.end(number)
        return grant

    def end(self, number: int) -> bool:
        """Whether there was one."""
        grant = self.grants.pop(number, None)
        if grant is None:
            return False
        grant.left -= 1
        if not grant.left:
            self._live -= 1
        return True

    def extend(self, taken: Sequence[tuple[int, Grant]], expires_at_s: float) -> None:
        """Give again what was just taken, with the same fences. Neighbours stay one grant."""
        place = 0
        while place < len(taken):
            first, old = taken[place]
            last = first
            while place < len(taken) and taken[place] == (last, old):
                last += 1
                place += 1
            fence = first + old.offset
            self.give(Grant(first, last - 1, fence, old.worker, old.name, expires_at_s))

    def expire(self, at_s: float) -> Iterator[tuple[Grant, list[int]]]:
        """End the leases that are over."""
        order = self._order
        while order and order[0].expires_at_s <= at_s:
            grant = heappop(order)
            if grant.left:
                each = range(grant.first, grant.last + 1)
                numbers = [number for number in each if self.grants.get(number) is grant]
                for number in numbers:
                    self.end(number)
                yield grant, numbers
        if len(order) > 2 * self._live + SPARE_MAX:
            self._order = [grant for grant in order if grant.left]
            heapify(self._order)
