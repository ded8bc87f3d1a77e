"""How a home divides what its workers can take among the queue's owners, and an owner what it has
among homes.

A machine without IO, for one queue. A home asks its own queue first, then the others, each in turn;
one that gave less than it was asked for has nothing, and is not asked again before it says so. Each
worker has one ask under way: so no worker, and no owner, comes first twice.
"""

from collections import Counter, deque
from collections.abc import Callable
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
    worker: int | None
    """None when it is gone: one that comes back is another one."""
    owner: BrokerId | None
    want: int


class Supply:
    """A home's side of one queue. What an event costs does not grow with the number of workers."""

    def __init__(self, next_ask: Callable[[], int]) -> None:
        """`next_ask` numbers the asks: no two of one home are the same, also not of different
        queues, or of one that all workers have left and come back to."""
        self._next_ask = next_ask
        self._credit: dict[int, int] = {}
        """What each worker can take and was not asked for yet."""
        self._turn: dict[int, None] = {}
        """Workers that can take something and have no ask under way, the next first."""
        self._asking: dict[int, int] = {}
        """The others, with their ask."""
        self._own_ready = True
        self._ready: deque[BrokerId] = deque()
        """Owners that may have something, the next first."""
        self._asks: dict[int, _Ask] = {}
        self._asked: Counter[BrokerId | None] = Counter()
        """Asks under way, by owner."""
        self._renewed: set[int] = set()
        """Asks under way whose owner has said since that it has something: what they bring tells
        how it was before that."""

    def handle(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        match event:
            case WorkerWants(worker, want):
                self._credit[worker] = self._credit.get(worker, 0) + want
                self._queue_up(worker)
            case WorkerGone(worker):
                self._credit.pop(worker, None)
                self._turn.pop(worker, None)
                ask = self._asking.pop(worker, None)
                if ask is not None:
                    self._asks[ask].worker = None
            case OwnerReady(owner):
                if self._asked[owner]:
                    self._renewed.update(n for n, ask in self._asks.items() if ask.owner == owner)
                if owner is None:
                    self._own_ready = True
                elif owner not in self._ready:
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
    def wanted(self) -> int:
        """What all workers can take, asked for or not."""
        asked = sum(each.want for each in self._asks.values() if each.worker is not None)
        return sum(self._credit.values()) + asked

    def _queue_up(self, worker: int) -> None:
        if self._credit[worker] > 0 and worker not in self._asking:
            self._turn[worker] = None

    def _answer(self, ask: int, count: int, *, more: bool) -> list[Action]:
        asked = self._asks.get(ask)
        if asked is None:
            # Its owner was taken for gone, and the credit was given to another one.
            return [Unwanted(ask)] if count else []
        if count < asked.want and not more and ask not in self._renewed:
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
        self._renewed.discard(ask)
        self._asked[asked.owner] -= 1
        if not self._asked[asked.owner]:
            del self._asked[asked.owner]
        if asked.worker is None:
            return False
        del self._asking[asked.worker]
        self._credit[asked.worker] += max(0, asked.want - count)
        self._queue_up(asked.worker)
        return True

    def _deal(self) -> list[Action]:
        """Ask for those whose turn it is, as long as somebody may have something."""
        actions: list[Action] = []
        while self._turn:
            if self._own_ready and self._asked[None]:
                break  # it answers at once, and then it is known whether it has more
            owner = None if self._own_ready else self._next_owner()
            if owner is None and not self._own_ready:
                break
            hungry = len(self._turn)
            worker = next(iter(self._turn))
            want = min(self._credit[worker], TASKS_MAX)
            ask = self._next_ask()
            del self._turn[worker]
            self._credit[worker] -= want
            self._asking[worker] = ask
            self._asked[owner] += 1
            self._asks[ask] = _Ask(worker, owner, want)
            if owner is None:
                actions.append(AskOwn(ask, worker, want, hungry))
            else:
                actions.append(AskOwner(ask, owner, worker, want))
        return actions

    def _next_owner(self) -> BrokerId | None:
        for _ in range(len(self._ready)):
            owner = self._ready[0]
            self._ready.rotate(-1)
            if self._asked[owner] < ASKS_MAX:
                return owner
        return None


class Homes:
    """An owner's side of one queue: what a home may get when several want it."""

    def __init__(self) -> None:
        self._asked_at: dict[BrokerId | None, float] = {}
        self._hungry: dict[BrokerId | None, None] = {}

    def share(self, home: BrokerId | None, available: int, at_s: float) -> int:
        """How many a home, or with None this node itself, may get of what there is now."""
        self._asked_at[home] = at_s
        recent = {each for each, asked in self._asked_at.items() if at_s - asked < HUNGRY_S}
        for each in [each for each in self._asked_at if each not in recent | self._hungry.keys()]:
            del self._asked_at[each]
        return -(-available // len(recent | self._hungry.keys()))

    def gave(
        self, home: BrokerId | None, want: int, count: int, left: int
    ) -> list[BrokerId | None]:
        """What a home got, and what is left; returns whom to tell that there is something. One that
        got less than it wanted is told when there is more, and at once if it was only its share."""
        # One that has got all of an ask may be hungry all the same: whoever asked before it, or
        # while it was answered, may have got nothing.
        if count < want:
            self._hungry[home] = None
        return self.ready() if left else []

    def ready(self) -> list[BrokerId | None]:
        """Whom to tell that there is something. They are hungry no more: they ask."""
        told = list(self._hungry)
        self._hungry.clear()
        return told

    def gone(self, home: BrokerId) -> None:
        self._asked_at.pop(home, None)
        self._hungry.pop(home, None)
