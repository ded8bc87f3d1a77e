"""Which holes are tried, when again, and who is asked first."""

from itertools import pairwise

from busnode.replication.mending import (
    AGAIN_S_FIRST,
    AGAIN_S_MAX,
    HOLES_MAX,
    UNCONFIRMED_MAX,
    HoleKey,
    MendPlan,
    whom_to_ask,
)
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic

LOG = LogId(BrokerId(bytes(16)), Topic("/t"))


def key(first_no: int) -> HoleKey:
    return HoleKey(LOG, MsgNo(first_no))


def test_a_hole_is_tried_at_once_and_then_with_longer_and_longer_pauses() -> None:
    plan = MendPlan()
    assert plan.take(0.0) is None
    assert plan.met(key(1), 0.0)
    tried: list[float] = []
    now = 0.0
    while now < 5000:
        if plan.take(now) is not None:
            tried.append(now)
            plan.failed(key(1), now)
        now += 1.0
    pauses = [after - before for before, after in pairwise(tried)]
    assert tried[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[0] == 2.0
    assert pauses[-1] == AGAIN_S_MAX


def test_it_is_worth_waiting_until_it_is_known_that_nobody_has_it() -> None:
    plan = MendPlan()
    assert plan.met(key(1), 0.0)
    assert plan.take(0.0) == key(1)
    assert plan.met(key(1), 0.1), "it is being tried"
    plan.postponed(key(1), 0.2)
    assert plan.met(key(1), 0.3), "who may have it is expected back"
    plan.failed(key(1), 0.4)
    assert not plan.met(key(1), 0.5)
    plan.came(0.6)
    assert plan.met(key(1), 0.6), "somebody has come"
    plan.gone(key(1))
    assert plan.take(100.0) is None


def test_what_is_found_to_be_good_is_read_again_a_few_times_and_then_given_up() -> None:
    plan = MendPlan()
    assert plan.met(key(1), 0.0)
    now = 0.0
    for _ in range(UNCONFIRMED_MAX):
        assert plan.take(now) == key(1)
        assert plan.unconfirmed(key(1), now)
        assert plan.met(key(1), now), "it is worth waiting for"
        assert plan.take(now) is None
        now += AGAIN_S_FIRST
    assert plan.take(now) == key(1)
    assert not plan.unconfirmed(key(1), now)
    assert not plan.met(key(1), now)


def test_what_is_no_hole_yet_does_not_wait_behind_those_that_are_tried() -> None:
    plan = MendPlan()
    assert plan.met(key(1), 0.0)
    assert plan.met(key(2), 0.0, is_known=False)
    assert plan.take(0.0) == key(1)
    assert plan.take(0.0, is_known=False) == key(2)
    assert plan.met(key(2), 0.1), "and now it is one"
    plan.gone(key(1))
    assert plan.take(0.1, is_known=False) is None
    assert plan.take(0.1) == key(2)


def test_no_more_holes_are_remembered_than_there_is_room_for() -> None:
    plan = MendPlan()
    for number in range(1, HOLES_MAX + 1):
        assert plan.met(key(number), 0.0)
    assert not plan.met(key(HOLES_MAX + 1), 0.0)
    assert len(plan) == HOLES_MAX
    plan.gone(key(1))
    assert plan.met(key(HOLES_MAX + 1), 0.0)


def test_the_writer_is_asked_first_then_who_is_known_to_hold_it_then_the_others() -> None:
    nodes = [BrokerId(bytes([number]) * 16) for number in range(1, 7)]
    order = whom_to_ask(nodes[2], nodes, [nodes[0], nodes[5]])
    assert order[0] == nodes[2]
    assert set(order[1:3]) == {nodes[0], nodes[5]}
    assert set(order) == set(nodes)
