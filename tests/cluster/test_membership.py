"""Whom to dial: nodes that are met by two ways at once."""

from busnode.cluster.membership import Candidate, Meeting, Membership, State
from busnode.wire.ids import BrokerId
from busnode.world.discovery import Hint
from busnode.world.network import Address

ME, THERE, NEXT = (BrokerId(bytes([number]) * 16) for number in range(3))


def dialling_twice(membership: Membership) -> tuple[Candidate, Candidate]:
    """Two candidates, of which the second turns out to be kept for the same node as the first."""
    membership.hint(Hint((Address("127.0.0.1", 1),), "dns"), 0.0)
    membership.hint(Hint((Address("127.0.0.1", 2),), "mdns", broker_id=THERE), 0.0)
    first, second = membership.take_due(0.0)
    assert membership.met(first, THERE, "n2") is Meeting.LINK
    assert membership.candidates == [first]
    return first, second


def test_a_node_that_is_met_a_second_time_after_it_was_forgotten_is_known() -> None:
    membership = Membership(ME, "x")
    first, second = dialling_twice(membership)
    assert membership.met(second, THERE, "n2") is Meeting.KNOWN
    membership.met_known(second, THERE, 0.0)
    assert membership.candidates == [first]


def test_a_node_that_is_met_where_another_was_expected_is_dialled_again_when_it_is_lost() -> None:
    membership = Membership(ME, "x")
    first, second = dialling_twice(membership)
    assert membership.met(second, NEXT, "n3") is Meeting.LINK
    assert membership.candidates == [first, second]
    membership.lost(second, 10.0, 20.0, 0.5)
    assert second.state is State.WAITING
    assert membership.take_due(30.0) == [second]
