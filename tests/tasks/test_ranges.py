"""Sets of numbers, against Python's own."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from busnode.tasks.ranges import CHUNK, Numbers, Prefix, joined, runs_of

numbers = st.integers(1, 60) | st.integers(CHUNK - 5, CHUNK + 5) | st.integers(1, 5 * CHUNK)
lengths = st.integers(1, 10) | st.integers(1, 3 * CHUNK)


class NumbersAndSet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = Numbers()
        self.model: set[int] = set()

    @rule(number=numbers)
    def add(self, number: int) -> None:
        self.numbers.add(number)
        self.model.add(number)

    @rule(number=numbers)
    def discard(self, number: int) -> None:
        assert self.numbers.discard(number) == (number in self.model)
        self.model.discard(number)

    @rule(first=numbers, length=lengths)
    def add_run(self, first: int, length: int) -> None:
        self.numbers.add_run(first, first + length - 1)
        self.model.update(range(first, first + length))

    @rule(first=numbers, length=lengths)
    def discard_run(self, first: int, length: int) -> None:
        run = set(range(first, first + length))
        assert self.numbers.discard_run(first, first + length - 1) == len(run & self.model)
        self.model -= run

    @rule(count=st.integers(0, 20) | st.integers(0, 3 * CHUNK))
    def take(self, count: int) -> None:
        taken = [n for first, last in self.numbers.take(count) for n in range(first, last + 1)]
        assert taken == sorted(self.model)[:count]
        self.model -= set(taken)

    @invariant()
    def both_are_the_same(self) -> None:
        assert list(self.numbers.runs()) == list(runs_of(self.model))
        assert len(self.numbers) == len(self.model)
        assert self.numbers.first() == min(self.model, default=None)


TestNumbersAndSet = NumbersAndSet.TestCase


@given(st.lists(st.tuples(numbers, lengths), max_size=12))
def test_a_prefix_has_a_floor_and_what_lies_above(runs: list[tuple[int, int]]) -> None:
    prefix, model = Prefix(), set[int]()
    for first, length in runs:
        prefix.add_run(first, first + length - 1)
        model.update(range(first, first + length))
        floor = next(n for n in range(1, 9 * CHUNK) if n not in model)
        assert prefix.floor == floor
        assert len(prefix) == len(model)
        assert set(prefix.above.chunks) <= {n // CHUNK for n in model if n > floor}
        for chunk in range(9):
            there = {chunk * CHUNK + n for n in range(CHUNK) if prefix.bits(chunk) >> n & 1}
            assert there == {n for n in model if n // CHUNK == chunk}
    assert all((n in prefix) == (n in model) for n in range(1, 9 * CHUNK, 7))


@given(st.sets(numbers))
def test_runs_are_the_numbers_with_no_two_that_touch(some: set[int]) -> None:
    runs = runs_of(some)
    assert [n for first, last in runs for n in range(first, last + 1)] == sorted(some)
    assert list(joined(runs)) == list(runs)
    assert list(joined((n, n) for n in sorted(some))) == list(runs)
