"""What nodes tell each other of tasks that several of them know of."""

import pytest

from busnode.node.task_agreement import CHUNKS_MAX, NUMBERS_MAX, Agreement, numbers_of
from busnode.tasks.ranges import CHUNK, Numbers
from busnode.wire.control import TaskFinished
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BrokerId
from busnode.wire.limits import CONTROL_ELEMENTS_MAX

ORIGIN = BrokerId(bytes(16))


def told(*ranges: tuple[int, int]) -> TaskFinished:
    return TaskFinished(ORIGIN, "emails", list(ranges))


def test_what_is_told_is_taken_as_it_is() -> None:
    numbers, is_all = numbers_of(told((1, 3), (7, 7)), last_no=10)
    assert list(numbers.runs()) == [(1, 3), (7, 7)]
    assert is_all
    assert not numbers_of(told(*((n, n) for n in range(1, CONTROL_ELEMENTS_MAX + 1))), 10)[1]


@pytest.mark.parametrize(
    "ranges",
    [
        [(1, U64_MAX)] * CONTROL_ELEMENTS_MAX,
        [(0, U64_MAX)],
        [(U64_MAX, U64_MAX), (5, 4), (3, 9), (2, 9), (1 << 40, 1 << 41)],
    ],
    ids=["all numbers again and again", "none", "in no order"],
)
def test_whatever_a_node_tells_each_number_is_looked_at_once(
    ranges: list[tuple[int, int]],
) -> None:
    numbers, _ = numbers_of(told(*ranges), last_no=10)
    assert len(numbers) <= NUMBERS_MAX
    assert all(0 < first <= last <= NUMBERS_MAX for first, last in numbers.runs())


def test_what_others_tell_is_kept_up_to_a_bound_and_the_newest_stays() -> None:
    agreement = Agreement()
    whole = Numbers()
    whole.add_run(1, NUMBERS_MAX)
    queues = [f"q{number}" for number in range(CHUNKS_MAX)]
    for queue in queues:
        agreement.note(ORIGIN, {queue: whole})
    kept = [queue for queue in queues if agreement.finished(ORIGIN, queue)]
    assert kept == queues[-len(kept) :]
    assert 10 < len(kept) <= CHUNKS_MAX * CHUNK // NUMBERS_MAX
    for queue in queues:
        agreement.note(ORIGIN, {queue: Numbers()})
    assert not agreement.finished(ORIGIN, kept[-1]), "names count as well"


def test_what_is_told_again_is_added_and_counts_once() -> None:
    agreement = Agreement()
    for number in range(2 * CHUNKS_MAX):
        one = Numbers()
        one.add(1 + number % 100)
        agreement.note(ORIGIN, {"emails": one})
        agreement.note(ORIGIN, {"other": Numbers()})
    assert list(agreement.finished(ORIGIN, "emails").runs()) == [(1, 100)]
