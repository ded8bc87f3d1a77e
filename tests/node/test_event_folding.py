"""A storm of events in a few."""

from hypothesis import given
from hypothesis import strategies as st

from busnode.node.event import Event
from busnode.node.event_folding import Folding


def event(text: str = "link to b lost", kind: str = "link.lost", utc_us: int = 0) -> Event:
    return Event(utc_us, "a", kind, "warning", text)


def test_the_first_is_told_at_once_and_those_that_follow_as_one() -> None:
    folding = Folding(within_s=10.0)
    first = event(utc_us=1)
    assert folding.handle(first, 0.0) == [first]
    for second in range(1, 10):
        assert folding.handle(event(utc_us=second), float(second)) == []
    assert folding.next_due() == 10.0
    assert folding.due(9.9) == []
    (many,) = folding.due(10.0)
    assert (many.text, many.count, many.utc_us) == ("link to b lost", 9, 9)


def test_one_alone_is_told_once_and_then_forgotten() -> None:
    folding = Folding(within_s=10.0)
    folding.handle(event(), 0.0)
    assert folding.next_due() is None, "there is nothing to wake up for"
    assert folding.due(10.0) == []
    assert folding.handle(event(), 10.0) != [], "a new one is news again"


def test_a_storm_that_goes_on_is_told_once_in_a_while() -> None:
    folding = Folding(within_s=10.0)
    told = [each for step in range(1001) for each in folding.handle(event(), step / 10)]
    told += folding.due(1e9)
    assert sum(each.count for each in told) == 1001
    assert len(told) == 12, "at once, each ten seconds, and the rest"


def test_different_texts_are_told_each() -> None:
    folding = Folding()
    assert folding.handle(event("one"), 0.0)
    assert folding.handle(event("two"), 0.0)


def test_too_many_different_ones_of_a_kind_are_told_as_one_and_other_kinds_pass() -> None:
    folding = Folding(within_s=10.0, distinct_max=3)
    passed = [each for n in range(100) for each in folding.handle(event(f"no {n}"), 0.0)]
    assert [each.text for each in passed] == ["no 0", "no 1", "no 2", "no 3"]
    assert folding.handle(event("x", kind="mirror.chosen"), 0.0)
    (rest,) = folding.due(10.0)
    assert (rest.count, rest.text) == (96, "96 more, the last: no 99")


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz"), st.floats(0, 5)), max_size=200
    )
)
def test_whatever_happens_each_is_told_once_and_no_more_than_may_be(
    storm: list[tuple[str, str, float]],
) -> None:
    folding = Folding(within_s=10.0, distinct_max=2)
    now = 0.0
    told: list[Event] = []
    for kind, text, pause_s in storm:
        now += pause_s
        told += folding.handle(event(text, kind), now)
    told += folding.due(now + 10.0)
    assert sum(each.count for each in told) == len(storm)
    windows = now // 10.0 + 3
    for kind in "abcde":
        assert sum(each.kind == kind for each in told) <= 2 * 3 * windows
