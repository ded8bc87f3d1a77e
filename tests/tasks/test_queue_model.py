"""The machine against a simple model, with crashes at any moment.

What was enqueued ends as completed or as a dead letter, never as both; attempts are never reset;
fences only grow. After each step both sides say the same of every task.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from busnode.tasks import failures, fences, leases, queue, snapshot
from busnode.tasks.events import (
    LEASE_EXPIRED,
    NOT_DEAD,
    Action,
    Answer,
    DeadAct,
    DeadActed,
    Enqueued,
    Event,
    FinishedElsewhere,
    Journal,
    JournalCommitted,
    Lease,
    Polled,
    Ready,
    Report,
    Settled,
    SnapshotDue,
    Snapshotted,
    Ticked,
    Verb,
)
from busnode.tasks.journal import (
    Failed,
    FencesReserved,
    Finished,
    JournalRecord,
    LetGo,
    Requeued,
    TakenOver,
    decode_record,
    encode_record,
)
from busnode.tasks.queue import TaskQueue
from busnode.tasks.ranges import Numbers
from busnode.tasks.recovery import Recovery, carry, task_id
from busnode.tasks.rows import DEAD
from busnode.wire.carried_task import Attempt, Carried, decode_carried, encode_carried
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import DEFAULT, Schedule
from busnode.wire.task_options import TaskOptions
from tests.tasks.model import DEAD_KEEP_US, Held, Model, Task

NAMES = {1: "one", 2: "two"}
IDLE = ("ready", "delayed", "retrying", "dead")
START_US = 1_000_000_000_000

SCHEDULES = [None, Schedule.parse("none"), Schedule.parse("0,0,3"), Schedule.parse("0,5")]
options = st.one_of(
    st.none(),
    st.builds(
        TaskOptions,
        delay_ms=st.sampled_from([0, 0, 1000, 7000]),
        priority=st.sampled_from([0, 0, 0, 5, -5]),
        key=st.sampled_from([None, None, None, "a", "b"]),
        window_ms=st.just(4000),
        retry=st.sampled_from(SCHEDULES),
    ),
    st.sampled_from([None] * 3 + [TaskOptions(fault="no such option")]),
)


@dataclass(slots=True)
class Incarnation:
    """What is on the disk of one owner."""

    broker_id: BrokerId
    tasks: list[tuple[int, TaskOptions | None]] = field(
        default_factory=list[tuple[int, TaskOptions | None]]
    )
    """When each was enqueued, and what its headers say; the first has number 1."""
    journal: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])


@dataclass(slots=True)
class Copy:
    """A task that was read in order to be carried."""

    task: Task
    failures: int
    options: TaskOptions


class QueueAndModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.patches = pytest.MonkeyPatch()
        for module, name, value in [
            (fences, "BLOCK", 8),
            (leases, "SPARE_MAX", 2),
            (failures, "ROWS_MAX", 3),
            (queue, "RUNS_MAX", 2),
            (snapshot, "ROWS_MAX", 2),
            (snapshot, "RUNS_MAX", 2),
        ]:
            self.patches.setattr(module, name, value)
        self.at_s = 100.0
        self.now_us = START_US
        self.incarnations: list[Incarnation] = []
        self.everything: dict[str, Task] = {}
        self.away: list[tuple[Task, TaskOptions]] = []
        """What is unfinished of earlier incarnations, and not carried yet."""
        self.last_fence = 0
        self.dones = 0
        self.in_step = False
        """A step was begun and not ended."""
        self.restart(1)

    def restart(self, first_fence: int) -> None:
        broker_id = BrokerId(len(self.incarnations).to_bytes(16, "big"))
        self.incarnations.append(Incarnation(broker_id))
        self.queue = TaskQueue(
            "q", DEFAULT, first_fence, broker_id=broker_id, dead_keep_s=DEAD_KEEP_US / 1e6
        )
        self.model = Model(next_fence=first_fence, ceiling=first_fence - 1)
        self.unwritten: list[tuple[int, bytes, JournalRecord]] = []
        self.leased: list[tuple[int, int, int]] = []
        """All leases of this incarnation: number, fence, worker."""
        self.copies: list[Copy] = []
        self.answers: dict[int, tuple[int, list[tuple[int, str]]]] = {}
        self.reported: list[Report] = []
        self.seq = 0

    @property
    def disk(self) -> Incarnation:
        return self.incarnations[-1]

    # Both sides -----------------------------------------------------------------------------------

    def tell(self, event: Event, expect: Callable[[list[Action], dict[int, int]], None]) -> None:
        """Handle an event; `expect` says what the model makes of it, given which record speaks of
        which number."""
        was_available = self.model.available
        self.in_step = True
        actions = self.queue.handle(event)
        seqs: dict[int, int] = {}
        for action in actions:
            if isinstance(action, Journal):
                assert action.seq == self.seq + 1
                self.seq = action.seq
                encoded = encode_record(action.record)
                assert plain(decode_record(encoded)) == plain(action.record)
                self.unwritten.append((action.seq, encoded, action.record))
                if not isinstance(event, SnapshotDue | JournalCommitted):
                    said = numbers_of(action.record)
                    assert not seqs.keys() & set(said)
                    seqs.update(dict.fromkeys(said, action.seq))
        expect(actions, seqs)
        for action in actions:
            if isinstance(action, Answer):
                assert isinstance(action.done, int)
                seq, refused = self.answers.pop(action.done)
                assert seq <= self.committed, "answered before it was durable"
                assert action.refused == refused
            elif isinstance(action, Snapshotted):
                kept = [each for each in self.disk.journal if each[0] >= action.begun_seq]
                self.disk.journal = kept
        assert all(seq > self.committed for seq, _ in self.answers.values()), "an answer is missing"
        assert actions.count(Ready()) == (not was_available and self.model.available > 0)
        self.in_step = False

    @property
    def committed(self) -> int:
        return self.unwritten[0][0] - 1 if self.unwritten else self.seq

    def nothing(self, actions: list[Action], seqs: dict[int, int]) -> None:
        assert not seqs

    # Rules ----------------------------------------------------------------------------------------

    @rule(
        batch=st.lists(options, min_size=1, max_size=6), heard=st.sampled_from([True] * 9 + [False])
    )
    def enqueue(self, batch: list[TaskOptions | None], heard: bool) -> None:
        first_no = len(self.disk.tasks) + 1
        if first_no != self.queue.extent + 1:
            return  # something is on the disk that the queue will never hear of: a crash follows
        tasks: list[Task] = []
        for number, each in enumerate(batch, first_no):
            name = task_id(self.disk.broker_id, number)
            task = Task(name, number, self.now_us, each or TaskOptions(), "settling")
            self.everything[name] = self.model.tasks[number] = task
            task.due_us = self.now_us + task.options.delay_ms * 1000
            if not task.options.delay_ms:
                task.due_us = 0
            tasks.append(task)
            self.disk.tasks.append((self.now_us, each))
        if not heard:
            for task in tasks:
                del self.model.tasks[task.number]
            return

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            for task in tasks:
                key = task.options.key
                if task.options.fault is not None:
                    fault = task.options.fault
                    change = self.model.fail(task, 0, DEAD, self.now_us, "", fault)
                    self.model.write(seqs.pop(task.number), task, change)
                elif key is not None and self.model.keys.get(key, 0) > self.now_us:
                    self.model.write(seqs.pop(task.number), task, self.model.finish(task))
                else:
                    if key is not None:
                        self.model.keys[key] = self.now_us + task.options.window_ms * 1000
                    self.model.put(task, self.now_us)
            assert not seqs

        some = batch if any(batch) else None
        self.tell(Enqueued(first_no, len(batch), some, self.now_us), expect)

    @rule(
        worker=st.sampled_from([1, 2]), want=st.integers(0, 6), lease_s=st.sampled_from([2.0, 9.0])
    )
    def poll(self, worker: int, want: int, lease_s: float) -> None:
        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            (lease,) = (action for action in actions if isinstance(action, Lease))
            given = self.model.order()[: min(want, self.model.available)]
            assert lease.numbers == [task.number for task in given]
            assert lease.attempts == [task.attempts + 1 for task in given]
            assert lease.fences == [self.model.next_fence + place for place in range(len(given))]
            for row in lease.rows:
                assert row.fence > self.last_fence, "fences only grow"
                self.last_fence = row.fence
                task = self.model.tasks[row.number]
                task.state = "leased"
                task.held = Held(worker, NAMES[worker], row.fence, self.at_s + lease_s)
                self.leased.append((row.number, row.fence, worker))
            self.model.next_fence += len(given)
            assert not seqs

        self.tell(Polled(1, worker, NAMES[worker], want, lease_s, self.at_s, self.now_us), expect)

    @precondition(lambda self: self.leased)
    @rule(
        verb=st.sampled_from(
            ["complete", "complete", "fail", "fail", "reject", "release", "extend"]
        ),
        picks=st.lists(st.integers(0, 30), min_size=1, max_size=5),
        forged=st.sampled_from([0] * 5 + [1]),
        swapped=st.sampled_from([False] * 5 + [True]),
        random=st.floats(0, 1),
    )
    def settle(
        self, verb: Verb, picks: list[int], forged: int, swapped: bool, random: float
    ) -> None:
        chosen = [self.leased[-1 - pick % len(self.leased)] for pick in picks]
        worker = chosen[0][2]
        worker = 3 - worker if swapped else worker
        numbers = [number for number, _, _ in chosen]
        given = [fence + forged for _, fence, _ in chosen]
        self.dones += 1
        done = self.dones
        settled = self.model.settled.setdefault(verb, set())

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            refused: list[tuple[int, str]] = []
            ours: dict[int, Task] = {}
            said: set[tuple[int, int]] = set()
            waits = False
            for place, (number, fence) in enumerate(zip(numbers, given, strict=True)):
                task = self.model.tasks.get(number)
                held = task.held if task is not None else None
                if (
                    task is not None
                    and held is not None
                    and held.fence == fence
                    and held.worker == worker
                    and held.expires_at_s > self.at_s
                ):
                    ours[number] = task
                    said.add((number, fence))
                elif (number, fence) in settled:
                    waits = True
                else:
                    refused.append((place, LEASE_EXPIRED))
            if verb in ("complete", "fail", "reject") and ours:
                waits = True
                settled.update(said)
            self.settle_each(verb, ours, worker, seqs)
            assert not seqs
            self.answers[done] = (self.seq if waits else 0, refused)

        event = Settled(
            done, worker, verb, numbers, given, "why", 9.0, self.at_s, self.now_us, random
        )
        self.tell(event, expect)

    def settle_each(
        self, verb: Verb, ours: dict[int, Task], worker: int, seqs: dict[int, int]
    ) -> None:
        for number, task in ours.items():
            held, task.held = task.held, None
            assert held is not None
            if verb == "extend":
                held.expires_at_s = self.at_s + 9.0
                task.held = held
            elif verb == "complete":
                self.model.write(seqs.pop(number), task, self.model.finish(task))
            elif verb == "release":
                task.state = "ready"
            else:
                attempts = task.attempts + 1
                schedule = task.options.retry or DEFAULT
                due_us = DEAD
                if verb == "fail" and attempts < schedule.attempts_max:
                    due_us = self.now_us + round(schedule.waits_s[attempts] * 1_000_000)
                change = self.model.fail(task, attempts, due_us, self.now_us, NAMES[worker], "why")
                self.model.write(seqs.pop(number), task, change)

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 700.0, 4000.0]))
    def tick(self, step_s: float) -> None:
        self.at_s += step_s
        self.now_us += round(step_s * 1_000_000)

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            for task in self.model.in_state("leased"):
                held = task.held
                assert held is not None
                if held.expires_at_s > self.at_s:
                    continue
                attempts = task.attempts + 1
                due_us = DEAD if attempts >= task.attempts_max else 0
                change = self.model.fail(
                    task, attempts, due_us, self.now_us, held.name, "lease expired"
                )
                self.model.write(seqs.pop(task.number), task, change)
            for task in self.model.in_state("delayed", "retrying"):
                if task.due_us <= self.now_us:
                    task.state = "ready"
            for task in self.model.in_state("dead"):
                if (task.dead_us or 0) + DEAD_KEEP_US <= self.now_us:
                    self.model.write(seqs.pop(task.number), task, self.model.finish(task))
            assert not seqs

        self.tell(Ticked(self.at_s, self.now_us, 0.5), expect)

    @precondition(lambda self: self.unwritten)
    @rule(count=st.sampled_from([1, 1, 2, 3, 12]))
    def commit(self, count: int) -> None:
        written, self.unwritten = self.unwritten[:count], self.unwritten[count:]
        self.disk.journal += [(seq, encoded) for seq, encoded, _ in written]

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            alive = {t.number: t for t in self.model.tasks.values() if t.state == "settling"}
            for _, _, record in written:
                if isinstance(record, FencesReserved):
                    self.model.ceiling = max(self.model.ceiling, record.ceiling)
            self.model.commit(written[-1][0])
            died = {n for n, task in alive.items() if task.state == "dead" and task.failures > 0}
            told = [action for action in actions if isinstance(action, Report)]
            assert died >= {n for each in told if each.kind == "failed" for n in each.numbers}
            for each in told:
                for number in each.numbers:
                    task = alive[number]
                    assert task.state == ("done" if each.kind == "completed" else "dead")
                    assert each.history(number) == task.history
                    extra = 1 if each.kind == "completed" else 0
                    assert each.attempts(number) == task.attempts + extra

        self.tell(JournalCommitted(written[-1][0]), expect)

    @rule()
    def commit_all(self) -> None:
        while self.unwritten:
            self.commit(len(self.unwritten))

    @rule(
        worker=st.sampled_from([1, 2]),
        want=st.integers(1, 4),
        verb=st.sampled_from(["complete", "complete", "fail", "fail", "fail", "reject", "release"]),
        step_s=st.sampled_from([0.0, 700.0, 1300.0]),
        random=st.floats(0, 1),
    )
    def work(self, worker: int, want: int, verb: Verb, step_s: float, random: float) -> None:
        """What mostly happens: a worker takes some and says what became of them."""
        self.commit_all()
        self.tick(step_s)
        self.commit_all()
        before = len(self.leased)
        self.poll(worker, want, 9.0)
        if len(self.leased) > before:
            self.settle(verb, list(range(len(self.leased) - before)), 0, False, random)

    @precondition(lambda self: self.model.in_state("dead"))
    @rule(
        act=st.sampled_from(["requeue", "requeue", "delete", "purge"]),
        picks=st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3, unique=True)),
        wrong=st.lists(st.integers(1, 20), max_size=1),
    )
    def act_on_dead(self, act: DeadAct, picks: list[int] | None, wrong: list[int]) -> None:
        numbers = None
        if picks is not None:
            known = [task.number for task in self.model.in_state("dead")]
            numbers = list(dict.fromkeys([known[pick % len(known)] for pick in picks] + wrong))
        self.dones += 1
        done = self.dones
        dead = {task.number: task for task in self.model.in_state("dead")}

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            asked = sorted(dead) if numbers is None else numbers
            refused = [(place, NOT_DEAD) for place, n in enumerate(asked) if n not in dead]
            acted = [dead[n] for n in asked if n in dead]
            for task in acted:
                change = self.model.finish(task)
                if act == "requeue":
                    change = self.model.requeue(task, self.now_us)
                self.model.write(seqs.pop(task.number), task, change)
            assert not seqs
            self.answers[done] = (self.seq if acted else 0, refused)

        self.tell(DeadActed(act, numbers, done, self.now_us), expect)

    @precondition(lambda self: self.model.tasks)
    @rule(numbers=st.lists(st.integers(1, 25), min_size=1, max_size=3))
    def end_elsewhere(self, numbers: list[int]) -> None:
        """Another owner has finished them."""

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            for number in set(numbers):
                task = self.model.tasks.get(number)
                if task is None or task.state == "done" or is_finishing(self.model, task):
                    continue
                self.model.write(seqs.pop(number), task, self.model.finish(task))
            assert not seqs

        self.tell(FinishedElsewhere(numbers), expect)

    @precondition(lambda self: self.model.tasks and self.disk.journal)
    @rule()
    def take_a_snapshot(self) -> None:
        self.tell(SnapshotDue(), lambda actions, seqs: None)

    # Carried --------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.copies) < 6 and self.model.tasks)
    @rule(before_no=st.integers(1, 20), requeue=st.booleans())
    def read_what_must_be_carried(self, before_no: int, requeue: bool) -> None:
        seen: list[int] = []
        for number, row in self.queue.carry_before(before_no):
            seen.append(number)
            task = self.model.tasks[number]
            enqueued_us, written = self.disk.tasks[number - 1]
            fence = self.queue.statistics().fence
            carried = carry(self.disk.broker_id, number, enqueued_us, written, row, fence)
            check_carried(carried, task)
            if requeue and carried.dead_us is not None:
                carried = replace(carried, attempts=0, due_us=0, dead_us=None)
            self.copies.append(Copy(task, task.failures, with_carried(written, carried)))
        idle = [task.number for task in self.model.in_state(*IDLE) if task.number < before_no]
        assert seen == sorted(idle)

    @precondition(lambda self: self.copies and self.queue.extent == len(self.disk.tasks))
    @rule(count=st.integers(1, 4))
    def write_copies(self, count: int) -> None:
        copies, self.copies = self.copies[:count], self.copies[count:]
        first_no = len(self.disk.tasks) + 1
        self.disk.tasks += [(self.now_us, copy.options) for copy in copies]

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            for number, copy in enumerate(copies, first_no):
                task, old = copy.task, copy.options.carried
                assert old is not None
                same = task.number == old.number and task.failures == copy.failures
                revived = old.dead_us is not None and task.dead_us is None
                if task.state in IDLE and same and not revived:
                    requeued = task.dead_us is not None and old.dead_us is None
                    change = self.model.requeue(task, self.now_us) if requeued else None
                    seq = seqs.pop(old.number)
                    self.write_ghost(old.number, seq)
                    self.remember_key(task)
                    self.move_in(task, number, seq, change)
                    self.model.next_fence = max(self.model.next_fence, old.fence + 1)
                else:
                    self.remember_key(task)
                    self.write_ghost(number, seqs.pop(number))
            assert not seqs

        batch = [copy.options for copy in copies]
        self.tell(Enqueued(first_no, len(batch), batch, self.now_us), expect)

    def write_ghost(self, number: int, seq: int) -> None:
        """A number that stands for no task: there is another one for it."""
        ghost = self.model.tasks[number] = Task("", number, 0, TaskOptions())
        self.model.write(seq, ghost, self.model.finish(ghost))

    def move_in(
        self, task: Task, number: int, seq: int, change: Callable[[], None] | None = None
    ) -> None:
        task.number = number
        self.model.tasks[number] = task
        now_us = self.now_us
        self.model.write(seq, task, change or (lambda: self.model.put(task, now_us)))

    def remember_key(self, task: Task) -> None:
        key, over_us = task.options.key, task.enqueued_us + task.options.window_ms * 1000
        if key is not None:
            self.model.keys[key] = max(self.model.keys.get(key, 0), over_us)

    # Crashes --------------------------------------------------------------------------------------

    @precondition(lambda self: self.seq > 4)
    @rule(survivors=st.integers(0, 20))
    def crash(self, survivors: int) -> None:
        self.in_step = True
        survived = self.unwritten[:survivors]
        self.disk.journal += [(seq, encoded) for seq, encoded, _ in survived]
        if survived:
            self.model.commit(survived[-1][0])
        first_fence = 1
        taken: dict[BrokerId, Numbers] = {}
        found: list[tuple[Task, TaskOptions]] = []
        for disk in reversed(self.incarnations):
            recovery = Recovery(disk.broker_id)
            for _, encoded in disk.journal:
                recovery.apply(decode_record(encoded))
            gone = taken.get(disk.broker_id, Numbers())
            found += self.recover(disk, recovery, gone)
            for origin, numbers in recovery.taken.items():
                for first, last in numbers.runs():
                    taken.setdefault(origin, Numbers()).add_run(first, last)
            first_fence = max(first_fence, recovery.ceiling + 1)
        assert len({task.id for task, _ in found}) == len(found), "a task is there twice"
        expected = {task.id for task in self.everything.values() if task.state != "done"}
        assert {task.id for task, _ in found} == expected
        assert first_fence > self.last_fence
        for task, _ in found:
            task.state = "away"
            task.held = None
        self.away = found
        self.restart(first_fence)
        self.in_step = False

    def recover(
        self, disk: Incarnation, recovery: Recovery, gone: Numbers
    ) -> list[tuple[Task, TaskOptions]]:
        found: list[tuple[Task, TaskOptions]] = []
        first_no = recovery.floor
        records = disk.tasks[first_no - 1 :]
        batch = recovery.unfinished(
            first_no, [us for us, _ in records], [each for _, each in records]
        )
        numbers = [each.number for each in batch]
        assert numbers == sorted(set(numbers))
        for each in batch:
            if each.number in gone:
                continue
            task = self.everything[each.carried.id]
            if task.options.fault is not None and not task.history:
                # It had no time to say so: now the record itself does.
                task.dead_us = task.enqueued_us
                task.history = (Attempt(0, task.enqueued_us, "", task.options.fault),)
            check_carried(each.carried, task)
            assert each.carried.fence == recovery.ceiling
            found.append((task, with_carried(each.options, each.carried)))
        return found

    @precondition(lambda self: self.away and self.queue.extent == len(self.disk.tasks))
    @rule(count=st.integers(1, 8))
    def take_over(self, count: int) -> None:
        some, self.away = self.away[:count], self.away[count:]
        first_no = len(self.disk.tasks) + 1
        self.disk.tasks += [(self.now_us, each) for _, each in some]

        def expect(actions: list[Action], seqs: dict[int, int]) -> None:
            by_place = {
                (record.origin, n): action.seq
                for action in actions
                if isinstance(action, Journal) and isinstance(record := action.record, TakenOver)
                for n in numbers_of(record)
            }
            for number, (task, each) in enumerate(some, first_no):
                carried = each.carried
                assert carried is not None
                assert carried.origin is not None
                self.move_in(task, number, by_place.pop((carried.origin, carried.number)))
                self.remember_key(task)
                self.model.next_fence = max(self.model.next_fence, carried.fence + 1)
            assert not by_place

        # Two incarnations may use the same numbers: one batch for each, as a node does.
        batch = [each for _, each in some]
        origins = [each.carried.origin for each in batch if each.carried is not None]
        if len(set(origins)) > 1:
            self.away = some + self.away
            del self.disk.tasks[first_no - 1 :]
            return
        self.tell(Enqueued(first_no, len(batch), batch, self.now_us), expect)

    # Always ---------------------------------------------------------------------------------------

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        model, statistics = self.model, self.queue.statistics()
        for state in ("ready", "delayed", "retrying", "leased", "settling", "dead"):
            expected = sorted(task.number for task in model.in_state(state))
            rows = self.queue.rows(state, 0, 1000)
            assert [row.number for row in rows] == expected, state
            assert getattr(statistics, state) == len(expected), state
        for number, task in model.tasks.items():
            row = self.queue.find(number)
            if task.state == "done":
                assert row is None
            elif row is not None and task.state != "settling":
                assert row.state == task.state
                assert (row.row.attempts, row.row.history) == (task.attempts, task.history)
                assert row.row.dead_us == task.dead_us
        ends = [task.number for task in model.tasks.values() if task.state == "done"]
        alive = [task.number for task in model.tasks.values() if task.state != "done"]
        assert self.queue.floor >= min(alive, default=self.queue.floor)
        assert not [number for number in alive if number < self.queue.floor], ends
        assert self.queue.available == model.available

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            if not self.in_step:  # else a step has failed, and what follows would hide it
                self.end_all()
        finally:
            self.patches.undo()

    def end_all(self) -> None:
        """Whatever has happened: now everything is done, or dies."""
        if self.queue.extent != len(self.disk.tasks):
            self.crash(99)
        while self.away:
            origins = [each.carried.origin for _, each in self.away if each.carried is not None]
            _, same = next(groupby(origins))
            self.take_over(len(list(same)))
        for _ in range(200):
            self.commit_all()
            if all(task.state in ("done", "dead") for task in self.everything.values()):
                return
            self.tick(2000.0)
            self.poll(1, 1000, 2.0)
            ours = [n for n in self.leased if n[0] in self.model.tasks]
            held = [each for each in ours if self.model.tasks[each[0]].state == "leased"]
            if held:
                self.leased = held
                self.settle("complete", list(range(len(held))), 0, False, 0.5)
        raise AssertionError("something is neither done nor dead after days")


def is_finishing(model: Model, task: Task) -> bool:
    return any(
        change.task is task and "finish" in change.apply.__qualname__ for change in model.changes
    )


def numbers_of(record: JournalRecord) -> list[int]:
    match record:
        case Finished(_, runs) | Requeued(runs) | TakenOver(_, runs, _) | LetGo(_, runs, _):
            return [number for first, last in runs for number in range(first, last + 1)]
        case Failed(numbers):
            return list(numbers)
        case _:
            return []


def plain(record: JournalRecord) -> Any:
    """Sequences of all kinds are equal here."""
    return msgpack.unpackb(encode_record(record)), type(record)


def with_carried(written: TaskOptions | None, carried: Carried) -> TaskOptions:
    """As a node does it: the headers of the record, and `$task` through its text."""
    read = decode_carried(encode_carried(carried))
    assert read == carried
    return replace(written or TaskOptions(), carried=read)


def check_carried(carried: Carried, task: Task) -> None:
    assert carried.id == task.id
    assert carried.enqueued_us == task.enqueued_us
    assert (carried.attempts, carried.history) == (task.attempts, task.history)
    assert carried.dead_us == task.dead_us
    assert carried.due_us == task.due_us


QueueAndModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, report_multiple_bugs=False
)
TestQueueAndModel = QueueAndModel.TestCase
