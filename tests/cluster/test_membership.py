"""Whom to dial and when, told event by event."""

from busnode.cluster.membership import Candidate, Meeting, Membership
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.network import Address

ME, OLD, NEW = (BrokerId(bytes([number]) * 16) for number in (1, 2, 3))


def heard(broker_id: BrokerId) -> Hint:
    """A node at the one address that there is."""
    return Hint((Address("n", 1),), "mdns", "c", PROTOCOL_VERSION, broker_id, "n")


def dialled_twice() -> tuple[Membership, Candidate, Candidate]:
    """A node has been started again at its old address: both that it was and that it is are
    dialled, and the first has just led to it."""
    membership = Membership(ME, "c")
    membership.hint(heard(OLD), 0.0)
    membership.hint(heard(NEW), 0.0)
    first, second = membership.take_due(0.0)
    assert membership.met(first, NEW, "n") is Meeting.LINK
    return membership, first, second


def test_a_second_dial_that_leads_to_the_same_node_changes_nothing() -> None:
    membership, first, second = dialled_twice()
    assert membership.met(second, NEW, "n") is Meeting.KNOWN
    membership.met_known(second, NEW, 1.0)
    assert membership.candidates == [first]
    assert membership.next_due() is None


def test_a_second_dial_that_succeeds_after_the_first_link_is_lost_is_kept_and_dialled_again() -> (
    None
):
    membership, first, second = dialled_twice()
    membership.lost(first, 0.0, 1.0, 0.0)
    assert membership.met(second, NEW, "n") is Meeting.LINK
    assert membership.candidates == [second]
    membership.lost(second, 0.0, 2.0, 0.0)
    assert membership.take_due(10.0) == [second]
