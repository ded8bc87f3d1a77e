"""Membership: whom to dial and when, whatever is hinted at, forged, lost and brought back."""

from collections.abc import Iterator

import pytest

from busnode.cluster.membership import (
    ADDRESSES_MAX,
    CANDIDATES_MAX,
    FORGET_S,
    MOST_S,
    RUMOURS_A_SECOND,
    SEED,
    STEADY_S,
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
PORT = 4251
SHARED = Address("172.17.0.1", PORT)


def broker(number: int) -> BrokerId:
    return BrokerId(number.to_bytes(16, "big"))


ME = broker(1)
X, Y, Z = broker(2), broker(3), broker(4)


def at(host: str) -> Address:
    return Address(host, PORT)


def mdns(broker_id: BrokerId, *addresses: Address) -> Hint:
    return Hint(addresses, "mdns", CLUSTER, PROTOCOL_VERSION, broker_id, broker_id.hex()[-4:])


def dialled(broker_id: BrokerId, *addresses: Address) -> Hint:
    return mdns(broker_id, *addresses)._replace(source="dialled")


def seed(address: Address) -> Hint:
    return Hint((address,), SEED)


def forged(count: int) -> Iterator[Hint]:
    for number in range(count):
        yield mdns(broker(1000 + number), Address(f"10.{number >> 8}.{number & 255}.66", PORT))


@pytest.fixture
def membership() -> Membership:
    return Membership(ME, CLUSTER)


def link(
    membership: Membership, hint: Hint, now: float = 0.0, broker_id: BrokerId | None = None
) -> Candidate:
    """Hint at a node, dial it and link to it."""
    membership.hint(hint, now)
    (candidate,) = membership.take_due(now)
    who = broker_id or hint.broker_id
    assert who is not None
    assert membership.met(candidate, who, "name") is Meeting.LINK
    return candidate


def lose(membership: Membership, candidate: Candidate, now: float) -> None:
    membership.lost(candidate, STEADY_S, now, 0.5)


def dialled_addresses(membership: Membership, now: float) -> set[Address]:
    return {address for each in membership.take_due(now) for address in each.addresses}


# Hints --------------------------------------------------------------------------------------------


def test_a_hint_is_dialled_once_and_at_once(membership: Membership) -> None:
    membership.hint(mdns(X, at("x")), 5.0)
    assert membership.next_due() == 5.0
    (candidate,) = membership.take_due(5.0)
    assert (candidate.addresses, candidate.broker_id) == ((at("x"),), X)
    membership.hint(mdns(X, at("x")), 6.0)
    assert membership.take_due(6.0) == []
    assert membership.next_due() is None


def test_hints_of_other_clusters_and_protocols_are_ignored_and_counted(
    membership: Membership,
) -> None:
    membership.hint(mdns(X, at("x"))._replace(cluster_id="other"), 0.0)
    membership.hint(mdns(X, at("x"))._replace(protocol=PROTOCOL_VERSION + 1), 0.0)
    membership.dialled_us(dialled(X, at("x"))._replace(cluster_id="other"), 0.0)
    assert membership.candidates == []
    assert (membership.counts.other_cluster, membership.counts.other_protocol) == (2, 1)
    assert membership.counts.taken == 0


def test_a_hint_at_this_node_itself_is_counted_and_not_dialled(membership: Membership) -> None:
    membership.hint(mdns(ME, at("me")), 0.0)
    assert membership.candidates == []
    assert membership.counts.own == 1


def test_a_node_that_has_dialled_us_without_an_address_cannot_be_dialled(
    membership: Membership,
) -> None:
    membership.dialled_us(dialled(X), 0.0)
    assert membership.candidates == []


def test_a_hint_without_a_brokerid_is_not_taken_twice(membership: Membership) -> None:
    for now in (0.0, 10.0, 20.0):
        membership.hint(Hint((at("x"),), "dns"), now)
    assert len(membership.candidates) == 1
    membership.hint(seed(at("x")), 30.0)
    (candidate,) = membership.candidates
    assert candidate.is_seed


def test_all_addresses_of_a_node_are_kept_up_to_a_limit(membership: Membership) -> None:
    membership.hint(mdns(X, at("x1"), at("x2")), 0.0)
    membership.hint(mdns(X, at("x2"), at("x3")), 0.0)
    (candidate,) = membership.candidates
    assert set(candidate.addresses) == {at("x1"), at("x2"), at("x3")}
    membership.hint(mdns(X, *(at(f"y{n}") for n in range(20))), 0.0)
    assert len(candidate.addresses) == ADDRESSES_MAX


# Forgers ------------------------------------------------------------------------------------------


def test_forged_hints_fill_no_more_than_the_table(membership: Membership) -> None:
    for hint in forged(10_000):
        membership.hint(hint, 0.0)
        assert len(membership.candidates) <= CANDIDATES_MAX
    assert membership.counts.table_full + len(membership.candidates) == 10_000


def test_forged_hints_are_not_dialled_as_fast_as_they_come(membership: Membership) -> None:
    dials = 0
    for number, hint in enumerate(forged(10_000)):
        now = number / 1000
        membership.hint(hint, now)
        for candidate in membership.take_due(now):
            dials += 1
            membership.failed(candidate, "refused", now, 0.5)
    assert CANDIDATES_MAX < dials <= CANDIDATES_MAX + 10 * RUMOURS_A_SECOND
    # Who is vouched for does not wait for its turn.
    membership.dialled_us(dialled(X, at("x")), 10.0)
    assert at("x") in dialled_addresses(membership, 10.0)


@pytest.mark.parametrize("being_dialled", [False, True], ids=["untried", "being dialled"])
@pytest.mark.parametrize(
    "hint", [seed(at("x")), dialled(X, at("x"))], ids=["seed", "dialled us"]
)  # fmt: skip
def test_who_is_a_seed_or_has_dialled_us_is_dialled_in_a_flood_of_forged_hints(
    membership: Membership, hint: Hint, being_dialled: bool
) -> None:
    for number, each in enumerate(forged(10_000)):
        membership.hint(each, 0.0)
        if being_dialled and number % 50 == 0:
            membership.take_due(0.0)
    membership.dialled_us(hint, 1.0)
    assert at("x") in dialled_addresses(membership, 1.0)
    assert len(membership.candidates) <= CANDIDATES_MAX


def test_a_flood_drops_no_linked_node_and_none_whose_link_was_just_lost(
    membership: Membership,
) -> None:
    x, y = link(membership, mdns(X, at("x"))), link(membership, mdns(Y, at("y")))
    lose(membership, y, 10.0)
    for number, each in enumerate(forged(10_000)):
        membership.hint(each, 10.0)
        if number % 50 == 0:
            assert y not in membership.take_due(10.0)  # all others are being dialled
    assert membership.linked == {X: x}
    assert x.state is State.LINKED
    assert y in membership.candidates
    lose(membership, x, 20.0)
    assert dialled_addresses(membership, 20.0 + MOST_S) >= {at("x"), at("y")}


def test_a_flood_of_those_who_dial_us_takes_the_place_of_dead_nodes_first(
    membership: Membership,
) -> None:
    """Also a table full of nodes that were here once has room for one that is here now."""
    for number in range(CANDIDATES_MAX):
        candidate = link(membership, mdns(broker(100 + number), at(f"old{number}")), now=0.0)
        lose(membership, candidate, 0.0)
        candidate.due = 1e9
    membership.hint(mdns(X, at("x")), 1.0)
    assert membership.counts.table_full == 1
    membership.dialled_us(dialled(X, at("x")), 1.0)
    assert dialled_addresses(membership, 1.0) == {at("x")}
    assert len(membership.candidates) == CANDIDATES_MAX


def test_no_hint_at_all_drops_who_is_linked_or_being_dialled(membership: Membership) -> None:
    for number in range(CANDIDATES_MAX // 2):
        candidate = link(membership, mdns(broker(100 + number), at(f"n{number}")))
        membership.lost(candidate, 0.0, 0.0, 0.5)
        assert membership.take_due(candidate.due) == [candidate]
        assert membership.met(candidate, broker(100 + number), "n") is Meeting.LINK
    for hint in forged(CANDIDATES_MAX // 2):
        membership.hint(hint, 0.0)
    membership.take_due(0.0)
    before = list(membership.candidates)
    for hint in forged(1000):
        membership.dialled_us(hint._replace(source="dialled", broker_id=X), 1.0)
        membership.hint(seed(at(str(hint.addresses[0]))), 1.0)
    assert membership.candidates == before
    assert membership.counts.table_full == 2000


@pytest.mark.parametrize("is_seed", [True, False], ids=["seed", "linked"])
def test_forged_addresses_do_not_push_out_those_of_a_node_that_was_linked(
    membership: Membership, is_seed: bool
) -> None:
    hint = seed(at("x")) if is_seed else mdns(X, at("x"))
    candidate = link(membership, hint, broker_id=X)
    for number in range(100):
        membership.hint(mdns(X, *(at(f"forged{number}-{n}") for n in range(ADDRESSES_MAX))), 1.0)
    lose(membership, candidate, 10.0)
    assert at("x") in dialled_addresses(membership, 10.0 + MOST_S)


def test_a_linked_node_that_has_moved_is_dialled_where_it_says_now(membership: Membership) -> None:
    candidate = link(membership, mdns(X, *(at(f"old{n}") for n in range(ADDRESSES_MAX))))
    membership.hint(mdns(X, at("new")), 1.0)
    lose(membership, candidate, 10.0)
    assert at("new") in dialled_addresses(membership, 10.0 + MOST_S)


# Who answers --------------------------------------------------------------------------------------


def test_where_this_node_itself_answers_nobody_is_dialled_again(membership: Membership) -> None:
    membership.hint(seed(at("me")), 0.0)
    (candidate,) = membership.take_due(0.0)
    assert membership.met(candidate, ME, "me") is Meeting.SELF
    membership.met_self(candidate)
    assert membership.candidates == []
    assert membership.counts.own == 1
    assert membership.next_due() is None


def test_a_node_that_has_restarted_is_linked_under_its_new_brokerid(
    membership: Membership,
) -> None:
    candidate = link(membership, mdns(X, at("x")))
    lose(membership, candidate, 10.0)
    (again,) = membership.take_due(20.0)
    assert membership.met(again, Y, "name") is Meeting.LINK
    assert membership.linked == {Y: again}
    assert membership.candidates == [again]


@pytest.mark.parametrize("old_answers_first", [True, False])
def test_a_restarted_node_that_is_dialled_as_both_incarnations_is_linked_once(
    membership: Membership, old_answers_first: bool
) -> None:
    old = link(membership, mdns(X, at("x")))
    lose(membership, old, 10.0)
    membership.hint(mdns(Y, at("x")), 20.0)
    dials = membership.take_due(20.0)
    assert [each.broker_id for each in dials] == [X, Y]
    for candidate in dials if old_answers_first else reversed(dials):
        if membership.met(candidate, Y, "name") is Meeting.KNOWN:
            membership.met_known(candidate, Y, 20.0)
    assert list(membership.linked) == [Y]
    assert membership.candidates == [membership.linked[Y]]
    assert membership.next_due() is None


def test_a_dial_that_ends_after_its_node_was_linked_otherwise_still_counts(
    membership: Membership,
) -> None:
    """Two candidates turn out to be one node while both are dialled; then the later one meets a
    third node, which must be dialled again when its link is lost."""
    membership.hint(seed(at("a")), 0.0)
    membership.hint(mdns(X, at("b")), 0.0)
    first, second = membership.take_due(0.0)
    assert membership.met(first, X, "x") is Meeting.LINK
    assert membership.met(second, Z, "z") is Meeting.LINK
    lose(membership, second, 10.0)
    assert dialled_addresses(membership, 10.0 + MOST_S) == {at("b")}


def test_nodes_that_share_an_address_are_two_candidates(membership: Membership) -> None:
    membership.hint(mdns(X, at("x"), SHARED), 0.0)
    membership.hint(mdns(Y, at("y"), SHARED), 0.0)
    assert [each.broker_id for each in membership.take_due(0.0)] == [X, Y]


@pytest.mark.parametrize("x_is_up", [True, False])
def test_who_answers_at_a_shared_address_does_not_take_the_place_of_the_other(
    membership: Membership, x_is_up: bool
) -> None:
    membership.hint(mdns(X, at("x"), SHARED), 0.0)
    membership.hint(mdns(Y, at("y"), SHARED), 0.0)
    x, y = membership.take_due(0.0)
    assert membership.met(x, Y, "y") is Meeting.KNOWN  # at the shared address, which is nearer
    if x_is_up:
        assert membership.met(x, X, "x") is Meeting.LINK
    else:
        membership.met_known(x, Y, 0.0)
    assert membership.met(y, Y, "y") is Meeting.LINK
    if x_is_up:
        assert membership.linked == {X: x, Y: y}
    else:
        assert membership.linked == {Y: y}
        assert dialled_addresses(membership, MOST_S) == {at("x")}


def test_a_node_that_was_linked_is_dialled_on_while_another_answers_at_a_shared_address(
    membership: Membership,
) -> None:
    link(membership, mdns(Y, at("y"), SHARED))
    x = link(membership, mdns(X, at("x"), SHARED))
    lose(membership, x, 10.0)
    (again,) = membership.take_due(20.0)
    assert membership.met(again, Y, "y") is Meeting.KNOWN
    membership.met_known(again, Y, 20.0)
    (again,) = membership.take_due(20.0 + MOST_S)
    assert at("x") in again.addresses


def test_a_seed_is_not_mistaken_for_a_node_that_shares_its_address(membership: Membership) -> None:
    membership.hint(mdns(X, at("x"), SHARED), 0.0)
    membership.hint(seed(SHARED), 0.0)
    x, the_seed = membership.take_due(0.0)
    assert the_seed.addresses == (SHARED,)
    assert membership.met(x, X, "x") is Meeting.LINK
    assert membership.met(the_seed, Y, "y") is Meeting.LINK


def test_a_node_that_answers_where_another_was_expected_is_linked_if_it_is_nowhere_else(
    membership: Membership,
) -> None:
    membership.hint(mdns(X, at("x")), 0.0)
    membership.hint(mdns(Y, at("nowhere")), 0.0)
    x, y = membership.take_due(0.0)
    membership.failed(y, "no answer", 0.0, 0.5)
    assert membership.met(x, Y, "y") is Meeting.LINK


def test_a_seed_that_leads_to_a_linked_node_rests_until_that_link_is_lost(
    membership: Membership,
) -> None:
    x = link(membership, mdns(X, at("x")))
    membership.hint(seed(at("s")), 1.0)
    (the_seed,) = membership.take_due(1.0)
    assert membership.met(the_seed, X, "x") is Meeting.KNOWN
    membership.met_known(the_seed, X, 1.0)
    assert membership.next_due() is None
    assert membership.take_due(1e6) == []
    lose(membership, x, 1e6)
    assert the_seed in membership.take_due(1e6 + MOST_S)


def test_a_name_that_keeps_leading_to_a_linked_node_is_not_dialled_again_and_again(
    membership: Membership,
) -> None:
    """A resolver tells of the same address every few seconds, for as long as there is a link."""
    x = link(membership, mdns(X, at("x")))
    dials = 0
    for now in range(0, int(3 * FORGET_S), 10):
        membership.hint(Hint((at("alias"),), "dns"), now)
        for alias in membership.take_due(now):
            dials += 1
            assert membership.met(alias, X, "x") is Meeting.KNOWN
            membership.met_known(alias, X, now)
    assert dials == 1
    lose(membership, x, 3 * FORGET_S)
    membership.hint(Hint((at("alias"),), "dns"), 3 * FORGET_S)
    assert at("alias") in dialled_addresses(membership, 3 * FORGET_S)


def test_a_brokerid_under_which_another_node_answers_is_forgotten(membership: Membership) -> None:
    x = link(membership, mdns(X, at("x")))
    membership.hint(mdns(Y, at("x")), 1.0)
    (alias,) = membership.take_due(1.0)
    assert membership.met(alias, X, "x") is Meeting.KNOWN
    membership.met_known(alias, X, 1.0)
    assert membership.candidates == [x]


# Time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999_999])
@pytest.mark.parametrize("is_seed", [True, False], ids=["seed", "was linked"])
def test_after_an_outage_of_any_length_a_node_is_dialled_within_seconds(
    membership: Membership, draw: float, is_seed: bool
) -> None:
    now = 0.0
    if is_seed:
        membership.hint(seed(at("x")), now)
    else:
        lose(membership, link(membership, mdns(X, at("x"))), now)
    waits: list[float] = []
    while now < 6 * 3600.0:
        due = membership.next_due()
        assert due is not None
        assert due - now <= MOST_S
        waits.append(due - now)
        now = max(now, due)
        (candidate,) = membership.take_due(now)
        now += 2.0
        membership.failed(candidate, "no answer", now, draw)
    assert waits[1] < waits[3] < waits[6] == pytest.approx(waits[-1])


def test_a_link_that_keeps_breaking_is_dialled_ever_more_seldom_and_a_steady_one_at_once(
    membership: Membership,
) -> None:
    candidate = link(membership, mdns(X, at("x")))
    now, waits = 0.0, list[float]()
    for lived_s in (0.1, 0.1, 0.1, 0.1, STEADY_S):
        now += lived_s
        membership.lost(candidate, lived_s, now, 0.5)
        waits.append(candidate.due - now)
        now = candidate.due
        assert membership.take_due(now) == [candidate]
        assert membership.met(candidate, X, "x") is Meeting.LINK
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert waits[4] == pytest.approx(waits[0])


def test_a_node_that_dials_us_is_dialled_back_without_waiting(membership: Membership) -> None:
    membership.hint(mdns(X, at("x")), 0.0)
    (candidate,) = membership.take_due(0.0)
    for _ in range(10):
        membership.failed(candidate, "no answer", 0.0, 0.9)
    assert membership.take_due(1.0) == []
    membership.dialled_us(dialled(X, at("x")), 1.0)
    assert membership.take_due(1.0) == [candidate]


def test_a_node_that_said_goodbye_is_not_dialled_before_it_is_heard_of(
    membership: Membership,
) -> None:
    candidate = link(membership, mdns(X, at("x")))
    membership.left(candidate, 10.0)
    assert membership.linked == {}
    assert membership.take_due(1e6) == []
    membership.dialled_us(dialled(Y, at("x")), 1e6)
    assert dialled_addresses(membership, 1e6) == {at("x")}


def test_a_seed_that_said_goodbye_is_dialled_again(membership: Membership) -> None:
    candidate = link(membership, seed(at("x")), broker_id=X)
    membership.left(candidate, 10.0)
    assert membership.take_due(10.0) == []
    assert membership.take_due(10.0 + MOST_S) == [candidate]
    assert membership.met(candidate, Y, "x again") is Meeting.LINK


def test_what_led_to_nobody_is_forgotten_and_who_was_once_linked_is_not(
    membership: Membership,
) -> None:
    once = link(membership, mdns(X, at("x")))
    lose(membership, once, 0.0)
    membership.hint(seed(at("s")), 0.0)
    membership.hint(mdns(Z, at("z")), 0.0)
    for now in (1.0, FORGET_S - MOST_S, FORGET_S + 1.0):
        # mDNS goes on telling of the dead: that does not keep them.
        if now < FORGET_S:
            membership.hint(mdns(Z, at("z")), now)
        for candidate in membership.take_due(now):
            membership.failed(candidate, "no answer", now, 0.5)
    assert [each.addresses for each in membership.candidates] == [(at("x"),), (at("s"),)]
    assert dialled_addresses(membership, 100 * FORGET_S) == {at("x"), at("s")}
