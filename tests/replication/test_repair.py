"""Who makes which copy: decided by each node alone, and all agree."""

from hypothesis import given
from hypothesis import strategies as st

from busnode.replication.repair import Held, Patience, Push, plan_repairs
from busnode.wire.ids import BrokerId

NODES = [BrokerId(bytes([number]) * 16) for number in range(1, 6)]
DEAD = [BrokerId(bytes([number]) * 16) for number in range(100, 104)]


def planned(
    holdings: dict[BrokerId, dict[BrokerId, Held]], wanted: int = 2
) -> dict[BrokerId, list[Push]]:
    return {node: plan_repairs(node, wanted, holdings, NODES) for node in holdings}


def test_what_has_enough_copies_is_left_alone() -> None:
    holdings = {NODES[0]: {DEAD[0]: Held(1, 5)}, NODES[1]: {DEAD[0]: Held(1, 5)}, NODES[2]: {}}
    assert not any(planned(holdings).values())


def test_what_is_still_written_is_its_origins_affair() -> None:
    holdings = {NODES[0]: {NODES[1]: Held(1, 5)}, NODES[1]: {}, NODES[2]: {}}
    assert not any(planned(holdings).values())


def test_a_lonely_copy_is_given_a_second_by_its_holder() -> None:
    holdings = {NODES[0]: {DEAD[0]: Held(1, 5)}, NODES[1]: {}, NODES[2]: {}}
    plans = planned(holdings)
    (push,) = plans.pop(NODES[0])
    assert push.broker_id == DEAD[0]
    assert push.target in NODES[1:3]
    assert not any(plans.values())


def test_who_has_a_part_is_completed_before_a_new_copy_is_made() -> None:
    holdings = {
        NODES[0]: {DEAD[0]: Held(1, 5)}, NODES[1]: {DEAD[0]: Held(1, 4)}, NODES[2]: {},
        NODES[3]: {},
    }  # fmt: skip
    assert planned(holdings)[NODES[0]] == [Push(DEAD[0], NODES[1])]


def test_a_lone_node_has_nobody_to_copy_to() -> None:
    assert plan_repairs(NODES[0], 2, {NODES[0]: {DEAD[0]: Held(1, 5)}}, NODES) == []


held = st.builds(Held, st.integers(1, 3), st.integers(0, 5))
all_holdings = st.fixed_dictionaries(
    {node: st.dictionaries(st.sampled_from(DEAD), held, max_size=4) for node in NODES}
)


@given(all_holdings, st.integers(1, 4))
def test_when_all_do_what_they_plan_everything_has_its_copies_and_nothing_is_done_twice(
    holdings: dict[BrokerId, dict[BrokerId, Held]], wanted: int
) -> None:
    plans = [push for pushes in planned(holdings, wanted).values() for push in pushes]
    assert len(plans) == len(set(plans)), "two nodes do the same"
    for broker_id, target in plans:
        most = max(node[broker_id].messages for node in holdings.values() if broker_id in node)
        assert holdings[target].get(broker_id, Held(0, 0)).messages < most
        holdings[target][broker_id] = Held(1, most)
    assert not any(planned(holdings, wanted).values()), "after that there is nothing to do"
    for broker_id in DEAD:
        found = [node[broker_id] for node in holdings.values() if broker_id in node]
        if any(each.messages for each in found):
            assert len(found) >= min(wanted, len(NODES))
            assert len({each.messages for each in found}) == 1


def test_a_repair_begins_when_it_was_due_for_a_while_without_a_break() -> None:
    patience = Patience(30.0)
    push = Push(DEAD[0], NODES[0])
    assert patience.due([push], 0.0) == []
    assert patience.due([push], 29.0) == []
    assert patience.due([], 29.5) == []
    assert patience.due([push], 31.0) == [], "it begins anew"
    assert patience.due([push], 61.0) == [push]
