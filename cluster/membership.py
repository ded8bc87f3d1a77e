"""Whom to dial and when: what hints, dials and links tell about other nodes.

A machine without IO, clock or randomness; both are told. It never closes a link: a hint may add
somebody to dial, and heartbeats on links decide who is alive.

A node is known by the brokerId with which its process began. Hints that carry one are kept under
it, because addresses do not tell nodes apart: machines with containers all have a 172.17.0.1.
Those that carry none, such as seeds, are kept under their address until somebody answers there.
"""

import enum
from dataclasses import dataclass, field
from typing import Final

from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.network import Address

CANDIDATES_MAX: Final = 256
"""Nodes remembered, up or not: a full mesh of half as many would have 16,000 links."""

RUMOURS_MAX: Final = 128
"""Of these, how many may be there on the word of strangers alone: in a flood of forged hints the
rest of the table stays free for those who are vouched for."""

RUMOURS_A_SECOND: Final = 20.0
"""How many of them are dialled, beyond a whole table of them at once: who forges records must not
make nodes dial as fast as it can send them, be it ourselves or somebody else at that address."""

ADDRESSES_MAX: Final = 8
"""Of one node: all are dialled at once."""

FIRST_S: Final = 0.1
MOST_S: Final = 3.0
"""After an outage of any length a node is dialled again within this time."""

STEADY_S: Final = 5.0
"""A link that lived this long was a good one: what broke it is taken for a new fault."""

FORGET_S: Final = 600.0
"""After so long a hint that never led to anybody is forgotten; mDNS keeps the dead for longer."""

SEED: Final = "seed"

VOUCHED: Final = frozenset({SEED, "dns", "dialled", "peer"})
"""Sources whose word counts: a person, the node itself on a connection, a linked node. All others,
such as mDNS, carry what anybody in the network may say."""


class State(enum.Enum):
    WAITING = "waiting"
    DIALLING = "dialling"
    LINKED = "linked"


class Meeting(enum.Enum):
    """What to do with somebody who has answered."""

    LINK = "link"
    SELF = "self"
    """It was we ourselves."""
    KNOWN = "known"
    """There is a link to that node already."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A node that there may be."""

    addresses: tuple[Address, ...]
    source: str
    heard_at: float
    at: Address | None = None
    """The address that it is kept under, when the hint carried no brokerId."""
    broker_id: BrokerId | None = None
    """Whom we expect there."""
    name: str | None = None
    state: State = State.WAITING
    due: float = 0.0
    failures: int = 0
    was_linked: bool = False
    error: str | None = None

    @property
    def is_seed(self) -> bool:
        return self.source == SEED

    @property
    def is_rumour(self) -> bool:
        """Whether there is nothing but a stranger's word for it."""
        return self.source not in VOUCHED and not self.was_linked


@dataclass(slots=True)
class HintCounts:
    """What became of hints."""

    taken: int = 0
    own: int = 0
    other_cluster: int = 0
    other_protocol: int = 0
    table_full: int = 0


@dataclass(slots=True)
class Membership:
    """All nodes that may be there, as one node sees them."""

    me: BrokerId
    cluster_id: str
    counts: HintCounts = field(default_factory=HintCounts)
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    linked: dict[BrokerId, Candidate] = field(default_factory=dict[BrokerId, Candidate])
    _dials_left: float = CANDIDATES_MAX
    """Of rumours, before they have to wait."""
    _dials_at: float = 0.0

    # Events ---------------------------------------------------------------------------------------

    def hint(self, hint: Hint, now: float) -> None:
        """Somebody says that a node is there."""
        if hint.cluster_id is not None and hint.cluster_id != self.cluster_id:
            self.counts.other_cluster += 1
        elif hint.protocol is not None and hint.protocol != PROTOCOL_VERSION:
            self.counts.other_protocol += 1
        elif hint.broker_id == self.me or not hint.addresses:
            self.counts.own += 1
        else:
            self._take(hint, now)

    def _take(self, hint: Hint, now: float) -> None:
        known = self._find(hint)
        if known is None:
            if not self._make_room(hint.source in VOUCHED):
                self.counts.table_full += 1
                return
            self.counts.taken += 1
            at = hint.addresses[0] if hint.broker_id is None else None
            known = Candidate((), hint.source, now, at, due=now)
            self.candidates.append(known)
        known.broker_id = hint.broker_id or known.broker_id
        known.name = hint.name or known.name
        known.addresses = _together(known, hint)
        if hint.source == SEED or (known.is_rumour and hint.source in VOUCHED):
            known.source = hint.source

    def _find(self, hint: Hint) -> Candidate | None:
        if hint.broker_id is not None:
            for known in self.candidates:
                if known.broker_id == hint.broker_id:
                    return known
            return None
        for known in self.candidates:
            if hint.addresses[0] == known.at:
                return known
        return None

    def dialled_us(self, hint: Hint, now: float) -> None:
        """A node has dialled us: it is there, so we dial back at once."""
        self.hint(hint, now)
        known = self._find(hint) if hint.addresses else None
        if known is not None and known.state is State.WAITING:
            known.due = now

    def take_due(self, now: float) -> list[Candidate]:
        """Those to dial now."""
        self.candidates = [each for each in self.candidates if not self._is_stale(each, now)]
        ready = [each for each in self.candidates if self._is_due(each) and each.due <= now]
        due = [each for each in ready if not each.is_rumour or self._may_dial(each, now)]
        for each in due:
            each.state = State.DIALLING
        return due

    def _may_dial(self, rumour: Candidate, now: float) -> bool:
        """Whether it is this one's turn; otherwise it is when it has waited a little."""
        filled = self._dials_left + max(0.0, now - self._dials_at) * RUMOURS_A_SECOND
        self._dials_left, self._dials_at = min(CANDIDATES_MAX, filled), now
        if self._dials_left < 1:
            rumour.due = now + 1 / RUMOURS_A_SECOND
            return False
        self._dials_left -= 1
        return True

    def next_due(self) -> float | None:
        return min((each.due for each in self.candidates if self._is_due(each)), default=None)

    def met(self, candidate: Candidate, broker_id: BrokerId, name: str) -> Meeting:
        """Somebody has answered a dial."""
        if broker_id == self.me:
            return Meeting.SELF
        if broker_id in self.linked or self._is_kept_elsewhere(candidate, broker_id):
            return Meeting.KNOWN
        candidate.broker_id, candidate.name = broker_id, name
        candidate.state, candidate.error = State.LINKED, None
        candidate.was_linked = True
        self.linked[broker_id] = candidate
        # Others that were kept for the same node have served; what is being dialled may yet lead
        # to somebody else.
        self.candidates = [
            each
            for each in self.candidates
            if each.state is not State.WAITING or each.broker_id != broker_id or each.at is not None
        ]
        return Meeting.LINK

    def met_self(self, candidate: Candidate) -> None:
        """All that answers there is ourselves: there is nobody to dial."""
        self.counts.own += 1
        self._forget(candidate)

    def met_known(self, candidate: Candidate, broker_id: BrokerId, now: float) -> None:
        """All that answers there are nodes to which there is a link, or soon will be: an address
        that we were given rests until that link is lost, for it will be given again; a node that
        only shares one with such a node is dialled on at its others; anything else was another
        name for it."""
        own = self._own_addresses(candidate, broker_id)
        if candidate.at is not None:
            candidate.broker_id = broker_id
            candidate.state = State.WAITING
            candidate.failures = 0
            candidate.due = now + MOST_S
        elif own:
            candidate.addresses = own
            candidate.state = State.WAITING
            candidate.due = now + FIRST_S
        else:
            self._forget(candidate)

    def failed(self, candidate: Candidate, error: str, now: float, draw: float) -> None:
        """Nobody could be reached. `draw` is a random number from [0, 1)."""
        candidate.state = State.WAITING
        candidate.error = error
        self._back_off(candidate, now, draw)

    def lost(self, candidate: Candidate, lived_s: float, now: float, draw: float) -> None:
        """A link has broken: the node is dialled again, for it may be back."""
        self._unlink(candidate)
        candidate.heard_at = now
        if lived_s >= STEADY_S:
            candidate.failures = 0
        self._back_off(candidate, now, draw)

    def left(self, candidate: Candidate, now: float) -> None:
        """A node said goodbye: when it is back it will be heard of."""
        self._unlink(candidate)
        candidate.failures = 0
        candidate.due = now + MOST_S
        if not candidate.is_seed:
            self._forget(candidate)

    # Inside ---------------------------------------------------------------------------------------

    def _unlink(self, candidate: Candidate) -> None:
        assert candidate.broker_id is not None
        del self.linked[candidate.broker_id]
        candidate.state = State.WAITING

    def _back_off(self, candidate: Candidate, now: float, draw: float) -> None:
        whole = min(MOST_S, FIRST_S * 2.0**candidate.failures)
        candidate.failures = min(candidate.failures + 1, 32)
        candidate.due = now + whole * (0.5 + draw / 2)

    def _is_due(self, candidate: Candidate) -> bool:
        """Whether there is a moment at which to dial it."""
        return candidate.state is State.WAITING and candidate.broker_id not in self.linked

    def _is_stale(self, candidate: Candidate, now: float) -> bool:
        """Whether it was dialled in vain for so long that it is forgotten."""
        if candidate.is_seed or candidate.was_linked or not self._is_due(candidate):
            return False
        return candidate.failures > 0 and now - candidate.heard_at > FORGET_S

    def _is_kept_elsewhere(self, candidate: Candidate, broker_id: BrokerId) -> bool:
        """Whether somebody has answered in place of another node, whose address it shares, and is
        itself dialled there: then each is linked by its own candidate."""
        return candidate.broker_id not in (None, broker_id) and any(
            each.broker_id == broker_id and not set(each.addresses).isdisjoint(candidate.addresses)
            for each in self.candidates
        )

    def _own_addresses(self, candidate: Candidate, broker_id: BrokerId) -> tuple[Address, ...]:
        """Those of a node that it does not share with another one, which has answered for it; none
        when they share nothing that is known, for then the other has taken its place."""
        if candidate.broker_id in (None, broker_id):
            return ()
        known = (each.addresses for each in self.candidates if each.broker_id == broker_id)
        shared = {address for addresses in known for address in addresses}
        own = tuple(address for address in candidate.addresses if address not in shared)
        return own if len(own) < len(candidate.addresses) else ()

    def _make_room(self, vouched: bool) -> bool:
        """Whether there is room for one more, if need be in place of who was dialled most in vain.

        One that nobody has tried yet makes room only for who is vouched for: so a flood of forged
        hints cannot push out a true one before it has had its chance. For a rumour only another
        one makes room.
        """
        rumours = sum(each.is_rumour for each in self.candidates)
        if len(self.candidates) < CANDIDATES_MAX and (vouched or rumours < RUMOURS_MAX):
            return True
        spare = [
            each
            for each in self.candidates
            if each.state is State.WAITING
            and not each.is_seed
            and (each.is_rumour or each.failures if vouched else each.is_rumour and each.failures)
        ]
        if not spare:
            return False
        self._forget(max(spare, key=lambda e: (e.is_rumour, not e.was_linked, e.failures)))
        return True

    def _forget(self, candidate: Candidate) -> None:
        self.candidates.remove(candidate)


def _together(known: Candidate, hint: Hint) -> tuple[Address, ...]:
    """All addresses of a node, as far as there is room. What is newest comes first, so that a
    forger who adds some cannot push out for good those that the node itself announces again; but
    a rumour does not touch the first of one that is more than that, for they may have led to it."""
    firm: tuple[Address, ...] = () if known.at is None else (known.at,)
    if hint.source not in VOUCHED and not known.is_rumour:
        firm = known.addresses[: ADDRESSES_MAX // 2]
    return tuple(dict.fromkeys((*firm, *hint.addresses, *known.addresses)))[:ADDRESSES_MAX]
