"""Who takes over the tasks of an incarnation that is no more.

A machine without IO. A node that has restarted claims its own earlier incarnations after a moment;
those of a node that stays away are claimed by the first of the live nodes that hold its logs. A
claim is durable and known to all before it is acted on. Of two the earlier wins, and a writer that
is alive wins over all: then the loser is told to let go of what it had taken. Who has claimed a
node's tasks has those too that this one had claimed; of these there may be a longer copy than its
own, for which it waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from busnode.wire.ids import BrokerId

OWN_AFTER_S: Final = 2.0
"""After a start: the links are up by then, and whoever has claimed our tasks has said so."""

GONE_AFTER_S: Final = 10.0
"""A node that restarts is back by then, and goes on with its tasks itself."""

OLD_COPY_TIMES: Final = 6
"""How many times as long an heir waits that knows of a longer copy than any that is there: a
minute, in which a crashed node is started again and a machine boots. What it would do again from an
old copy was done, and may have been paid for; but if that node never comes its tasks must go on."""

COMPARE_S: Final = 2.0
"""In which a node that is there says what it knows of tasks that have come to us with those of
another: of these our copy may be an old one."""

CLAIMS_MAX: Final = 10_000
"""Claims that are remembered. By then the logs of the oldest have expired."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim: the tasks of an origin, as far as these numbers in its queues, are the claimer's."""

    origin: BrokerId
    claimer: BrokerId
    claimed_us: int
    extents: tuple[tuple[str, int], ...] = ()

    def wins(self, other: "Claimed") -> bool:
        return (self.claimed_us, self.claimer) < (other.claimed_us, other.claimer)

    @property
    def is_denial(self) -> bool:
        """An incarnation that is its own claimer is alive after all: what was claimed of it up to
        this moment is void, also when it is no more later on."""
        return self.claimer == self.origin


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """This node is up; these are its earlier incarnations that have tasks."""

    earlier: Sequence[BrokerId]
    at_s: float


@dataclass(frozen=True, slots=True)
class Holds:
    """This node has the logs of an origin with tasks; so have others. All holders, the first choice
    first; empty when it has them no more. `more_away`: a node that is gone had more of them."""

    origin: BrokerId
    holders: Sequence[BrokerId]
    more_away: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """A claim is durable here: somebody has told of it, or it is our own."""

    claimed: Claimed


@dataclass(frozen=True, slots=True)
class WriterSeen:
    """An incarnation is alive."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class WriterGone:
    """An incarnation that was alive cannot be reached, or has said goodbye."""

    broker_id: BrokerId
    at_s: float


@dataclass(frozen=True, slots=True)
class Ticked:
    at_s: float


Event = Started | Holds | Heard | WriterSeen | WriterGone | Ticked


# Actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """Make a claim of these tasks, make it durable, tell the others, and say `Heard`."""

    origin: BrokerId


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The tasks of this origin are ours: carry them."""

    origin: BrokerId


@dataclass(frozen=True, slots=True)
class CancelClaim:
    """What we had claimed is another's, or the writer's own: stop carrying, tell what is finished,
    and let go of the rest as far as the other has it."""

    origin: BrokerId


@dataclass(frozen=True, slots=True)
class Deny:
    """We are alive: make that durable and tell the others."""

    claimed: Claimed


Action = Claim | TakeOver | CancelClaim | Deny


@dataclass(slots=True)
class _Wait:
    """When the first tick came, and when a longer copy was there, or none was known any more."""

    began_at: float | None = None
    compared_at: float | None = None


class Claims:
    """As one incarnation sees them. It knows no clock: it is told the time."""

    def __init__(self, me: BrokerId, gone_after_s: float = GONE_AFTER_S) -> None:
        self.me = me
        self._gone_after_s = gone_after_s
        self._claims: dict[BrokerId, Claimed] = {}
        self._denied: dict[BrokerId, Claimed] = {}
        self._alive: set[BrokerId] = {me}
        self._early: dict[BrokerId, Claimed] = {}
        """Claims of the tasks of incarnations that are alive as far as we know."""
        self._gone_at: dict[BrokerId, float] = {}
        self._started_at = 0.0
        self._earlier: list[BrokerId] = []
        self._holders: dict[BrokerId, tuple[BrokerId, ...]] = {}
        self._old: set[BrokerId] = set()
        """Those of which a longer copy is known to exist."""
        self._held_at: dict[BrokerId, float] = {}
        """Since when its logs are here and it was neither seen nor heard of."""
        self._claiming: set[BrokerId] = set()
        self._taken: set[BrokerId] = set()
        """What is ours to take over."""
        self._waiting: dict[BrokerId, _Wait] = {}
        """Of that, what is not taken over yet for the sake of a longer copy."""

    def handle(self, event: Event) -> list[Action]:
        match event:
            case Started(earlier, at_s):
                self._earlier = list(earlier)
                self._started_at = at_s
                return []
            case Holds(origin, holders, more_away):
                self._holders.pop(origin, None)
                self._old.discard(origin)
                if more_away:
                    self._old.add(origin)
                if holders:
                    self._holders[origin] = tuple(holders)
                else:
                    self._held_at.pop(origin, None)
                return []
            case Heard(claimed):
                return self._hear(claimed)
            case WriterSeen(broker_id):
                return self._see(broker_id)
            case WriterGone(broker_id, at_s):
                if broker_id not in self._alive or broker_id == self.me:
                    return []
                self._alive.discard(broker_id)
                self._gone_at[broker_id] = at_s
                early = self._early.pop(broker_id, None)
                return [] if early is None else self._hear(early)
            case Ticked(at_s):
                return self._tick(at_s)
            case _:
                assert_never(event)

    @property
    def known(self) -> list[Claimed]:
        """What a peer is told on a new link."""
        return [*self._denied.values(), *self._claims.values()]

    def knows(self, claimed: Claimed) -> bool:
        if claimed.is_denial:
            return self._denied.get(claimed.origin) == claimed
        return claimed in (self._claims.get(claimed.origin), self._early.get(claimed.origin))

    def denied_us(self, origin: BrokerId) -> int:
        """Claims of this origin count that are later."""
        denied = self._denied.get(origin)
        return 0 if denied is None else denied.claimed_us

    def claim_of(self, origin: BrokerId) -> Claimed | None:
        return self._claims.get(origin)

    def resolve(self, origin: BrokerId) -> BrokerId | None:
        """The live incarnation that has the tasks of an origin now; None when there is none."""
        seen: set[BrokerId] = set()
        while origin not in self._alive:
            claimed = self._claims.get(origin)
            if claimed is None or origin in seen:
                return None
            seen.add(origin)
            origin = claimed.claimer
        return origin

    def end_of(self, origin: BrokerId) -> BrokerId:
        """The incarnation that has the tasks of an origin now, or had them last."""
        seen = {origin}
        while origin not in self._alive:
            claimed = self._claims.get(origin)
            if claimed is None or claimed.claimer in seen:
                break
            origin = claimed.claimer
            seen.add(origin)
        return origin

    def heirs(self, origin: BrokerId) -> list[BrokerId]:
        """Those who have claimed the tasks of an origin, one from the other, up to the last."""
        found: list[BrokerId] = []
        claimed = self._claims.get(origin)
        while claimed is not None and claimed.claimer not in found:
            found.append(claimed.claimer)
            claimed = self._claims.get(claimed.claimer)
        return found

    def inherited(self, claimer: BrokerId) -> list[BrokerId]:
        """Origins whose tasks are a claimer's, also through others that it has claimed. Who takes
        over the claimer goes on with them: it may have died in the middle."""
        found: list[BrokerId] = [claimer]
        for each in found:  # it grows meanwhile
            found += (
                claimed.origin
                for claimed in self._claims.values()
                if claimed.claimer == each and claimed.origin not in found
            )
        return found[1:]

    def _hear(self, claimed: Claimed) -> list[Action]:
        origin = claimed.origin
        if claimed.is_denial:
            return self._deny(claimed)
        is_ours = claimed.claimer == self.me
        if is_ours:
            self._claiming.discard(origin)
        if claimed.claimed_us <= self.denied_us(origin):
            return [CancelClaim(origin)] if is_ours else []
        if origin == self.me:
            denied = Claimed(origin, origin, claimed.claimed_us)
            return [*self._deny(denied), Deny(denied)]
        if origin in self._alive:
            if is_ours:
                return [CancelClaim(origin)]
            # Others may know sooner than we that it is gone; if it is not, it denies this.
            early = self._early.get(origin)
            if early is None or claimed.wins(early):
                self._early[origin] = claimed
            return []
        best = self._claims.get(origin)
        if best is not None and best != claimed and not claimed.wins(best):
            # An earlier one of our own may come back from others: then it is ours all the same.
            lost = is_ours and best.claimer != self.me
            return [CancelClaim(origin)] if lost else []
        self._claims[origin] = claimed
        if len(self._claims) > CLAIMS_MAX:
            del self._claims[next(iter(self._claims))]
        return [*self._assign(origin), *self._break_circle(origin)]

    def _deny(self, denied: Claimed) -> list[Action]:
        origin = denied.origin
        if denied.claimed_us <= self.denied_us(origin):
            return []
        self._held_at.pop(origin, None)
        self._gone_at.pop(origin, None)
        self._denied.pop(origin, None)
        self._denied[origin] = denied
        if len(self._denied) > CLAIMS_MAX:
            del self._denied[next(iter(self._denied))]
        best = self._claims.get(origin)
        if best is None or best.claimed_us > denied.claimed_us:
            return []
        del self._claims[origin]
        return self._assign(origin)

    def _break_circle(self, origin: BrokerId) -> list[Action]:
        """Of nodes that have claimed each other, and died before one could deny it: the last claim
        does not count."""
        circle: dict[BrokerId, Claimed] = {}
        while origin not in circle:
            claimed = self._claims.get(origin)
            if claimed is None:
                return []
            circle[origin] = claimed
            origin = claimed.claimer
        last = circle[origin]
        at = last.claimer
        while at != origin:
            last = circle[at] if last.wins(circle[at]) else last
            at = circle[at].claimer
        return self._deny(Claimed(last.origin, last.origin, last.claimed_us))

    def _see(self, broker_id: BrokerId) -> list[Action]:
        self._alive.add(broker_id)
        self._early.pop(broker_id, None)
        self._gone_at.pop(broker_id, None)
        self._claims.pop(broker_id, None)
        return self._assign(broker_id)

    def _tick(self, at_s: float) -> list[Action]:
        due: list[BrokerId] = []
        if at_s - self._started_at >= OWN_AFTER_S:
            due += self._earlier
        for origin in self._holders:
            held_at = self._held_at.setdefault(origin, at_s)
            gone_s = at_s - self._gone_at.get(origin, held_at)
            wait_s = self._gone_after_s * (OLD_COPY_TIMES if origin in self._old else 1)
            is_first = self._first_holder(origin) == self.me
            if gone_s >= wait_s and is_first and origin not in due:
                due.append(origin)
        claims = self._waited(at_s)
        for origin in due:
            is_free = origin not in self._claims and origin not in self._alive
            if is_free and origin not in self._claiming:
                self._claiming.add(origin)
                claims.append(Claim(origin))
        return claims

    def _assign(self, origin: BrokerId) -> list[Action]:
        """What is new of an origin's tasks, and of those that it had claimed itself: they are ours
        on whatever way a claim leads to us, also when we have heard of its steps out of order."""
        actions: list[Action] = []
        for each in (origin, *self.inherited(origin)):
            is_ours = each != self.me and self.resolve(each) == self.me
            if is_ours and each not in self._taken:
                self._taken.add(each)
                if self._may_be_taken_over(each):
                    actions.append(TakeOver(each))
                else:
                    self._waiting[each] = _Wait()
            elif not is_ours and each in self._taken:
                self._taken.remove(each)
                self._waiting.pop(each, None)
                actions.append(CancelClaim(each))
        return actions

    def _may_be_taken_over(self, origin: BrokerId) -> bool:
        """Whether no other copy of its logs is known to be longer than ours: then we have claimed
        it. Of what has come to us with the tasks of another there may be one."""
        if self._is_behind_another(origin):
            return False
        if self._claims[origin].claimer == self.me:
            return True
        return origin not in self._old and self._first_holder(origin) in (self.me, None)

    def _is_behind_another(self, origin: BrokerId) -> bool:
        """Whether one is waited for that had its tasks before us: it knows what became of them."""
        return any(heir in self._waiting for heir in self.heirs(origin))

    def _first_holder(self, origin: BrokerId) -> BrokerId | None:
        holders = self._holders.get(origin, ())
        return next((holder for holder in holders if holder in self._alive), None)

    def _waited(self, at_s: float) -> list[Action]:
        """What is taken over now, after a longer copy of it was waited for: until it was there and
        was compared, or in vain."""
        due: list[Action] = []
        for origin, wait in list(self._waiting.items()):
            wait.began_at = at_s if wait.began_at is None else wait.began_at
            if origin in self._old:
                wait.compared_at = None
                is_due = at_s - wait.began_at >= OLD_COPY_TIMES * self._gone_after_s
            else:
                wait.compared_at = at_s if wait.compared_at is None else wait.compared_at
                is_due = at_s - wait.compared_at >= COMPARE_S
            if is_due and not self._is_behind_another(origin):
                del self._waiting[origin]
                due.append(TakeOver(origin))
        return due
