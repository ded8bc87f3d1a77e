"""Membership under any series of hints, dials, restarts, cuts and goodbyes.

The machine stands in for the owner: it dials what is due, lets dials end in any order and at any
time, and tells what each address has answered. At the end the network is whole and time passes:
then all must be linked who can be found.
"""

from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from busnode.cluster.membership import (
    ADDRESSES_MAX,
    CANDIDATES_MAX,
    MOST_S,
    SEED,
    Candidate,
    Meeting,
    Membership,
    State,
)
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.network import Address

CLUSTER = "plant"
SHARED = Address("172.17.0.1", 4251)
NODES = 4
ME_AT = Address("me", 4251)


def broker(number: int) -> BrokerId:
    return BrokerId(number.to_bytes(16, "big"))


ME = broker(1)


@dataclass
class Host:
    """A machine with one node, which has an address of its own and perhaps one that others have."""

    address: Address
    broker_id: BrokerId
    shares: bool
    up: bool = True

    @property
    def announced(self) -> tuple[Address, ...]:
        return (self.address, SHARED) if self.shares else (self.address,)


hosts = st.integers(0, NODES - 1)
draws = st.floats(0, 0.999)


class MembershipMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership(ME, CLUSTER)
        self.now = 0.0
        self.incarnations = 100
        self.hosts = [
            Host(Address(f"n{n}", 4251), broker(10 + n), shares=n < 2) for n in range(NODES)
        ]
        self.shared_leads_to = 0
        self.dialling: list[tuple[Candidate, tuple[Address, ...]]] = []
        self.links: list[Candidate] = []
        self.seeds: set[Address] = set()
        self.to_be_found: set[int] = set()
        """Hosts whose node was linked at its own address and has not said goodbye since."""

    @initialize(shared_leads_to=st.integers(-1, 1))
    def begin(self, shared_leads_to: int) -> None:
        self.shared_leads_to = shared_leads_to

    # The network ----------------------------------------------------------------------------------

    def answer(self, address: Address) -> BrokerId | None:
        """Who answers there."""
        if address == ME_AT:
            return ME
        if address == SHARED:
            if self.shared_leads_to < 0:
                return ME
            host = self.hosts[self.shared_leads_to]
            return host.broker_id if host.up else None
        for host in self.hosts:
            if host.address == address and host.up:
                return host.broker_id
        return None

    @rule(number=hosts)
    def a_node_is_cut_off(self, number: int) -> None:
        self.hosts[number].up = False

    @rule(number=hosts)
    def a_node_is_back(self, number: int) -> None:
        self.hosts[number].up = True

    @rule(number=hosts)
    def a_node_restarts(self, number: int) -> None:
        self.incarnations += 1
        self.hosts[number].broker_id = broker(self.incarnations)

    @rule(seconds=st.floats(0, 5) | st.floats(0, 5000))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # Hints ----------------------------------------------------------------------------------------

    @rule(number=hosts, source=st.sampled_from(["mdns", "peer"]))
    def a_node_is_hinted_at(self, number: int, source: str) -> None:
        host = self.hosts[number]
        hint = Hint(host.announced, source, CLUSTER, PROTOCOL_VERSION, host.broker_id, "name")
        self.membership.hint(hint, self.now)

    @rule(number=hosts)
    def a_node_dials_us(self, number: int) -> None:
        host = self.hosts[number]
        if host.up:
            hint = Hint(host.announced, "dialled", CLUSTER, PROTOCOL_VERSION, host.broker_id, "n")
            self.membership.dialled_us(hint, self.now)

    @rule(address=st.sampled_from([*(Address(f"n{n}", 4251) for n in range(NODES)), SHARED, ME_AT]))
    def a_seed_is_given(self, address: Address) -> None:
        if self.answer(address) != ME:
            self.seeds.add(address)
        self.membership.hint(Hint((address,), SEED), self.now)

    @rule(number=hosts)
    def a_name_is_resolved(self, number: int) -> None:
        self.membership.hint(Hint((self.hosts[number].address,), "dns"), self.now)

    @rule(number=hosts, forged=st.integers(1, 12))
    def addresses_of_a_node_are_forged(self, number: int, forged: int) -> None:
        host = self.hosts[number]
        addresses = tuple(Address(f"forged{n}", 4251) for n in range(forged))
        hint = Hint(addresses, "mdns", CLUSTER, PROTOCOL_VERSION, host.broker_id, "name")
        self.membership.hint(hint, self.now)

    @rule(first=st.integers(0, 2000), count=st.integers(1, 300))
    def nodes_are_forged(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            address = Address(f"nobody{number}", 4251)
            hint = Hint((address,), "mdns", CLUSTER, PROTOCOL_VERSION, broker(10_000 + number))
            self.membership.hint(hint, self.now)

    # Dials and links ------------------------------------------------------------------------------

    @rule()
    def what_is_due_is_dialled(self) -> None:
        for candidate in self.membership.take_due(self.now):
            assert not any(candidate is other for other, _ in self.dialling), "dialled twice"
            self.dialling.append((candidate, candidate.addresses))

    @precondition(lambda self: self.dialling)
    @rule(which=st.integers(0, 1000), order=st.randoms(use_true_random=False), draw=draws)
    def a_dial_ends(self, which: int, order: Random, draw: float) -> None:
        candidate, addresses = self.dialling.pop(which % len(self.dialling))
        self.end_dial(candidate, tuple(order.sample(addresses, len(addresses))), draw)

    def end_dial(self, candidate: Candidate, addresses: tuple[Address, ...], draw: float) -> None:
        """As `Peers._meet` does: the first that answers and is new."""
        known: list[BrokerId] = []
        met_self = errors = False
        for address in addresses:
            broker_id = self.answer(address)
            if broker_id is None:
                errors = True
                continue
            match self.membership.met(candidate, broker_id, "name"):
                case Meeting.LINK:
                    self.links.append(candidate)
                    self.to_be_found |= {
                        number
                        for number, host in enumerate(self.hosts)
                        if host.address == address and not host.shares
                    }
                    return
                case Meeting.SELF:
                    met_self = True
                case Meeting.KNOWN:
                    known.append(broker_id)
        if known:
            self.membership.met_known(candidate, known[0], self.now)
        elif met_self and not errors:
            self.membership.met_self(candidate)
        else:
            self.membership.failed(candidate, "no answer", self.now, draw)

    @precondition(lambda self: self.links)
    @rule(which=st.integers(0, 1000), lived_s=st.floats(0, 10), draw=draws)
    def a_link_is_lost(self, which: int, lived_s: float, draw: float) -> None:
        candidate = self.links.pop(which % len(self.links))
        self.membership.lost(candidate, lived_s, self.now, draw)

    @precondition(lambda self: self.links)
    @rule(which=st.integers(0, 1000))
    def a_node_says_goodbye(self, which: int) -> None:
        candidate = self.links.pop(which % len(self.links))
        self.to_be_found -= {
            number
            for number, host in enumerate(self.hosts)
            if host.broker_id == candidate.broker_id or host.address in candidate.addresses
        }
        self.membership.left(candidate, self.now)

    # What always holds ----------------------------------------------------------------------------

    @invariant()
    def the_table_is_bounded(self) -> None:
        candidates = self.membership.candidates
        assert len(candidates) <= CANDIDATES_MAX
        assert len({id(each) for each in candidates}) == len(candidates)
        assert all(1 <= len(each.addresses) <= ADDRESSES_MAX for each in candidates)

    @invariant()
    def nobody_is_linked_or_unlinked_but_by_a_link(self) -> None:
        linked = self.membership.linked
        assert ME not in linked
        assert {id(each) for each in linked.values()} == {id(each) for each in self.links}
        assert len(linked) == len(self.links)
        for broker_id, candidate in linked.items():
            assert candidate.broker_id == broker_id
            assert candidate.state is State.LINKED
            assert any(candidate is each for each in self.membership.candidates)

    @invariant()
    def what_is_dialled_is_dialled_once_and_not_forgotten(self) -> None:
        by_owner = {id(candidate) for candidate, _ in self.dialling}
        by_table = {id(each) for each in self.membership.candidates if each.state is State.DIALLING}
        assert by_owner == by_table

    @invariant()
    def who_waits_is_dialled_soon(self) -> None:
        waiting = [each for each in self.membership.candidates if each.state is State.WAITING]
        assert all(each.due <= self.now + MOST_S for each in waiting)
        unlinked = [each.due for each in waiting if each.broker_id not in self.membership.linked]
        assert self.membership.next_due() == min(unlinked, default=None)

    @invariant()
    def no_seed_is_lost(self) -> None:
        kept = {
            address
            for each in self.membership.candidates
            if each.is_seed
            for address in each.addresses
        }
        assert self.seeds <= kept

    def teardown(self) -> None:
        """All is well again: whoever can be found is linked within a few seconds."""
        for host in self.hosts:
            host.up = True
        for candidate in list(self.links):
            if not any(candidate.broker_id == host.broker_id for host in self.hosts):
                self.links.remove(candidate)  # an incarnation that is gone
                self.membership.lost(candidate, 0.0, self.now, 0.9)
        until = self.now + 4 * MOST_S
        while self.now < until:
            for candidate, addresses in self.dialling:
                self.end_dial(candidate, addresses, 0.9)
            self.dialling.clear()
            self.what_is_due_is_dialled()
            self.now += 0.05
        self.the_table_is_bounded()
        self.nobody_is_linked_or_unlinked_but_by_a_link()
        linked = self.membership.linked
        for address in self.seeds:
            assert self.answer(address) in linked, f"the seed {address}"
        for number in self.to_be_found:
            assert self.hosts[number].broker_id in linked, f"the node {number}"


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
