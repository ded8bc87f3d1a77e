"""What nodes tell each other of tasks that several of them know of."""

from collections.abc import Iterable

import pytest

from busnode.node.task_agreement import CHUNKS_MAX, NUMBERS_MAX, Hearing, Known, tell
from busnode.tasks.ranges import CHUNK, Numbers, Run
from busnode.wire.control import Control, TaskFinished
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BrokerId
from busnode.wire.limits import CONTROL_ELEMENTS_MAX

ORIGIN = BrokerId(bytes(16))


SENDER = BrokerId(b"s" * 16)


class Wire:
    """A link that keeps what is told."""

    def __init__(self) -> None:
        self.frames: list[TaskFinished] = []

    def tell(self, message: Control) -> None:
        assert isinstance(message, TaskFinished)
        self.frames.append(message)


def told(*ranges: tuple[int, int]) -> TaskFinished:
    return TaskFinished(ORIGIN, "emails", list(ranges), [], [], 0, 1)


def numbers_of(runs: Iterable[Run]) -> Numbers:
    numbers = Numbers()
    for first, last in runs:
        numbers.add_run(first, last)
    return numbers


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 3000])
def test_what_is_told_in_several_frames_is_heard_as_one(count: int) -> None:
    finished = numbers_of((n, n) for n in range(1, 2 * count, 2))
    held = numbers_of([(2, 2), (10_000, 20_000)])
    wire, hearing = Wire(), Hearing()
    elsewhere = numbers_of((n, n) for n in range(20_000, 20_000 - 2 * count, -2))
    tell(wire, ORIGIN, "emails", finished, held, elsewhere)
    *before, last = wire.frames
    for frame in before:
        assert hearing.hear(SENDER, frame, 20_000) is None
    heard = hearing.hear(SENDER, last, 20_000)
    assert heard is not None
    told = [list(each.runs()) for each in (finished, held, elsewhere)]
    assert [list(each.runs()) for each in heard] == told


def test_a_part_that_is_missing_makes_the_rest_worthless() -> None:
    wire, hearing = Wire(), Hearing()
    tell(wire, ORIGIN, "emails", numbers_of((n, n) for n in range(1, 6000, 2)), Numbers())
    assert len(wire.frames) == 3
    for frame in (wire.frames[0], wire.frames[2], wire.frames[1]):
        assert hearing.hear(SENDER, frame, 6000) is None
    heard = [hearing.hear(SENDER, frame, 6000) for frame in wire.frames]
    assert heard[:2] == [None, None]
    assert heard[2] is not None
    assert len(heard[2][0]) == 3000


def test_of_parts_that_never_become_whole_few_are_kept() -> None:
    hearing = Hearing()
    for number in range(100):
        frame = TaskFinished(ORIGIN, f"q{number}", [(1, 1)], [], [], 0, 2)
        assert hearing.hear(SENDER, frame, 1) is None
    ends = [
        hearing.hear(SENDER, TaskFinished(ORIGIN, f"q{number}", [], [], [], 1, 2), 1)
        for number in range(100)
    ]
    assert [end is not None for end in ends] == [False] * 84 + [True] * 16


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
    heard = Hearing().hear(SENDER, told(*ranges), last_no=10)
    assert heard is not None
    assert len(heard[0]) <= NUMBERS_MAX
    assert all(0 < first <= last <= NUMBERS_MAX for first, last in heard[0].runs())


def test_what_others_tell_is_kept_up_to_a_bound_and_the_newest_stays() -> None:
    known = Known()
    whole = Numbers()
    whole.add_run(1, NUMBERS_MAX)
    queues = [f"q{number}" for number in range(CHUNKS_MAX)]
    for queue in queues:
        known.note(ORIGIN, queue, whole)
    kept = [queue for queue in queues if known.of(ORIGIN, queue)]
    assert kept == queues[-len(kept) :]
    assert 10 < len(kept) <= CHUNKS_MAX * CHUNK // NUMBERS_MAX
    for queue in queues:
        known.note(ORIGIN, queue, Numbers())
    assert not known.of(ORIGIN, kept[-1]), "names count as well"


def test_what_is_told_again_is_added_and_counts_once() -> None:
    known = Known()
    news = 0
    for number in range(2 * CHUNKS_MAX):
        one = Numbers()
        one.add(1 + number % 100)
        news += known.note(ORIGIN, "emails", one)
        known.note(ORIGIN, "other", Numbers())
    assert list(known.of(ORIGIN, "emails").runs()) == [(1, 100)]
    assert news == 100
