"""What is unfinished when an owner is no more, from its journal and its task records."""

import tracemalloc
from collections.abc import Sequence

import pytest

from busnode.tasks.events import SnapshotDue
from busnode.tasks.journal import (
    Failed,
    FencesReserved,
    Finished,
    JournalRecord,
    Requeued,
    RowsKept,
    SnapshotBegun,
    SnapshotEnded,
    TakenOver,
    decode_record,
    encode_record,
)
from busnode.tasks.ranges import Run
from busnode.tasks.recovery import Recovery, Unfinished, carry, task_id
from busnode.tasks.rows import DEAD, Row
from busnode.wire.carried_task import Attempt, Carried
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import TaskOptions
from tests.tasks.owner import ME, START_US, Owner

OTHER = BrokerId(b"o" * 16)


def recovered(journal: Sequence[JournalRecord]) -> Recovery:
    recovery = Recovery(ME)
    for record in journal:
        recovery.apply(decode_record(encode_record(record)))
    return recovery


def unfinished(
    journal: Sequence[JournalRecord], tasks: Sequence[TaskOptions | None]
) -> list[Unfinished]:
    return recovered(journal).unfinished(1, [START_US] * len(tasks), tasks)


def numbers(found: Sequence[Unfinished]) -> list[int]:
    return [each.number for each in found]


def busy_owner() -> Owner:
    """One whose queue has tasks in every state, with holes between those that are finished."""
    owner = Owner(Schedule.parse("0,100,100"))
    owner.enqueue(40)
    for turn in range(7):
        lease = owner.poll(5)
        owner.settle("complete", lease.numbers[::2], lease.fences[::2])
        rest = lease.numbers[1::2], lease.fences[1::2]
        owner.settle("reject" if turn % 3 else "fail", *rest, error=f"turn {turn}")
    owner.act("requeue", [7])
    return owner


def test_a_task_is_called_by_the_log_that_accepted_it_for_good() -> None:
    assert task_id(OTHER, 7) == "6f" * 16 + "-7"
    carried = carry(ME, 9, 5, TaskOptions(carried=Carried("x-1", 3)), None, 0)
    assert (carried.id, carried.enqueued_us) == ("x-1", 3)
    assert (carried.origin, carried.number) == (ME, 9)


def test_without_a_journal_all_is_unfinished_as_it_was_enqueued() -> None:
    found = unfinished([], [None, TaskOptions(delay_ms=5000), TaskOptions(due_us=START_US + 9)])
    assert numbers(found) == [1, 2, 3]
    assert [each.carried.due_us for each in found] == [0, START_US + 5_000_000, START_US + 9]
    assert {each.carried.enqueued_us for each in found} == {START_US}


def test_what_the_journal_says_is_so() -> None:
    why = Attempt(1, 50, "w", "no")
    journal: list[JournalRecord] = [
        FencesReserved(500),
        Finished("completed", ((1, 2), (6, 6))),
        Failed([3, 4], [1, 1], [900, DEAD], 50, "w", "no"),
        Failed([5], [1], [DEAD], 50, "w", "no"),
        Requeued(((5, 5),)),
    ]
    recovery = recovered(journal)
    assert (recovery.floor, recovery.ceiling, recovery.extent) == (3, 500, 6)
    runs: list[Run] = [(1, 2), (6, 6)]
    assert list(recovery.finished) == runs
    found = recovery.unfinished(3, [START_US] * 5, None)
    assert numbers(found) == [3, 4, 5, 7]
    assert recovery.extent == 7
    states = [(c.attempts, c.due_us, c.dead_us, c.history) for c in (f.carried for f in found)]
    assert states == [
        (1, 900, None, (why,)),
        (1, 0, 50, (why,)),
        (0, 0, None, (why,)),
        (0, 0, None, ()),
    ]
    assert {each.carried.fence for each in found} == {500}


def test_recovery_says_what_the_queue_would() -> None:
    owner = busy_owner()
    found = unfinished(owner.journal, [None] * 40)
    rows = dict(owner.queue.unfinished())
    assert numbers(found) == list(rows)
    for each in found:
        row = rows[each.number]
        assert each.carried.attempts == (row.attempts if row else 0)
        assert each.carried.history == (row.history if row else ())
        assert each.carried.dead_us == (row.dead_us if row else None)


def test_a_snapshot_says_all_again_and_one_that_was_cut_short_does_no_harm() -> None:
    owner = busy_owner()
    before = len(owner.journal)
    expected = unfinished(owner.journal, [None] * 40)
    owner.tell(SnapshotDue())
    assert isinstance(owner.journal[before], SnapshotBegun)
    assert owner.journal[-1] == SnapshotEnded()
    for end in range(before, len(owner.journal) + 1):
        assert unfinished(owner.journal[:end], [None] * 40) == expected, "cut short"
    for begin in range(before + 1):
        assert unfinished(owner.journal[begin:], [None] * 40) == expected, "from anywhere before"
    assert recovered(owner.journal[before:]).ceiling == recovered(owner.journal).ceiling


def test_what_happens_while_a_snapshot_is_written_is_kept() -> None:
    """Parts are written between other records; all that was finished before it began is in it,
    although the floor has passed it by then."""
    owner = Owner(Schedule.parse("0,100,100"))
    owner.enqueue(9)
    lease = owner.poll(9)
    owner.settle("complete", [3, 5], [3, 5])
    owner.settle("fail", [6, 7], [6, 7], error="first")
    owner.commits = False
    begun = len(owner.journal)
    owner.tell(SnapshotDue())
    owner.settle("complete", [1, 2, 4], [1, 2, 4])
    owner.settle("fail", [8], [8], error="second")
    owner.commits = True
    owner.wait(0.0)
    assert owner.journal[-1] == SnapshotEnded()
    found = unfinished(owner.journal[begun:], [None] * 9)
    assert found == unfinished(owner.journal, [None] * 9)
    assert numbers(found) == [6, 7, 8, 9]
    assert lease.numbers == list(range(1, 10))


def test_what_was_being_finished_when_a_snapshot_began_is_in_it_although_the_floor_has_moved() -> (
    None
):
    owner = Owner()
    owner.enqueue(9)
    owner.poll(9)
    owner.settle("complete", [3, 5], [3, 5])
    owner.commits = False
    owner.settle("complete", [1, 2, 4], [1, 2, 4])
    begun = len(owner.journal)
    owner.tell(SnapshotDue())
    owner.commit()
    assert owner.queue.floor == 6, "and the next part is made only now"
    while owner.journal[-1] != SnapshotEnded():
        owner.commit()
    assert numbers(unfinished(owner.journal[begun:], [None] * 9)) == [6, 7, 8, 9]


def test_a_row_in_a_snapshot_is_no_older_than_what_was_written_before_it() -> None:
    owner = Owner(Schedule.parse("0,0,0"))
    owner.enqueue(2)
    owner.fail(owner.poll(2), "first")
    lease = owner.poll(2)
    owner.commits = False
    owner.tell(SnapshotDue())
    begun_seq, begun = owner.seq, len(owner.journal) - 1
    owner.settle("fail", [1], lease.fences[:1], error="second")
    owner.settle("complete", [2], lease.fences[1:])
    owner.commit(begun_seq)
    kept = owner.journal[-1]
    assert isinstance(kept, RowsKept), "written behind the failure, which is not durable yet"
    while owner.journal[-1] != SnapshotEnded():
        owner.commit()
    (found,) = unfinished(owner.journal[begun:], [None] * 2)
    assert (found.number, found.carried.attempts) == (1, 2)
    assert [each.error for each in found.carried.history] == ["first", "second"]


def test_the_past_of_a_carried_task_comes_from_its_header_and_what_is_new_from_the_journal() -> (
    None
):
    old, new = Attempt(1, 5, "w", "old"), Attempt(2, 50, "v", "new")
    options = TaskOptions(carried=Carried("x-1", 3, 1, (old,), origin=OTHER, number=1))
    taken = TakenOver(OTHER, ((1, 1),), ((1, 1),))
    failed = Failed([1], [2], [900], 50, "v", "new")
    (found,) = unfinished([taken, failed], [options])
    assert (found.carried.attempts, found.carried.history) == (2, (old, new))
    died = Failed([1], [2], [DEAD], 50, "v", "new")
    (found,) = unfinished([taken, died, Requeued(((1, 1),))], [options])
    assert (found.carried.attempts, found.carried.history) == (0, (old, new))


def test_a_row_of_a_snapshot_has_the_whole_past() -> None:
    owner = Owner()
    old = Attempt(1, 5, "w", "old")
    options = TaskOptions(carried=Carried("x-1", 3, 1, (old,), origin=OTHER, number=1))
    owner.enqueue_each([options])
    owner.fail(owner.poll(), "new")
    owner.tell(SnapshotDue())
    for journal in (
        owner.journal,
        owner.journal[owner.journal.index(SnapshotBegun(1, 1, 1_000_000)) :],
    ):
        (found,) = unfinished(journal, [options])
        assert [each.error for each in found.carried.history] == ["old", "new"]


def own_copy(number: int) -> TaskOptions:
    return TaskOptions(carried=Carried("x", 3, origin=ME, number=number))


def test_a_copy_in_the_same_log_counts_only_when_that_is_durable() -> None:
    tasks = [None, own_copy(1), own_copy(1)]
    assert numbers(unfinished([], tasks)) == [1]
    assert numbers(unfinished([Finished("completed", ((1, 1),))], tasks)) == []
    assert numbers(unfinished([TakenOver(ME, ((1, 1),), ((2, 2),))], tasks)) == [2]
    assert numbers(unfinished([TakenOver(ME, ((1, 1),), ((3, 3),))], tasks)) == [3]
    begun = SnapshotBegun(2, 3, 0)
    assert numbers(unfinished([begun, Finished("completed", ((3, 3),))], tasks)) == [2]


def test_what_was_taken_over_is_known_also_when_there_was_no_time_to_write_it_down() -> None:
    tasks = [
        TaskOptions(carried=Carried(f"x-{n}", 3, origin=OTHER, number=n)) for n in (4, 5, 5, 9)
    ]
    recovery = recovered([TakenOver(OTHER, ((4, 4),), ((1, 1),)), Finished("completed", ((1, 1),))])
    assert numbers(recovery.unfinished(1, [START_US] * 4, tasks)) == [2, 4]
    assert list(recovery.taken[OTHER].runs()) == [(4, 5), (9, 9)]


def test_headers_that_cannot_be_read_are_a_dead_letter_before_anybody_has_said_so() -> None:
    (found,) = unfinished([], [TaskOptions(fault="what is this")])
    assert found.carried.dead_us == START_US
    assert [each.error for each in found.carried.history] == ["what is this"]


def test_a_record_that_comes_late_changes_nothing_that_is_finished() -> None:
    journal: list[JournalRecord] = [
        Failed([1], [1], [900], 50, "w", "no"),
        Finished("elsewhere", ((1, 1),)),
        Failed([1], [2], [DEAD], 50, "w", "no"),
    ]
    assert unfinished(journal, [None]) == []
    assert recovered(journal)._rows == {}, "and costs nothing"


def test_recovery_needs_a_bit_for_each_task_and_no_more() -> None:
    recovery = Recovery(ME)
    tracemalloc.start()
    try:
        for first in range(1, 400_000, 8):
            recovery.apply(Finished("completed", ((first, first + 5),)))
        for first in range(1, 400_000, 1000):
            assert len(recovery.unfinished(first, [START_US] * 1000, None)) == 250
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 400_000 < 1


@pytest.mark.parametrize("row", [None, Row(2, 77, None, (Attempt(2, 9, "w", "e"),))])
def test_what_is_carried_has_what_the_row_says_where_there_is_one(row: Row | None) -> None:
    carried = carry(ME, 4, 100, TaskOptions(delay_ms=1), row, 12)
    assert carried.due_us == (1100 if row is None else 77)
    assert carried.attempts == (0 if row is None else 2)
    assert carried.fence == 12
