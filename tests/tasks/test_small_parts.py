"""Keys, ages, timers and traits, each alone."""

from hypothesis import given
from hypothesis import strategies as st

from busnode.tasks.ages import MARKS_MAX, Ages
from busnode.tasks.keys import Keys
from busnode.tasks.timers import Timers
from busnode.tasks.traits import PLAIN, SETS_MAX, Traits, TraitTable
from busnode.wire.retry_schedule import Schedule


def test_of_too_many_keys_the_oldest_are_forgotten() -> None:
    keys = Keys(3)
    for name in "abcd":
        keys.remember(name, 100)
    assert [name for name in "abcd" if keys.is_repeat(name, 0)] == ["b", "c", "d"]
    keys.remember("b", 50)
    keys.remember("e", 100)
    assert [name for name in "abcde" if keys.is_repeat(name, 60)] == ["b", "d", "e"]


def test_a_key_is_over_at_its_end_and_forgotten_then() -> None:
    keys = Keys()
    keys.remember("a", 100)
    assert keys.is_repeat("a", 99)
    assert not keys.is_repeat("a", 100)
    keys.forget(99)
    assert len(keys) == 1
    keys.forget(100)
    assert len(keys) == 0


def test_ages_are_right_to_a_second() -> None:
    ages = Ages()
    for number in range(1, 1001):
        ages.note(number, number * 100_000)
    for number in range(1, 1001):
        found = ages.of(number)
        assert found is not None
        assert 0 <= number * 100_000 - found < 1_000_000
    assert Ages().of(5) is None


def test_there_are_never_more_marks_than_the_limit_and_an_age_is_never_too_young() -> None:
    ages = Ages()
    for number in range(1, 3 * MARKS_MAX):
        ages.note(number, number * 2_000_000)
        assert len(ages._first_nos) <= MARKS_MAX
    assert (ages.of(5000) or 0) <= 5000 * 2_000_000
    ages.forget(3 * MARKS_MAX - 1)
    assert len(ages._first_nos) == 1
    assert ages.of(3 * MARKS_MAX) is not None


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**63)), max_size=50), st.data())
def test_timers_give_what_is_due_in_order(
    entries: list[tuple[int, int]], data: st.DataObject
) -> None:
    timers = Timers()
    for due_us, number in entries:
        timers.push(due_us, number)
    now_us = data.draw(st.integers(0, 2**60) | st.sampled_from([0, *(due for due, _ in entries)]))
    ordered = sorted(entries)
    assert timers.first_us == (ordered[0][0] if ordered else None)
    due = [number for due_us, number in ordered if due_us <= now_us]
    assert timers.take(now_us, 3) == due[:3]
    assert timers.take(now_us, 1000) == due[3:]
    assert len(timers) == len(entries) - len(due)


def test_traits_are_found_whether_there_are_few_kinds_or_many_and_forgotten() -> None:
    table = TraitTable()
    each = [Traits(0, Schedule.parse(f"0,{wait}")) for wait in range(SETS_MAX + 10)]
    for number, traits in enumerate(each, 1):
        table.put(number, traits)
    table.put(1000, PLAIN)
    assert [table.of(number) for number in range(1, len(each) + 1)] == each
    assert table.of(1000) == PLAIN
    table.forget(1, 5)
    table.forget(SETS_MAX + 1, SETS_MAX + 5)
    gone = {*range(1, 6), *range(SETS_MAX + 1, SETS_MAX + 6)}
    for number, traits in enumerate(each, 1):
        assert table.of(number) == (PLAIN if number in gone else traits)
