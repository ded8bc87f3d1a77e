"""Who makes which copy: decided by each node alone, and all agree."""

from hypothesis import example, given
from hypothesis import strategies as st

from busnode.replication.repair import Held, Patience, Push, plan_repairs
from busnode.wire.ids import BrokerId, LogId, Topic

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


def held(logs: dict[str, int]) -> Held:
    found = Held()
    for topic, last_no in logs.items():
        found = found.plus(LogId(DEAD[0], Topic(topic)), last_no)
    return found


Copies = dict[BrokerId, dict[BrokerId, dict[str, int]]]
"""By node and incarnation: each log's last number."""

copies_of_one = st.dictionaries(st.sampled_from(["/x", "/y", "/z"]), st.integers(0, 5), min_size=1)
all_copies = st.fixed_dictionaries(
    {node: st.dictionaries(st.sampled_from(DEAD), copies_of_one, max_size=4) for node in NODES}
)


@given(all_copies, st.integers(1, 4))
@example({NODES[0]: {DEAD[0]: {"/x": 2, "/y": 1}}, NODES[1]: {DEAD[0]: {"/x": 1, "/y": 2}}}, 2)
def test_when_all_do_what_they_plan_everything_has_its_copies_and_nothing_is_done_twice(
    copies: Copies, wanted: int
) -> None:
    whole: dict[BrokerId, dict[str, int]] = {}
    for of_node in copies.values():
        for broker_id, logs in of_node.items():
            longest = whole.setdefault(broker_id, {})
            for topic, last_no in logs.items():
                longest[topic] = max(last_no, longest.get(topic, 0))
    for _ in range(2 * len(copies)):
        holdings = {
            node: {broker_id: held(logs) for broker_id, logs in of_node.items()}
            for node, of_node in copies.items()
        }
        plans = planned(holdings, wanted)
        pushes = [(node, push) for node, planned_by in plans.items() for push in planned_by]
        assert len({push for _, push in pushes}) == len(pushes), "two nodes do the same"
        if not pushes:
            break
        for source, (broker_id, target) in pushes:
            logs = copies[target].setdefault(broker_id, {})
            for topic, last_no in copies[source][broker_id].items():
                logs[topic] = max(last_no, logs.get(topic, 0))
    else:
        raise AssertionError("it does not come to an end")
    for broker_id, longest in whole.items():
        if any(longest.values()):
            found = [node[broker_id] for node in copies.values() if broker_id in node]
            assert len(found) >= min(wanted, len(copies))
            assert len({tuple(sorted(x for x in each.items() if x[1])) for each in found}) == 1
            assert {k: v for k, v in found[0].items() if v} == {
                k: v for k, v in longest.items() if v
            }


def test_who_wrote_a_log_gets_back_what_its_disk_has_lost() -> None:
    holdings = {
        NODES[0]: {DEAD[0]: held({"/x": 5})}, NODES[1]: {DEAD[0]: held({"/x": 5})},
        NODES[2]: {DEAD[0]: Held(own=True)},
    }  # fmt: skip
    pushes = [push for plan in planned(holdings).values() for push in plan]
    assert pushes == [Push(DEAD[0], NODES[2])]


def test_a_repair_begins_when_it_was_due_for_a_while_without_a_break() -> None:
    patience = Patience(30.0)
    push = Push(DEAD[0], NODES[0])

    def never(push: Push) -> bool:
        del push
        return False

    assert patience.due([push], 0.0, never) == []
    assert patience.due([push], 29.0, never) == []
    assert patience.due([], 29.5, never) == []
    assert patience.due([push], 31.0, never) == [], "it begins anew"
    assert patience.due([push], 61.0, never) == [push]
    assert Patience(30.0).due([push], 0.0, lambda each: each == push) == [push], "it is urgent"
