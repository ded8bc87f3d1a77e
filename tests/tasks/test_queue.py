"""One queue: order, leases, fences, failures, dead letters, and what workers say wrong."""

from dataclasses import replace

import pytest

from busnode.tasks.events import (
    LEASE_EXPIRED,
    NOT_DEAD,
    Answer,
    Enqueued,
    FinishedElsewhere,
    GivenUp,
    Journal,
    Lease,
    Ready,
    Report,
    SnapshotDue,
    Ticked,
)
from busnode.tasks.journal import Failed, FencesReserved, Finished, SnapshotBegun, TakenOver
from busnode.tasks.leases import LEASE_S_MAX
from busnode.tasks.queue import TaskQueue
from busnode.tasks.recovery import Recovery, carry_on
from busnode.wire.carried_task import ERROR_BYTES_MAX, Attempt, Carried
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import DEFAULT, NO_RETRY, Schedule
from busnode.wire.task_options import TaskOptions
from tests.tasks.owner import ME, Owner

OTHER = BrokerId(b"o" * 16)
THIRD = BrokerId(b"t" * 16)


def test_tasks_come_in_the_order_of_their_numbers() -> None:
    owner = Owner()
    owner.enqueue(5)
    assert owner.poll(2).numbers == [1, 2]
    owner.enqueue(2)
    assert owner.poll(10).numbers == [3, 4, 5, 6, 7]
    assert owner.poll(10).numbers == []


def test_higher_priorities_come_first_and_each_in_order() -> None:
    owner = Owner()
    owner.enqueue_each([TaskOptions(priority=p) if p else None for p in (0, -9, 9, 0, 9, -1, 1)])
    assert owner.poll(10).numbers == [3, 5, 7, 1, 4, 6, 2]


def test_a_lease_has_an_end_a_fence_and_the_number_of_the_attempt() -> None:
    owner = Owner()
    owner.enqueue(2)
    owner.at_s = 5.0
    lease = owner.poll(2, lease_s=30.0)
    assert (lease.expires_at_s, lease.fences, lease.attempts) == (35.0, [1, 2], [1, 1])
    assert [(row.number, row.fence, row.attempt) for row in lease.rows] == [(1, 1, 1), (2, 2, 1)]


def test_no_lease_is_longer_than_a_day() -> None:
    owner = Owner()
    owner.enqueue()
    assert owner.poll(lease_s=1e18).expires_at_s == LEASE_S_MAX


def test_what_is_completed_is_gone_and_reported() -> None:
    owner = Owner()
    owner.enqueue(3)
    lease = owner.poll(2)
    assert owner.complete(lease) == Answer("d", [])
    (report,) = owner.reports()
    assert (report.kind, list(report.numbers), report.worker) == ("completed", [1, 2], "worker 1")
    assert (report.attempts(1), report.history(1)) == (1, ())
    assert owner.queue.floor == 3
    owner.wait(10_000)
    assert owner.poll(10).numbers == [3]


def test_nothing_is_answered_before_it_is_durable() -> None:
    owner = Owner()
    owner.enqueue(2)
    lease = owner.poll(1)
    owner.commits = False
    assert owner.complete(lease) is None
    assert owner.queue.statistics().settling == 1
    assert owner.queue.floor == 1
    owner.commit()
    assert owner.one(Answer).refused == []
    assert owner.queue.statistics().settling == 0


def test_a_failed_task_can_not_be_polled_before_its_failure_is_durable() -> None:
    owner = Owner(Schedule.parse("0,0"))
    owner.enqueue()
    lease = owner.poll()
    owner.commits = False
    owner.fail(lease)
    assert owner.poll().numbers == []
    owner.commit()
    assert owner.says_ready()
    assert owner.poll().attempts == [2]


# Bad input ----------------------------------------------------------------------------------------


def test_completing_twice_is_fine_with_the_fence_that_completed_it() -> None:
    owner = Owner()
    owner.enqueue(2)
    lease = owner.poll(2)
    owner.complete(lease)
    assert owner.complete(lease) == Answer("d", [])
    assert owner.reports() == [], "nothing has happened"
    assert owner.queue.statistics().completed_total == 2
    wrong = owner.settle("complete", [1], [2])
    assert wrong == Answer("d", [(0, LEASE_EXPIRED)])


def test_a_repeat_waits_until_the_first_is_durable() -> None:
    owner = Owner()
    owner.enqueue()
    lease = owner.poll()
    owner.commits = False
    assert owner.complete(lease) is None
    assert owner.complete(lease) is None
    owner.commit()
    assert owner.some(Answer) == [Answer("d", [])] * 2


def test_one_task_twice_in_one_breath_is_once() -> None:
    owner = Owner()
    owner.enqueue()
    (row,) = owner.poll().rows
    answer = owner.settle("complete", [row.number] * 2, [row.fence] * 2)
    assert answer == Answer("d", [])
    assert owner.queue.statistics().completed_total == 1


def test_repeats_are_remembered_for_a_while_and_not_for_ever() -> None:
    owner = Owner()
    owner.enqueue(100_001)
    first = owner.poll(1)
    owner.complete(first)
    assert owner.complete(first) == Answer("d", [])
    owner.complete(owner.poll(100_000))
    assert owner.complete(first) == Answer("d", [(0, LEASE_EXPIRED)])


@pytest.mark.parametrize("verb", ["complete", "fail", "reject", "release", "extend"])
def test_another_workers_task_can_not_be_settled(verb: str) -> None:
    owner = Owner()
    owner.enqueue()
    lease = owner.poll(worker=1)
    answer = owner.settle(verb, lease.numbers, lease.fences, worker=2)  # type: ignore[arg-type]
    assert answer == Answer("d", [(0, LEASE_EXPIRED)])
    assert not owner.some(Journal)
    assert owner.complete(lease, worker=1) == Answer("d", []), "the task is unharmed"


@pytest.mark.parametrize("fence", [0, 2, 2**64 - 1])
def test_a_forged_fence_is_refused_and_the_task_unharmed(fence: int) -> None:
    owner = Owner()
    owner.enqueue()
    lease = owner.poll()
    assert owner.settle("complete", [1], [fence]) == Answer("d", [(0, LEASE_EXPIRED)])
    assert owner.complete(lease) == Answer("d", [])


def test_what_is_refused_is_named_by_its_place_and_the_rest_is_done() -> None:
    owner = Owner()
    owner.enqueue(3)
    owner.poll(3)
    answer = owner.settle("complete", [9, 1, 0, 2, 3], [1, 1, 1, 5, 3])
    assert answer == Answer("d", [(0, LEASE_EXPIRED), (2, LEASE_EXPIRED), (3, LEASE_EXPIRED)])
    assert owner.queue.statistics().completed_total == 2


def test_columns_of_different_lengths_are_refused_whole() -> None:
    owner = Owner()
    owner.enqueue(2)
    owner.poll(2)
    refused = [(0, LEASE_EXPIRED), (1, LEASE_EXPIRED)]
    assert owner.settle("complete", [1, 2], [1]) == Answer("d", refused)
    assert owner.settle("complete", [], []) == Answer("d", [])
    assert owner.queue.statistics().leased == 2


def test_a_late_complete_is_refused_even_before_the_sweeper_has_come() -> None:
    owner = Owner()
    owner.enqueue()
    lease = owner.poll(lease_s=20.0)
    owner.at_s = 20.0
    assert owner.complete(lease) == Answer("d", [(0, LEASE_EXPIRED)])
    owner.wait(0.5)
    assert owner.complete(lease) == Answer("d", [(0, LEASE_EXPIRED)])
    assert owner.poll().attempts == [2]


def test_a_worker_that_never_answers_brings_a_task_to_the_dead_letters_and_no_further() -> None:
    owner = Owner()
    owner.enqueue(2)
    for attempt in range(1, 6):
        lease = owner.poll(1)
        assert (lease.numbers, lease.attempts) == ([1], [attempt]), "it keeps its place"
        owner.wait(21)
    assert owner.poll(1).numbers == [2]
    (dead,) = owner.queue.rows("dead", 0, 10)
    assert [each.error for each in dead.row.history] == ["lease expired"] * 5
    assert [each.attempt for each in dead.row.history] == [1, 2, 3, 4, 5]
    assert {each.worker for each in dead.row.history} == {"worker 1"}
    assert owner.queue.statistics().expired_total == 5


def test_a_worker_that_fails_everything_harms_only_what_it_gets() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(1000)
    owner.fail(owner.poll(500, worker=1))
    assert owner.complete(owner.poll(500, worker=2), worker=2) == Answer("d", [])
    statistics = owner.queue.statistics()
    assert (statistics.dead, statistics.completed_total) == (500, 500)


def test_an_error_of_any_length_is_cut() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue()
    owner.fail(owner.poll(), "ü" * 5000)
    (dead,) = owner.queue.rows("dead", 0, 1)
    assert dead.row.history[0].error == "ü" * (ERROR_BYTES_MAX // 2)


def test_headers_that_cannot_be_read_make_a_dead_letter() -> None:
    owner = Owner()
    owner.enqueue_each([None, TaskOptions(fault="no such thing"), None])
    assert owner.poll(10).numbers == [1, 3]
    (dead,) = owner.queue.rows("dead", 0, 10)
    assert (dead.number, dead.row.attempts) == (2, 0)
    assert dead.row.history[0].error == "no such thing"


# Leases -------------------------------------------------------------------------------------------


def test_an_expired_task_is_given_out_again_at_its_place() -> None:
    owner = Owner()
    owner.enqueue(4)
    owner.poll(2, worker=1, lease_s=5.0)
    owner.wait(6)
    assert owner.says_ready() is False, "there was something already"
    lease = owner.poll(3, worker=2)
    assert (lease.numbers, lease.attempts) == ([1, 2, 3], [2, 2, 1])


def test_extending_keeps_the_fence_and_moves_the_end() -> None:
    owner = Owner()
    owner.enqueue(5)
    lease = owner.poll(5, lease_s=10.0)
    owner.wait(9)
    assert owner.settle("extend", [1, 2, 4], [1, 2, 4], lease_s=10.0) == Answer("d", [])
    owner.wait(2)
    assert owner.poll(10, worker=2).numbers == [3, 5]
    assert owner.complete(lease) == Answer("d", [(2, LEASE_EXPIRED), (4, LEASE_EXPIRED)])


def test_what_is_released_is_at_its_place_and_was_no_attempt() -> None:
    owner = Owner()
    owner.enqueue(3)
    lease = owner.poll(2)
    assert owner.settle("release", [2], [lease.fences[1]]) == Answer("d", [])
    assert not owner.some(Journal)
    again = owner.poll(2, worker=2)
    assert (again.numbers, again.attempts) == ([2, 3], [1, 1])
    assert again.fences[0] > lease.fences[1]


def test_leases_that_were_settled_do_not_pile_up_until_they_would_have_ended() -> None:
    owner = Owner()
    for _ in range(5000):
        owner.enqueue()
        owner.complete(owner.poll(lease_s=3600.0))
    owner.wait(1)
    assert len(owner.queue._places.leases._order) < 1100


# Fences -------------------------------------------------------------------------------------------


def test_no_fence_is_given_out_before_its_block_is_durable() -> None:
    owner = Owner(first_fence=77)
    owner.commits = False
    owner.enqueue(3)
    assert owner.journal == [FencesReserved(1_000_076)]
    assert not owner.says_ready()
    assert owner.poll(3).numbers == []
    owner.commit()
    assert owner.says_ready()
    assert owner.poll(3).fences == [77, 78, 79]


def test_a_new_block_is_reserved_long_before_the_last_one_ends() -> None:
    owner = Owner()
    owner.enqueue(1_100_000)
    owner.poll(500_001)
    assert len([r for r in owner.journal if isinstance(r, FencesReserved)]) == 1
    owner.poll(1)
    assert owner.journal[-1] == FencesReserved(1_500_001)
    owner.commits = False
    assert len(owner.poll(10**9).numbers) == 599_998


def test_who_carries_a_task_goes_on_above_its_fences() -> None:
    owner = Owner()
    owner.enqueue()
    assert owner.poll().fences == [1]
    carried = Carried("x-1", 5, fence=7_000_000, origin=OTHER, number=1)
    owner.enqueue_each([TaskOptions(carried=carried)])
    assert owner.poll().fences == [7_000_001]


# Ready --------------------------------------------------------------------------------------------


def test_ready_is_said_once_when_there_is_something_after_there_was_nothing() -> None:
    owner = Owner()
    owner.enqueue(2)
    assert owner.some(Ready) == [Ready()]
    owner.enqueue(2)
    assert not owner.says_ready()
    owner.poll(3)
    assert not owner.says_ready()
    owner.poll(3)
    owner.enqueue()
    assert owner.says_ready()


# Failures and dead letters ------------------------------------------------------------------------


def test_a_rejected_task_is_a_dead_letter_at_once() -> None:
    owner = Owner()
    owner.enqueue(2)
    owner.at_s = 3.0
    owner.reject(owner.poll(1), "never")
    (report,) = owner.reports()
    why = Attempt(1, owner.now_us, "worker 1", "never")
    assert (report.kind, report.numbers, report.attempts(1)) == ("failed", [1], 1)
    assert report.history(1) == (why,)
    (dead,) = owner.queue.rows("dead", 0, 10)
    assert (dead.row.dead_us, dead.row.history) == (owner.now_us, (why,))


def test_a_task_has_its_own_schedule_or_the_queues() -> None:
    owner = Owner(Schedule.parse("0,0,0"))
    owner.enqueue_each([None, TaskOptions(retry=NO_RETRY)])
    owner.fail(owner.poll(2))
    assert [row.number for row in owner.queue.rows("dead", 0, 9)] == [2]
    assert owner.poll(2).attempts == [2]


def test_jitter_is_different_for_the_tasks_of_one_batch() -> None:
    owner = Owner(Schedule.parse("exponential:first=100,factor=1,cap=100,attempts=3,jitter=0.5"))
    owner.enqueue(20)
    owner.fail(owner.poll(20))
    dues = {row.row.due_us for row in owner.queue.rows("retrying", 0, 99)}
    assert len(dues) == 20
    assert max(dues) - min(dues) > 50_000_000


def test_a_requeued_dead_letter_has_all_attempts_before_it_and_keeps_its_past() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(3)
    owner.fail(owner.poll(3))
    assert owner.act("requeue", [1, 3]).refused == []
    lease = owner.poll(3)
    assert (lease.numbers, lease.attempts) == ([1, 3], [1, 1])
    owner.fail(lease, "again")
    history = owner.queue.rows("dead", 0, 1)[0].row.history
    assert [(each.attempt, each.error) for each in history] == [(1, "no"), (1, "again")]


def test_what_is_deleted_or_purged_is_finished() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(4)
    owner.fail(owner.poll(4))
    assert owner.act("delete", [2]).refused == []
    assert owner.act("purge", None).refused == []
    assert owner.queue.floor == 5
    assert owner.queue.statistics().dead == 0


def test_only_dead_letters_can_be_acted_on() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(3)
    owner.fail(owner.poll(1))
    answer = owner.act("delete", [2, 1, 99])
    assert answer.refused == [(0, NOT_DEAD), (2, NOT_DEAD)]
    assert owner.act("requeue", [1]).refused == [(0, NOT_DEAD)]
    assert owner.poll(9).numbers == [2, 3]


def test_dead_letters_have_a_retention_of_their_own() -> None:
    owner = Owner(NO_RETRY, dead_keep_s=100.0)
    owner.enqueue(2)
    owner.fail(owner.poll(1))
    owner.wait(50)
    owner.fail(owner.poll(1))
    owner.act("requeue", [1])
    owner.fail(owner.poll(1))
    owner.wait(99)
    assert [row.number for row in owner.queue.rows("dead", 0, 9)] == [1, 2]
    owner.wait(1)
    assert owner.queue.floor == 3
    assert owner.journal[-1] == Finished("over", ((1, 2),))


def test_one_that_was_requeued_and_died_again_is_kept_from_its_last_death_on() -> None:
    owner = Owner(NO_RETRY, dead_keep_s=100.0)
    owner.enqueue()
    owner.fail(owner.poll())
    owner.wait(60)
    owner.act("requeue", None)
    owner.fail(owner.poll())
    owner.wait(60)
    assert owner.queue.statistics().dead == 1
    owner.wait(40)
    assert owner.queue.statistics().dead == 0


# Keys ---------------------------------------------------------------------------------------------


def test_a_task_with_a_key_that_was_there_a_moment_ago_is_dropped() -> None:
    owner = Owner()
    one = TaskOptions(key="k", window_ms=5000)
    owner.enqueue_each([one, None, one])
    assert owner.poll(9).numbers == [1, 2]
    owner.wait(4.9)
    owner.enqueue_each([one])
    assert owner.poll(9).numbers == []
    owner.wait(0.2)
    owner.enqueue_each([one])
    assert owner.poll(9).numbers == [5], "the window counts from the first, not from repeats"
    assert owner.queue.statistics().repeated_total == 2


def test_what_is_carried_is_never_dropped_for_its_key_and_still_has_it() -> None:
    owner = Owner()
    carried = Carried("x-1", owner.now_us, origin=OTHER, number=1)
    owner.enqueue_each([TaskOptions(key="k"), TaskOptions(key="k", carried=carried)])
    assert owner.poll(9).numbers == [1, 2]
    owner.enqueue_each([TaskOptions(key="k")])
    assert owner.poll(9).numbers == []


# Carried and finished elsewhere -------------------------------------------------------------------


def test_what_another_has_finished_is_finished_here_whatever_it_was_doing() -> None:
    owner = Owner(Schedule.parse("0,100"))
    owner.enqueue_each([None, None, TaskOptions(delay_ms=9000), None, None])
    leased = owner.poll(1)
    owner.fail(owner.poll(1))
    owner.reject(owner.poll(1))
    owner.tell(FinishedElsewhere([1, 2, 3, 4, 5, 6, 0]))
    assert owner.journal[-1] == Finished("elsewhere", ((1, 5),))
    assert owner.queue.floor == 6
    assert owner.complete(leased) == Answer("d", [(0, LEASE_EXPIRED)])
    owner.wait(1000)
    assert owner.poll(9).numbers == []
    statistics = owner.queue.statistics()
    assert (statistics.delayed, statistics.retrying, statistics.dead) == (0, 0, 0)


def test_a_task_that_was_taken_over_counts_when_that_is_durable_and_but_once() -> None:
    owner = Owner()
    history = (Attempt(1, 5, "w", "no"),)
    carried = Carried("x-7", 5, 1, history, origin=OTHER, number=7)
    owner.commits = False
    owner.enqueue_each([TaskOptions(carried=carried), TaskOptions(carried=carried)])
    assert TakenOver(OTHER, ((7, 7),), ((1, 1),)) in owner.journal
    assert owner.queue.available == 0
    owner.commit()
    lease = owner.poll(9)
    assert (lease.numbers, lease.attempts) == ([1], [2])
    owner.enqueue_each([TaskOptions(carried=carried)])
    owner.commit()
    assert owner.poll(9).numbers == []


def test_a_carried_dead_letter_stays_one_and_a_delay_stays_a_delay() -> None:
    owner = Owner()
    dead = Carried("x-1", 5, 1, (Attempt(1, 6, "w", "no"),), dead_us=6, origin=OTHER, number=1)
    late = Carried("x-2", 5, due_us=owner.now_us + 5_000_000, origin=OTHER, number=2)
    owner.enqueue_each([TaskOptions(carried=dead), TaskOptions(carried=late, delay_ms=999_999)])
    assert [row.number for row in owner.queue.rows("dead", 0, 9)] == [1]
    assert owner.poll(9).numbers == []
    owner.wait(5)
    assert owner.poll(9).numbers == [2]


def own(number: int, **known: object) -> TaskOptions:
    return TaskOptions(carried=Carried("x", 5, origin=ME, number=number, **known))  # type: ignore[arg-type]


def test_of_a_task_that_is_carried_in_its_own_log_the_copy_counts_if_nothing_has_happened() -> None:
    owner = Owner()
    owner.enqueue(3)
    owner.enqueue_each([own(1)])
    assert owner.poll(9).numbers == [2, 3, 4]
    assert owner.queue.floor == 2


def test_of_a_task_to_which_something_has_happened_the_copy_does_not_count() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(3)
    done, failed, leased = (owner.poll(1) for _ in range(3))
    owner.complete(done)
    owner.fail(failed)
    owner.enqueue_each([own(1), own(2), own(3)])
    assert owner.poll(9).numbers == []
    assert owner.journal[-1] == Finished("dropped", ((4, 6),))
    assert owner.complete(leased) == Answer("d", [])


def test_a_dead_letter_is_requeued_with_changes_by_a_copy_that_lives() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue()
    owner.fail(owner.poll())
    history = owner.queue.rows("dead", 0, 1)[0].row.history
    owner.enqueue_each([own(1, history=history)])
    lease = owner.poll(9)
    assert (lease.numbers, lease.attempts) == ([2], [1])
    assert owner.queue.statistics().dead == 0


def test_a_copy_of_a_dead_letter_does_not_undo_that_it_was_requeued() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue()
    owner.fail(owner.poll())
    row = owner.queue.rows("dead", 0, 1)[0].row
    owner.act("requeue", [1])
    owner.enqueue_each([own(1, attempts=1, history=row.history, dead_us=row.dead_us)])
    assert owner.poll(9).numbers == [1]
    assert owner.queue.statistics().dead == 0


# What can be asked --------------------------------------------------------------------------------


def test_statistics_count_everything() -> None:
    owner = Owner(Schedule.parse("0,100"))
    owner.enqueue(6)
    owner.at_s = 10.0
    owner.enqueue(1, TaskOptions(delay_ms=60_000))
    owner.fail(owner.poll(1))
    owner.reject(owner.poll(1))
    owner.complete(owner.poll(1))
    owner.poll(1)
    owner.commits = False
    owner.complete(owner.poll(1))
    found = owner.queue.statistics()
    assert (found.ready, found.delayed, found.retrying, found.leased) == (1, 1, 1, 1)
    assert (found.settling, found.dead, found.unfinished) == (1, 1, 5)
    assert (found.enqueued_total, found.completed_total) == (7, 1)
    assert (found.failed_total, found.dead_total) == (2, 1)
    assert (found.floor, found.extent, found.fence) == (1, 7, 5)
    assert found.first_due_us == owner.now_us + 60_000_000
    assert found.oldest_enqueued_us == owner.now_us - 10_000_000


def test_the_oldest_is_the_first_that_is_neither_finished_nor_dead() -> None:
    owner = Owner(NO_RETRY)
    for _ in range(4):
        owner.enqueue()
        owner.at_s += 10
    owner.fail(owner.poll())
    owner.complete(owner.poll())
    oldest = owner.queue.statistics().oldest_enqueued_us
    assert oldest == owner.now_us - 20_000_000


def test_a_listing_goes_on_behind_what_was_told() -> None:
    owner = Owner()
    owner.enqueue(3000)
    page = owner.queue.rows("ready", 0, 1000)
    assert [row.number for row in page] == list(range(1, 1001))
    page = owner.queue.rows(None, 2500, 1000)
    assert [row.number for row in page] == list(range(2501, 3001))
    owner.poll(1, worker=7)
    (row,) = owner.queue.rows("leased", 0, 9)
    assert (row.number, row.worker, row.fence, row.expires_at_s) == (1, "worker 7", 1, 20.0)
    assert owner.queue.find(9999) is None


def test_nothing_is_remembered_of_what_is_finished() -> None:
    owner = Owner(Schedule.parse("0,0"))
    owner.enqueue(9, TaskOptions(retry=NO_RETRY, priority=3))
    owner.enqueue(9)
    owner.reject(owner.poll(12))
    owner.act("purge", None)
    owner.complete(owner.poll(99))
    places = owner.queue._places
    assert (places.rows, places.changing, places.traits._sets) == ({}, {}, {})
    assert len(places.finished.above) + len(places.finishing) + len(places.leases) == 0


def test_records_of_many_are_parted() -> None:
    owner = Owner(NO_RETRY)
    owner.enqueue(10_000)
    owner.fail(owner.poll(10_000))
    failed = [record for record in owner.journal if isinstance(record, Failed)]
    assert [len(record.numbers) for record in failed] == [4096, 4096, 1808]
    assert owner.queue.statistics().dead == 10_000


def test_a_hole_in_the_log_is_nobodys_task() -> None:
    owner = Owner()
    owner.tell(Enqueued(5, 1, None, owner.now_us))
    assert owner.queue.floor == 5
    assert owner.poll(9).numbers == [5]


def test_an_empty_queue_has_nothing_to_say() -> None:
    queue = TaskQueue("q", DEFAULT, 1, broker_id=ME)
    assert queue.handle(Ticked(1.0, 1, 0.5)) == []
    assert queue.handle(FinishedElsewhere([1, 2])) == []
    assert queue.rows(None, 0, 10) == []
    assert list(queue.unfinished()) == []
    assert queue.statistics().oldest_enqueued_us is None


def test_reports_tell_the_history_of_what_was_completed_at_last() -> None:
    owner = Owner(Schedule.parse("0,0,0"))
    owner.enqueue()
    owner.fail(owner.poll(), "one")
    owner.fail(owner.poll(), "two")
    owner.complete(owner.poll())
    report = owner.one(Report)
    assert report.attempts(1) == 3
    assert [each.error for each in report.history(1)] == ["one", "two"]
    assert not owner.some(Lease)


# Given up -----------------------------------------------------------------------------------------


def carried_tasks(owner: Owner, *numbers: int) -> None:
    each = [Carried(f"{OTHER.hex()}-{n}", owner.now_us, origin=OTHER, number=n) for n in numbers]
    owner.enqueue_each([TaskOptions(carried=carried) for carried in each])


def test_numbers_that_ended_while_their_tasks_did_not_are_known_for_good() -> None:
    owner = Owner()
    owner.enqueue(1)
    carried_tasks(owner, 7, 8, 9, 7)
    owner.tell(GivenUp(OTHER, {8: (3, f"{OTHER.hex()}-8")}, {}))
    owner.complete(owner.poll(1))
    assert [lease.numbers for lease in [owner.poll(9)]] == [[2, 4]]
    assert list(owner.queue.moved.runs()) == [(3, 3), (5, 5)], "given up, and a copy of 2"
    assert list(owner.queue.finished_runs()) == [(1, 1), (3, 3), (5, 5)]
    owner.tell(SnapshotDue())
    begun = max(at for at, each in enumerate(owner.journal) if isinstance(each, SnapshotBegun))
    for records in (owner.journal, owner.journal[begun:]):
        recovery = Recovery(ME)
        for record in records:
            recovery.apply(record)
        assert list(recovery.moved.runs()) == [(3, 3), (5, 5)]


def test_who_takes_a_task_again_that_was_given_up_goes_on_with_its_attempts() -> None:
    owner = Owner(Schedule.parse("0,100,100"))
    carried_tasks(owner, 7, 8)
    owner.fail(owner.poll(1))
    task_ids = [f"{OTHER.hex()}-{n}" for n in (7, 8)]
    owner.tell(GivenUp(OTHER, {7: (1, task_ids[0]), 8: (2, task_ids[1])}, {}))
    known = [owner.queue.remembered.get(task_id) for task_id in task_ids]
    assert known[1] is None, "nothing had happened to it"
    older = Carried(task_ids[0], owner.now_us, origin=OTHER, number=7)
    newer = carry_on(older, known[0])
    assert (newer.attempts, [each.error for each in newer.history]) == (1, ["no"])
    assert carry_on(older, None) == older
    ahead = replace(newer, attempts=2)
    assert carry_on(ahead, known[0]) == ahead


def test_a_task_that_was_given_up_is_not_said_to_go_on_here_on_any_way_on_which_it_came() -> None:
    owner = Owner()
    task_id = f"{OTHER.hex()}-7"
    for origin, number in ((OTHER, 7), (THIRD, 3)):
        carried = Carried(task_id, owner.now_us, origin=origin, number=number)
        owner.enqueue_each([TaskOptions(carried=carried)])
    assert list(owner.queue.taken_of(THIRD)) == [(3, 3)], "it is here, though under the first"
    owner.tell(GivenUp(OTHER, {7: (1, task_id)}, {task_id: [(OTHER, 7), (THIRD, 3)]}))
    recovery = Recovery(ME)
    for record in owner.journal:
        recovery.apply(record)
    for origin in (OTHER, THIRD):
        assert list(owner.queue.taken_of(origin)) == []
        assert not recovery.taken[origin], "who takes over from us must not think that we have it"
    assert list(recovery.moved.runs()) == [(1, 2)]
    again = Carried(task_id, owner.now_us, origin=THIRD, number=3)
    owner.enqueue_each([TaskOptions(carried=again)])
    assert owner.poll(9).numbers == [3], "and it may come back"
