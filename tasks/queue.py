"""One queue of one owner: which task is given to whom, and what becomes of it.

Measured with 1000 tasks at a time that have not failed before, on a machine with a load of 8 on two
cores: 0.16 µs each to give out and 0.66 µs to complete, its record and the commit included, and the
same while a million others are delayed. One at a time 9 and 22 µs.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from busnode.tasks.events import (
    LEASE_EXPIRED,
    NOT_DEAD,
    Action,
    Answer,
    DeadActed,
    Enqueued,
    Event,
    FinishedElsewhere,
    GivenUp,
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
)
from busnode.tasks.failures import Failures
from busnode.tasks.intake import Intake
from busnode.tasks.journal import (
    RUNS_MAX,
    Failed,
    FencesReserved,
    Finished,
    FinishedAs,
    JournalRecord,
    LetGo,
    Requeued,
    RowsKept,
    SnapshotBegun,
    SnapshotEnded,
    TakenOver,
)
from busnode.tasks.leases import LEASE_S_MAX, Grant
from busnode.tasks.ranges import Numbers, Run, runs_of
from busnode.tasks.repeats import Repeats
from busnode.tasks.rows import DEAD, UNTOUCHED, Row
from busnode.tasks.snapshot import snapshot
from busnode.tasks.view import QueueView
from busnode.wire.carried_task import cut
from busnode.wire.ids import BrokerId
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import TaskOptions

DEAD_KEEP_S: Final = 30 * 24 * 3600.0
"""How long a dead letter waits for somebody to act."""

DUE_MAX: Final = 50_000
"""Tasks that come due in one tick: about 50 ms. `first_due_us` tells that there are more."""

REMEMBERED_MAX: Final = 10_000

EXPIRED: Final = "lease expired"


@dataclass(frozen=True, slots=True)
class _Pending:
    """What happens when a record is durable."""

    seq: int
    record: JournalRecord
    numbers: Sequence[int] = ()
    """Those of a `Finished` that a worker has completed, as it said them."""
    worker: str = ""
    at_us: int = 0
    arrivals: Mapping[int, TaskOptions] | None = None


class TaskQueue(QueueView):
    """No IO, clock or randomness inside: events in, actions out. A state changes when the record
    that says so is durable; until then the task is settling."""

    def __init__(
        self,
        name: str,
        default_retry: Schedule,
        first_fence: int,
        *,
        broker_id: BrokerId,
        dead_keep_s: float = DEAD_KEEP_S,
    ) -> None:
        super().__init__(name, first_fence, dead_keep_s)
        self.broker_id = broker_id
        self._intake = Intake(self._places, default_retry, broker_id)
        self._failures = Failures(self._places, default_retry)
        self._repeats = {"complete": Repeats(), "fail": Repeats(), "reject": Repeats()}
        self.given_up = Numbers()
        """Numbers of this log whose tasks go on elsewhere: who took them from here keeps them."""
        self.moved = Numbers()
        """Numbers that ended while their tasks did not: those, and such as go on under another
        number of this log. Nobody is told that they are finished."""
        self.remembered: dict[str, Row] = {}
        """By id, what is known of tasks that were given up: should one have to be taken once more,
        from a copy that knows less, its attempts go on."""
        self._seq = 0
        self._committed_seq = 0
        self._pending: deque[_Pending] = deque()
        self._answers: deque[tuple[int, Answer]] = deque()
        self._snapshot: Iterator[JournalRecord] | None = None
        self._snapshot_seq = 0
        self._snapshot_part_seq = 0
        self._actions: list[Action] = []

    def handle(self, event: Event) -> list[Action]:
        actions = self._actions = []
        was_available = self.available
        match event:
            case Polled():
                self._poll(event)
            case Settled():
                self._settle(event)
            case JournalCommitted(seq):
                self._commit(seq)
            case Enqueued(first_no, count, options, now_us):
                self._enqueue(first_no, count, options, now_us)
            case Ticked():
                self._tick(event)
            case DeadActed():
                self._act_on_dead(event)
            case FinishedElsewhere(numbers):
                self._finish_soon(numbers, "elsewhere")
            case GivenUp():
                self._give_up(event)
            case SnapshotDue():
                if self._snapshot is None:
                    self._snapshot = snapshot(
                        self._places, self._intake.taken, self.moved, self._fences.asked
                    )
                    self._snapshot_seq = self._seq + 1
                    self._write_snapshot()
            case _:
                assert_never(event)
        if not was_available and self.available:
            actions.append(Ready())
        return actions

    # What is there --------------------------------------------------------------------------------

    def taken_of(self, origin: BrokerId) -> Iterator[Run]:
        """What was taken over of another incarnation and not given up, by number there."""
        taken = self._intake.taken.get(origin)
        return iter(()) if taken is None else taken.runs()

    # Enqueued -------------------------------------------------------------------------------------

    def _enqueue(
        self, first_no: int, count: int, options: Sequence[TaskOptions | None] | None, now_us: int
    ) -> None:
        self.totals.enqueued += count
        if first_no > self._places.extent + 1:
            # Nobody can read them here. Another node may have a copy that can be read.
            self.moved.add_run(self._places.extent + 1, first_no - 1)
        odd = self._intake.take_in(first_no, count, options, now_us)
        carried = (each.carried for each in options or () if each is not None)
        enqueued_us = (each.enqueued_us for each in carried if each is not None)
        self._ages.note(first_no, min(enqueued_us, default=now_us))
        if odd.repeats:
            self.totals.repeated += len(odd.repeats)
            self._write_finished(odd.repeats, "repeated")
        if odd.dropped:
            self.totals.repeated += len(odd.dropped)
            for number in odd.dropped:
                self.moved.add(number)
            self._write_finished(odd.dropped, "dropped")
        for fault, numbers in odd.faulty.items():
            self._fail(numbers, "", fault, now_us, dict.fromkeys(numbers, DEAD), attempted=0)
        for origin, arrivals in odd.arrivals.items():
            self._arrive(origin, arrivals, now_us)
        self._reserve_fences()

    def _arrive(self, origin: BrokerId, arrivals: Mapping[int, TaskOptions], now_us: int) -> None:
        old: list[int] = []
        for options in arrivals.values():
            assert options.carried is not None
            self._fences.skip_to(options.carried.fence)
            old.append(options.carried.number)
            if origin == self.broker_id:
                self.moved.add(options.carried.number)
        record = TakenOver(origin, runs_of(old), runs_of(arrivals))
        self._write(record, at_us=now_us, arrivals=arrivals)

    # Others ---------------------------------------------------------------------------------------

    # Given out ------------------------------------------------------------------------------------

    def _poll(self, event: Polled) -> None:
        self._reserve_fences()
        places = self._places
        expires_at_s = event.at_s + min(event.lease_s, LEASE_S_MAX)
        name = cut(event.name, NAME_BYTES_MAX)
        numbers: list[int] = []
        runs = places.ready.take(min(event.want, self.available))
        first_fence = self._fences.next
        for first, last in runs:
            fence = first_fence + len(numbers)
            places.leases.give(Grant(first, last, fence, event.worker, name, expires_at_s))
            numbers.extend(range(first, last + 1))
        fences = list(self._fences.take(len(numbers)))
        attempts = [1] * len(numbers)
        if places.rows:
            known = places.rows.get
            attempts = [known(number, UNTOUCHED).attempts + 1 for number in numbers]
        self._actions.append(Lease(event.poll, numbers, fences, attempts, expires_at_s))

    def _reserve_fences(self) -> None:
        ceiling = self._fences.reserve()
        if ceiling is not None:
            self._write(FencesReserved(ceiling))

    # Settled --------------------------------------------------------------------------------------

    def _settle(self, event: Settled) -> None:
        leases, worker, at_s = self._places.leases, event.worker, event.at_s
        taken: dict[int, Grant] = {}
        refused: list[tuple[int, str]] = []
        repeats = self._repeats.get(event.verb)
        fences = event.fences if len(event.fences) == len(event.numbers) else ()
        repeated = False
        for place, (number, fence) in enumerate(zip(event.numbers, fences, strict=False)):
            grant = leases.take(number, fence, worker, at_s)
            if grant is not None:
                taken[number] = grant
            elif number in taken and number + taken[number].offset == fence:
                pass  # said twice in one breath
            elif repeats is not None and repeats.is_repeat(number, fence):
                repeated = True
            else:
                refused.append((place, LEASE_EXPIRED))
        if not fences:
            refused = [(place, LEASE_EXPIRED) for place in range(len(event.numbers))]
        if taken:
            self._settle_taken(event, taken)
            if repeats is not None:
                repeats.remember((number + grant.offset, number) for number, grant in taken.items())
        self._answer(event.done, refused, waits=repeats is not None and (repeated or bool(taken)))

    def _settle_taken(self, event: Settled, taken: dict[int, Grant]) -> None:
        name = next(iter(taken.values())).name
        numbers = list(taken)
        match event.verb:
            case "complete":
                self._write_finished(numbers, "completed", name, event.now_us)
            case "fail":
                dues = self._failures.dues(numbers, event.now_us, event.random)
                self._fail(numbers, name, event.error, event.now_us, dues)
            case "reject":
                dues = dict.fromkeys(numbers, DEAD)
                self._fail(numbers, name, event.error, event.now_us, dues)
            case "release":
                for number in numbers:
                    self._places.put(number, 0, 0)
            case "extend":
                expires_at_s = event.at_s + min(event.lease_s, LEASE_S_MAX)
                self._places.leases.extend(list(taken.items()), expires_at_s)
            case _:
                assert_never(event.verb)

    def _fail(
        self,
        numbers: Sequence[int],
        worker: str,
        error: str,
        now_us: int,
        dues: Mapping[int, int],
        attempted: int = 1,
    ) -> None:
        for record in self._failures.records(numbers, worker, error, now_us, dues, attempted):
            self._write(record)

    # Time -----------------------------------------------------------------------------------------

    def _tick(self, event: Ticked) -> None:
        by_worker: dict[str, list[int]] = {}
        for grant, numbers in self._places.leases.expire(event.at_s):
            by_worker.setdefault(grant.name, []).extend(numbers)
        for worker, numbers in by_worker.items():
            dues = self._failures.dues(numbers, event.now_us, event.random)
            at_once = {number: DEAD if due == DEAD else 0 for number, due in dues.items()}
            self.totals.expired += len(numbers)
            self._fail(numbers, worker, EXPIRED, event.now_us, at_once)
        self._places.come_due(event.now_us, DUE_MAX)
        over = self._places.dead_over(event.now_us, DUE_MAX)
        if over:
            self._finish_soon(over, "over")
        self._intake.keys.forget(event.now_us)
        self._ages.forget(self.floor)

    # Finished, dead -------------------------------------------------------------------------------

    def _finish_soon(self, numbers: Iterable[int], how: FinishedAs) -> None:
        """Wherever they are, unless they are finished or about to be."""
        places = self._places
        ending: list[int] = []
        for number in set(numbers):
            if not 0 < number <= places.extent:
                continue
            if number in places.finished or number in places.finishing:
                continue
            places.withdraw(number)
            ending.append(number)
        self._write_finished(ending, how)

    def _give_up(self, event: GivenUp) -> None:
        going: dict[int, int] = {}
        others: dict[BrokerId, list[int]] = {}
        for there, (here, task_id) in event.numbers.items():
            if self._places.is_idle(here):
                going[there] = here
                self.given_up.add(here)
                self.moved.add(here)
                self._remember(task_id, self._places.rows.get(here))
                self._intake.let_go(event.origin, there, task_id)
                for origin, number in event.ways.get(task_id, ()):
                    if (origin, number) != (event.origin, there):
                        others.setdefault(origin, []).append(number)
                        self._intake.let_go(origin, number, task_id)
        # In this order: what is not said to be taken may be taken twice, and is not lost.
        for origin, numbers in others.items():
            self._let_go(origin, dict.fromkeys(numbers))
        self._let_go(event.origin, going)
        self._finish_soon(going.values(), "carried")

    def _let_go(self, origin: BrokerId, going: Mapping[int, int | None]) -> None:
        """Numbers there; and here, where the task had not come on another way before."""
        those = sorted(going)
        for at in range(0, len(those), RUNS_MAX):
            part = those[at : at + RUNS_MAX]
            here = (going[there] for there in part)
            self._write(LetGo(origin, runs_of(part), runs_of(n for n in here if n is not None)))

    def _remember(self, task_id: str, row: Row | None) -> None:
        if row is not None:
            self.remembered[task_id] = row
            if len(self.remembered) > REMEMBERED_MAX:
                del self.remembered[next(iter(self.remembered))]

    def _act_on_dead(self, event: DeadActed) -> None:
        places = self._places
        numbers = event.numbers
        if numbers is None:
            numbers = [n for first, last in places.dead.runs() for n in range(first, last + 1)]
        acted: list[int] = []
        refused: list[tuple[int, str]] = []
        for place, number in enumerate(numbers):
            if places.dead.discard(number):
                acted.append(number)
            else:
                refused.append((place, NOT_DEAD))
        if event.act == "requeue":
            for number in acted:
                places.changing[number] = places.rows[number].requeued()
            runs = runs_of(acted)
            for at in range(0, len(runs), RUNS_MAX):
                self._write(Requeued(runs[at : at + RUNS_MAX]), at_us=event.now_us)
        else:
            self._write_finished(acted, "deleted")
        self._answer(event.done, refused, waits=bool(acted))

    # The journal ----------------------------------------------------------------------------------

    def _write(
        self,
        record: JournalRecord,
        numbers: Sequence[int] = (),
        worker: str = "",
        at_us: int = 0,
        arrivals: Mapping[int, TaskOptions] | None = None,
    ) -> None:
        self._seq += 1
        self._pending.append(_Pending(self._seq, record, numbers, worker, at_us, arrivals))
        self._actions.append(Journal(self._seq, record))

    def _write_finished(
        self, numbers: Sequence[int], how: FinishedAs, worker: str = "", at_us: int = 0
    ) -> None:
        runs = runs_of(numbers)
        for first, last in runs:
            self._places.finishing.add_run(first, last)
        for at in range(0, len(runs), RUNS_MAX):
            part = runs[at : at + RUNS_MAX]
            said = (
                numbers if len(runs) <= RUNS_MAX else [n for a, b in part for n in range(a, b + 1)]
            )
            self._write(Finished(how, part), said, worker, at_us)

    def _answer(self, done: Hashable, refused: list[tuple[int, str]], *, waits: bool) -> None:
        answer = Answer(done, refused)
        if waits and self._seq > self._committed_seq:
            self._answers.append((self._seq, answer))
        else:
            self._actions.append(answer)

    def _commit(self, seq: int) -> None:
        assert seq <= self._seq
        self._committed_seq = max(self._committed_seq, seq)
        while self._pending and self._pending[0].seq <= seq:
            self._apply(self._pending.popleft())
        while self._answers and self._answers[0][0] <= seq:
            self._actions.append(self._answers.popleft()[1])

    def _apply(self, pending: _Pending) -> None:
        """A record is durable: what it says is so."""
        if pending.seq == self._snapshot_part_seq:
            self._write_snapshot()  # a part says nothing new
            return
        places = self._places
        match pending.record:
            case Finished(how, runs):
                if how == "completed":
                    self._report_completed(pending)
                places.finish(runs)
            case Failed() as failed:
                died = self._failures.apply(failed)
                self.totals.failed += len(failed.numbers)
                self.totals.dead += len(died)
                if died:
                    report = Report("failed", list(died), failed.worker, failed.at_us, died)
                    self._actions.append(report)
            case Requeued(runs):
                for first, last in runs:
                    for number in range(first, last + 1):
                        row = places.changing.pop(number, None)
                        if row is not None:
                            places.rows[number] = row
                            places.put(number, 0, pending.at_us)
            case FencesReserved(ceiling):
                self._fences.grant(ceiling)
            case TakenOver(origin, runs, _):
                if origin == self.broker_id:
                    places.finish(runs)
                for number, options in (pending.arrivals or {}).items():
                    if places.arriving.discard(number):
                        self._intake.place(number, options, pending.at_us)
            case LetGo():
                pass  # what was taken is asked for at once
            case SnapshotBegun() | RowsKept() | SnapshotEnded():
                raise AssertionError("only snapshots have such parts")
            case _:
                assert_never(pending.record)

    def _report_completed(self, pending: _Pending) -> None:
        rows = self._places.rows
        touched = {n: rows[n] for n in pending.numbers if n in rows} if rows else {}
        self.totals.completed += len(pending.numbers)
        self._actions.append(
            Report("completed", pending.numbers, pending.worker, pending.at_us, touched)
        )

    def _write_snapshot(self) -> None:
        """The next part; each is written when the one before it is durable."""
        assert self._snapshot is not None
        part = next(self._snapshot, None)
        if part is None:
            self._snapshot = None
            self._actions.append(Snapshotted(self._snapshot_seq))
            return
        self._write(part)
        self._snapshot_part_seq = self._seq
