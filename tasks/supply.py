"""How a home divides what its workers can take among the queue's owners, and an owner what it has
among homes.

A machine without IO, for one queue. A home asks its own queue first, then the others, each in turn;
one that gave less than it was asked for has nothing, and is not asked again before it says so. Each
worker has one ask under way: so no worker, and no owner, comes first twice.
"""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final, assert_never

from busnode.wire.ids import BrokerId
from busnode.wire.limits import TASKS_MAX

ASKS_MAX: Final = 16
"""Asks under way to one owner: enough to keep busy a link on which tasks come one at a time, and no
flood when a thousand workers wait and one task comes."""

HUNGRY_S: Final = 1.0
"""A home that has asked so recently is one of those among whom an owner divides."""


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerWants:
    """A worker can take so many more."""

    worker: int
    want: int


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """It ended its poll, or its connection did."""

    worker: int


@dataclass(frozen=True, slots=True)
class OwnerReady:
    """An owner, or with None this node's own queue, may have something: it is new, or says so."""

    owner: BrokerId | None


@dataclass(frozen=True, slots=True)
class OwnerGone:
    """There is no link to it; what it was asked will not be answered."""

    owner: BrokerId


@dataclass(frozen=True, slots=True)
class Answered:
    """What an ask brought. `more`: who gave less than was wanted has more all the same, and shares
    it; an owner says READY instead."""

    ask: int
    count: int
    more: bool = False


Event = WorkerWants | WorkerGone | OwnerReady | OwnerGone | Answered


# Actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskOwn:
    """Poll this node's own queue for a worker, and say `Answered`. `hungry` workers want something
    now: the queue should give each no more than its share."""

    ask: int
    worker: int
    want: int
    hungry: int


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Poll an owner for a worker."""

    ask: int
    owner: BrokerId
    worker: int
    want: int


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The worker for which something came is gone: release it."""

    ask: int


Action = AskOwn | AskOwner | Unwanted


@dataclass(slots=True)
class _Ask:
    worker: int
    owner: BrokerId | None
    want: int


class Supply:
    """A home's side of one queue."""

    def __init__(self) -> None:
        self._credit: dict[int, int] = {}
        """What each worker can take and was not asked for yet."""
        self._turn: deque[int] = deque()
        """Workers, the next first."""
        self._busy: set[int] = set()
        """Those with an ask under way."""
        self._own_ready = True
        self._ready: deque[BrokerId] = deque()
        """Owners that may have something, the next first."""
        self._asks: dict[int, _Ask] = {}
        self._last_ask = 0

    def handle(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        match event:
            case WorkerWants(worker, want):
                if worker not in self._credit:
                    self._credit[worker] = 0
                    self._turn.append(worker)
                self._credit[worker] += want
            case WorkerGone(worker):
                if self._credit.pop(worker, None) is not None:
                    self._turn.remove(worker)
                    self._busy.discard(worker)
            case OwnerReady(None):
                self._own_ready = True
            case OwnerReady(owner):
                assert owner is not None
                if owner not in self._ready:
                    self._ready.append(owner)
            case OwnerGone(owner):
                if owner in self._ready:
                    self._ready.remove(owner)
                for ask in [ask for ask, each in self._asks.items() if each.owner == owner]:
                    self._end(ask, 0)
            case Answered(ask, count, more):
                actions += self._answer(ask, count, more=more)
            case _:
                assert_never(event)
        return actions + self._deal()

    @property
    def hungry(self) -> int:
        """Workers that can take something."""
        return sum(1 for credit in self._credit.values() if credit > 0)

    @property
    def wanted(self) -> int:
        """What all of them can take, asked for or not."""
        return sum(self._credit.values()) + sum(each.want for each in self._asks.values())

    def _answer(self, ask: int, count: int, *, more: bool) -> list[Action]:
        asked = self._asks.get(ask)
        if asked is None:
            # Its owner was taken for gone, and the credit was given to another one.
            return [Unwanted(ask)] if count else []
        if count < asked.want and not more:
            if asked.owner is None:
                self._own_ready = False
            elif asked.owner in self._ready:
                self._ready.remove(asked.owner)
        if not self._end(ask, count) and count:
            return [Unwanted(ask)]
        return []

    def _end(self, ask: int, count: int) -> bool:
        """Whether the worker is still there."""
        asked = self._asks.pop(ask)
        if asked.worker not in self._credit:
            return False
        self._busy.discard(asked.worker)
        self._credit[asked.worker] += max(0, asked.want - count)
        return True

    def _deal(self) -> list[Action]:
        """Ask for those whose turn it is, as long as somebody may have something."""
        actions: list[Action] = []
        hungry = self.hungry
        asked = Counter(each.owner for each in self._asks.values())
        for worker in list(self._turn):
            want = min(self._credit[worker], TASKS_MAX)
            if want <= 0 or worker in self._busy:
                continue
            if self._own_ready and asked[None]:
                break  # it answers at once, and then it is known whether it has more
            owner = None if self._own_ready else self._next_owner(asked)
            if owner is None and not self._own_ready:
                break
            asked[owner] += 1
            self._credit[worker] -= want
            self._busy.add(worker)
            self._turn.remove(worker)
            self._turn.append(worker)
            self._last_ask += 1
            self._asks[self._last_ask] = _Ask(worker, owner, want)
            if owner is None:
                actions.append(AskOwn(self._last_ask, worker, want, hungry))
            else:
                actions.append(AskOwner(self._last_ask, owner, worker, want))
        return actions

    def _next_owner(self, asked: Counter[BrokerId | None]) -> BrokerId | None:
        for _ in range(len(self._ready)):
            owner = self._ready[0]
            self._ready.rotate(-1)
            if asked[owner] < ASKS_MAX:
                return owner
        return None


class Homes:
    """An owner's side of one queue: what a home may get when several want it."""

    def __init__(self) -> None:
        self._asked_at: dict[BrokerId | None, float] = {}
        self._hungry: set[BrokerId | None] = set()

    def share(self, home: BrokerId | None, available: int, at_s: float) -> int:
        """How many a home, or with None this node itself, may get of what there is now."""
        self._asked_at[home] = at_s
        recent = {each for each, asked in self._asked_at.items() if at_s - asked < HUNGRY_S}
        for each in [each for each in self._asked_at if each not in recent | self._hungry]:
            del self._asked_at[each]
        return -(-available // len(recent | self._hungry))

    def gave(
        self, home: BrokerId | None, want: int, count: int, left: int
    ) -> list[BrokerId | None]:
        """What a home got, and what is left; returns whom to tell that there is something. One that
        got less than it wanted is told when there is more, and at once if it was only its share."""
        if count < want:
            self._hungry.add(home)
        else:
            self._hungry.discard(home)
        return self.ready() if left else []

    def ready(self) -> list[BrokerId | None]:
        """Whom to tell that there is something. They are hungry no more: they ask."""
        told = list(self._hungry)
        self._hungry.clear()
        return told

    def gone(self, home: BrokerId) -> None:
        self._asked_at.pop(home, None)
        self._hungry.discard(home)
