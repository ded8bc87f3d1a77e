"""Who holds a log, from what each node tells."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from busnode.node.log_holders import HeldLog, merge_logs

ROW: dict[str, Any] = {
    "broker_id": "ab" * 16, "topic": "/t", "first_no": 1, "last_no": 100, "bytes": 1000,
    "holes": 0, "poisoned": None, "role": "copy", "origin": None, "open": False, "level": None,
    "mirrors": {},
}  # fmt: skip


def row(**facts: Any) -> dict[str, Any]:
    return {**ROW, **facts}


def only(**told: list[dict[str, Any]]) -> HeldLog:
    (log,) = merge_logs(told)
    return log


def test_an_open_log_has_the_level_that_its_origin_tells_and_the_lag_that_it_knows() -> None:
    origin = row(role="origin", origin="a", open=True, level="mirrored", mirrors={"b": 97})
    # The mirror was asked later: by its own word it would be ahead.
    log = only(b=[row(role="mirror", last_no=120)], a=[origin])
    assert (log.is_open, log.level, log.origin, log.last_no) == (True, "mirrored", "a", 100)
    assert [(h.node, h.role, h.lag) for h in log.holders] == [
        ("a", "origin", 0),
        ("b", "mirror", 3),
    ]
    assert log.troubles(copies_wanted=2, nodes=3) == []


def test_a_finished_log_reaches_as_far_as_its_longest_copy_and_the_others_lag() -> None:
    log = only(a=[row(last_no=90)], b=[row()], c=[row(first_no=50)], d=[row(holes=1)])
    assert (log.is_open, log.level, log.first_no, log.last_no) == (False, None, 1, 100)
    assert [h.lag for h in log.holders] == [10, 0, 0, 0]
    assert log.whole_copies == 1, "one is short, one begins late, one has a hole"
    assert log.troubles(copies_wanted=2, nodes=4) == ["1 hole at d", "1 of 2 whole copies"]
    assert log.troubles(copies_wanted=1, nodes=4) == ["1 hole at d"]


def test_no_more_copies_are_missed_than_there_are_nodes() -> None:
    assert only(a=[row()]).troubles(copies_wanted=3, nodes=1) == []
    assert only(a=[row()]).troubles(copies_wanted=3, nodes=2) == ["1 of 2 whole copies"]


def test_acks_that_are_local_where_there_could_be_a_mirror_are_a_trouble() -> None:
    log = only(a=[row(role="origin", open=True, level="local")])
    assert log.troubles(copies_wanted=2, nodes=2) == ["acks are local"]
    assert log.troubles(copies_wanted=2, nodes=1) == []
    assert log.troubles(copies_wanted=1, nodes=2) == []


def test_of_a_log_whose_origin_does_not_answer_the_level_is_not_known() -> None:
    log = only(b=[row(role="mirror", origin="a")])
    assert (log.is_open, log.level, log.origin) == (True, None, "a")


def test_a_poisoned_holder_is_named() -> None:
    log = only(a=[row(role="origin", poisoned="no space")], b=[row()])
    assert log.troubles(copies_wanted=2, nodes=2) == ["a takes no more: no space"]


def test_logs_of_one_topic_and_several_incarnations_are_several() -> None:
    logs = merge_logs({"a": [row(broker_id="cd"), row(topic="/s")], "b": [row()]})
    assert [(log.topic, log.broker_id) for log in logs] == [
        ("/s", "ab" * 16), ("/t", "ab" * 16), ("/t", "cd"),
    ]  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(
            st.builds(
                row, topic=st.sampled_from(["/s", "/t"]), first_no=st.integers(1, 5),
                last_no=st.integers(0, 9), holes=st.integers(0, 1),
            ),
            max_size=3, unique_by=lambda each: each["topic"],
        ),
    )
)  # fmt: skip
def test_whatever_is_told_each_holder_is_there_once_and_the_longest_lags_by_nothing(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    logs = merge_logs(told)
    holders = {(log.topic, holder.node) for log in logs for holder in log.holders}
    assert holders == {(each["topic"], node) for node, rows in told.items() for each in rows}
    for log in logs:
        assert min(holder.lag for holder in log.holders) == 0
        assert 0 <= log.whole_copies <= len(log.holders)
        assert all(h.last_no + h.lag == log.last_no for h in log.holders)
