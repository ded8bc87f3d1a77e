"""The trie: it finds what the definition of matching says, without looking at the rest."""

import itertools
import random
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from busnode.wire.ids import Pattern, Topic
from busnode.wire.topics import LEVELS_MAX, check_pattern, check_topic, matches
from busnode.wire.trie import Trie

NAMES = ["a", "b", "$s"]
PATTERNS = [
    check_pattern("/" + "/".join([*levels, last]))
    for depth in (0, 1, 2)
    for levels in itertools.product([*NAMES, "+"], repeat=depth)
    for last in [*NAMES, "+", "*"]
]
TOPICS = [
    check_topic("/" + "/".join(levels))
    for depth in (1, 2, 3, 4)
    for levels in itertools.product(NAMES, repeat=depth)
]


class TrieAgainstItsDefinition(RuleBasedStateMachine):
    """Any adds and removes, beside a plain dict of pairs that is searched with `matches`."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: Trie[int] = Trie()
        self.model: dict[tuple[Pattern, int], None] = {}

    @rule(pattern=st.sampled_from(PATTERNS), value=st.integers(0, 4))
    def add(self, pattern: Pattern, value: int) -> None:
        assert self.trie.add(pattern, value) is ((pattern, value) not in self.model)
        self.model[pattern, value] = None

    @rule(pattern=st.sampled_from(PATTERNS), value=st.integers(0, 4))
    def remove_any(self, pattern: Pattern, value: int) -> None:
        self._remove(pattern, value)

    @rule(data=st.data())
    def remove_a_known_one(self, data: st.DataObject) -> None:
        if self.model:
            self._remove(*data.draw(st.sampled_from(list(self.model))))

    def _remove(self, pattern: Pattern, value: int) -> None:
        present = (pattern, value) in self.model
        assert self.trie.remove(pattern, value) is present
        self.model.pop((pattern, value), None)

    @invariant()
    def it_finds_what_the_definition_finds(self) -> None:
        for topic in TOPICS:
            found = self.trie.match(topic)
            assert len(found) == len(set(found))
            assert set(found) == {v for pattern, v in self.model if matches(pattern, topic)}

    @invariant()
    def it_holds_what_was_added(self) -> None:
        patterns = self.trie.patterns()
        assert len(patterns) == len(set(patterns))
        assert set(patterns) == {pattern for pattern, _ in self.model}
        assert len(self.trie) == len(self.model)


TestTrieAgainstItsDefinition = TrieAgainstItsDefinition.TestCase
TestTrieAgainstItsDefinition.settings = settings(max_examples=60, deadline=None)


@given(st.sets(st.sampled_from(PATTERNS)))
def test_many_patterns_at_once_match_as_each_does_alone(patterns: set[Pattern]) -> None:
    trie: Trie[Pattern] = Trie()
    for pattern in patterns:
        trie.add(pattern, pattern)
    for topic in TOPICS:
        assert set(trie.match(topic)) == {p for p in patterns if matches(p, topic)}


def test_wildcards_never_show_system_topics() -> None:
    trie: Trie[str] = Trie()
    for pattern in ("/*", "/+", "/+/*", "/+/x", "/$sys/*", "/$sys/x", "/$sys/+", "/$sys"):
        trie.add(check_pattern(pattern), pattern)
    assert trie.match(check_topic("/$sys/x")) == ["/$sys/*", "/$sys/x", "/$sys/+"]
    assert trie.match(check_topic("/$sys")) == ["/$sys"]
    assert trie.match(check_topic("/$other/x")) == []
    assert trie.match(check_topic("/a/x")) == ["/*", "/+/*", "/+/x"]


def test_the_order_is_by_pattern_and_then_by_when_a_value_was_added() -> None:
    pairs = [
        ("/a/b", "third"),
        ("/a/+", "plus"),
        ("/a/b", "first"),
        ("/a/*", "below"),
        ("/*", "all"),
        ("/+/b", "plus first"),
        ("/a/b", "all"),
    ]
    orders = set()
    for shuffled in itertools.permutations(pairs):
        trie: Trie[str] = Trie()
        for pattern, value in shuffled:
            trie.add(check_pattern(pattern), value)
        trie.remove(check_pattern("/a/b"), "third")
        trie.add(check_pattern("/a/b"), "third")
        orders.add(tuple(trie.match(check_topic("/a/b"))))
    # Only the two values of one pattern could change places, and "third" always came last.
    assert orders == {("all", "below", "first", "third", "plus", "plus first")}


def test_a_value_under_several_patterns_comes_once_and_goes_with_the_last() -> None:
    trie: Trie[str] = Trie()
    patterns = [check_pattern(text) for text in ("/a/b", "/a/+", "/a/*", "/*")]
    for pattern in patterns:
        assert trie.add(pattern, "one")
        assert not trie.add(pattern, "one")
    for left, pattern in zip((3, 2, 1, 0), patterns, strict=True):
        assert trie.match(check_topic("/a/b")) == ["one"]
        assert trie.remove(pattern, "one")
        assert not trie.remove(pattern, "one")
        assert len(trie) == left
    assert trie.match(check_topic("/a/b")) == []


def test_removing_what_is_not_there_changes_nothing() -> None:
    trie: Trie[str] = Trie()
    trie.add(check_pattern("/a/b"), "one")
    for pattern, value in (("/a", "one"), ("/a/b", "two"), ("/a/b/c", "one"), ("/a/*", "one")):
        assert not trie.remove(check_pattern(pattern), value)
    assert trie.match(check_topic("/a/b")) == ["one"]
    assert trie.patterns() == ["/a/b"]


def test_the_answer_is_the_callers_to_change() -> None:
    trie: Trie[str] = Trie()
    trie.add(check_pattern("/a"), "one")
    trie.match(check_topic("/a")).clear()
    assert trie.match(check_topic("/a")) == ["one"]


@pytest.mark.parametrize("shape", ["/a/p{}/*", "/one"], ids=["many patterns", "many values"])
def test_memory_returns_after_100000_adds_and_removes(shape: str) -> None:
    pairs = [(check_pattern(shape.format(n)), n) for n in range(100_000)]
    trie: Trie[int] = Trie()
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        for pattern, value in pairs:
            assert trie.add(pattern, value)
        full_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
        random.Random(1).shuffle(pairs)
        for pattern, value in pairs[1:]:
            assert trie.remove(pattern, value)
        # One pair stays: neither dead nodes nor the holes in dicts may outlive the others.
        left_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert full_bytes > 2_000_000
    assert left_bytes < 50_000  # Python's own lists of free dicts keep up to 20,000
    assert trie.patterns() == [pairs[0][0]]


def steps(trie: Trie[Any], topic: Topic) -> int:
    """How many bytecodes a match runs: what it costs, without a clock."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    outer = sys.gettrace()  # a coverage tool's
    sys.settrace(trace)
    try:
        trie.match(topic)
    finally:
        sys.settrace(outer)
    return count


def test_a_match_among_100000_patterns_costs_what_it_costs_among_ten() -> None:
    topic = check_topic("/plant/north/temp")
    trie: Trie[int] = Trie()
    for n, text in enumerate(("/plant/north/temp", "/plant/+/temp", "/plant/*")):
        trie.add(check_pattern(text), n)
    alone = steps(trie, topic)
    shapes = ["/plant/north/temp{}", "/plant/n{}/temp", "/p{}/north/temp", "/p{}/*", "/p{}/+/temp"]
    for n in range(20_000):
        for shape in shapes:
            trie.add(check_pattern(shape.format(n)), n)
    assert len(trie) == 100_003
    assert steps(trie, topic) == alone > 0


def test_a_walk_visits_the_nodes_there_are_and_not_two_to_the_power_of_the_levels() -> None:
    def cost(levels: int) -> int:
        trie: Trie[int] = Trie()
        for level in ("a", "+"):
            trie.add(check_pattern(f"/{level}" * levels), 1)
            trie.add(check_pattern(f"/{level}" * (levels - 1) + "/*"), 2)
        return steps(trie, check_topic("/a" * levels))

    # Two nodes a level: each further level costs the same.
    assert LEVELS_MAX == 32
    assert cost(32) - cost(24) == cost(24) - cost(16) == cost(16) - cost(8) > 0


def test_a_dead_end_is_left_at_once() -> None:
    trie: Trie[int] = Trie()
    trie.add(check_pattern("/a/b"), 1)
    short, long = check_topic("/x/b"), check_topic("/x" * LEVELS_MAX)
    assert steps(trie, short) == steps(trie, long)
