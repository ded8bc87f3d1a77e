"""What is unfinished of a queue whose owner is no more: its journal, and then its task records."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from busnode.tasks.journal import (
    MOVED,
    Failed,
    FencesReserved,
    Finished,
    JournalRecord,
    LetGo,
    Requeued,
    RowsKept,
    SnapshotBegun,
    SnapshotEnded,
    TakenOver,
)
from busnode.tasks.ranges import Numbers, Prefix, Run
from busnode.tasks.rows import UNTOUCHED, Row
from busnode.wire.carried_task import ERROR_BYTES_MAX, HISTORY_MAX, Attempt, Carried, cut
from busnode.wire.ids import BrokerId
from busnode.wire.task_options import TaskOptions


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A task or a dead letter that must go on, and all that is known of it. Its headers are those
    of its record, with `$task` anew."""

    number: int
    carried: Carried
    options: TaskOptions | None


def task_id(broker_id: BrokerId, number: int) -> str:
    """What a task is called for good, wherever it is carried."""
    return f"{broker_id.hex()}-{number}"


def carry(
    broker_id: BrokerId,
    number: int,
    enqueued_us: int,
    options: TaskOptions | None,
    row: Row | None,
    fence: int,
) -> Carried:
    """What goes on with a task of this log: what its record says and, if it has one, its row."""
    carried = options.carried if options is not None else None
    if carried is None:
        due_us = 0
        if options is not None and (options.delay_ms or options.due_us):
            due_us = max(options.due_us or 0, enqueued_us + options.delay_ms * 1000)
        carried = Carried(task_id(broker_id, number), enqueued_us, due_us=due_us)
        if options is not None and options.fault is not None:
            why = Attempt(0, enqueued_us, "", cut(options.fault, ERROR_BYTES_MAX))
            carried = replace(carried, history=(why,), dead_us=enqueued_us)
    if row is not None:
        carried = _with_row(carried, row)
    return replace(carried, fence=fence, origin=broker_id, number=number)


def carry_on(carried: Carried, known: Row | None) -> Carried:
    """The same with what is known of it here, where that is more."""
    if known is None or (known.attempts, len(known.history)) <= (
        carried.attempts,
        len(carried.history),
    ):
        return carried
    return _with_row(carried, known)


def _with_row(carried: Carried, row: Row) -> Carried:
    return replace(
        carried,
        attempts=row.attempts,
        history=row.history,
        due_us=row.due_us,
        dead_us=row.dead_us,
    )


class Recovery:
    """Told first the records of the journal in order, from anywhere before the last whole snapshot
    or from the beginning, and then the task records from `floor` on. It keeps a bit for each number
    and the rows, and none of the tasks.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.ceiling = 0
        """Fences up to this one may have been given out."""
        self.extent = 0
        """The last number that the journal or a task record has told of."""
        self.taken: dict[BrokerId, Numbers] = {}
        """Tasks of other incarnations that go on in this log, by number there. To those that the
        journal tells of come those that were carried and not yet said to be, when all task records
        were told."""
        self.moved = Numbers()
        """Numbers that ended while their tasks did not: these go on elsewhere, or under another
        number."""
        self._finished = Prefix()
        self._rows: dict[int, Row] = {}
        self._headless: set[int] = set()
        """Rows to which the history in the task's own header still has to be added."""
        self._arrived = Numbers()
        """Copies that count, since a snapshot told which of those before it do not."""
        self._sorted_no = 0
        """Up to here it has told so."""

    @property
    def floor(self) -> int:
        """The first number that is not finished."""
        return self._finished.floor

    @property
    def finished(self) -> Iterator[Run]:
        """All numbers that are finished."""
        return self._finished.runs()

    def is_finished(self, number: int) -> bool:
        return number in self._finished

    # The journal ----------------------------------------------------------------------------------

    def apply(self, record: JournalRecord) -> None:
        match record:
            case Finished(how, runs):
                self._finish(runs)
                if how in MOVED:
                    self._move(runs)
            case Failed():
                self._fail(record)
            case Requeued(runs):
                for first, last in runs:
                    for number in range(first, last + 1):
                        self._change(number, self._known(number).requeued())
            case FencesReserved(ceiling):
                self.ceiling = max(self.ceiling, ceiling)
            case TakenOver(origin, runs, here):
                for first, last in here:
                    self._arrived.add_run(first, last)
                    self.extent = max(self.extent, last)
                if origin == self.broker_id:
                    self._finish(runs)
                    self._move(runs)
                else:
                    for first, last in runs:
                        self.taken.setdefault(origin, Numbers()).add_run(first, last)
            case LetGo(origin, runs, here):
                for first, last in runs:
                    self.taken.setdefault(origin, Numbers()).discard_run(first, last)
                self._move(here)
            case SnapshotBegun(floor, extent, ceiling):
                self._sorted_no = max(self._sorted_no, extent)
                self.extent = max(self.extent, extent)
                if floor > 1:
                    self._finish([(1, floor - 1)])
                self.ceiling = max(self.ceiling, ceiling)
            case RowsKept(numbers, rows):
                for number, row in zip(numbers, rows, strict=True):
                    self._headless.discard(number)
                    self._change(number, row)
            case SnapshotEnded():
                pass
            case _:
                assert_never(record)

    def _move(self, runs: Iterable[Run]) -> None:
        for first, last in runs:
            self.moved.add_run(first, last)

    def _finish(self, runs: Iterable[Run]) -> None:
        for first, last in runs:
            self._finished.add_run(first, last)
            self.extent = max(self.extent, last)
            if last - first < len(self._rows):
                gone = [number for number in range(first, last + 1) if number in self._rows]
            else:
                gone = [number for number in self._rows if first <= number <= last]
            for number in gone:
                del self._rows[number]
                self._headless.discard(number)

    def _fail(self, record: Failed) -> None:
        columns = zip(record.numbers, record.attempts, record.due_us, strict=True)
        for number, attempts, due_us in columns:
            why = Attempt(attempts, record.at_us, record.worker, record.error)
            row = self._known(number).failed(attempts, due_us, record.at_us, why)
            self._change(number, row)

    def _known(self, number: int) -> Row:
        row = self._rows.get(number)
        if row is None:
            self._headless.add(number)
            return UNTOUCHED
        return row

    def _change(self, number: int, row: Row) -> None:
        self.extent = max(self.extent, number)
        if number in self._finished:
            self._headless.discard(number)
        else:
            self._rows[number] = row

    # The tasks ------------------------------------------------------------------------------------

    def unfinished(
        self,
        first_no: int,
        enqueued_us: Sequence[int],
        options: Sequence[TaskOptions | None] | None,
    ) -> list[Unfinished]:
        """Which tasks of a batch must go on: there is one for each `enqueued_us`. Batches come in
        order, from `floor` or before it.

        None is dropped for its key: whether it is a repeat was its owner's to say, by its own
        clock. If that had no time to write it down, the task is done twice."""
        found: list[Unfinished] = []
        for place, each_us in enumerate(enqueued_us):
            number = first_no + place
            each = options[place] if options is not None else None
            if self._goes_on(number, each):
                row = self._whole_row(number, each)
                carried = carry(self.broker_id, number, each_us, each, row, self.ceiling)
                found.append(Unfinished(number, carried, each))
        self.extent = max(self.extent, first_no + len(enqueued_us) - 1)
        return found

    def _goes_on(self, number: int, options: TaskOptions | None) -> bool:
        is_finished = number in self._finished
        carried = options.carried if options is not None else None
        if carried is None or carried.origin is None:
            return not is_finished
        return self._counts(number, carried, carried.origin) and not is_finished

    def _counts(self, number: int, carried: Carried, origin: BrokerId) -> bool:
        """Whether a copy counts. Its owner may have had no time to write down that, or that not."""
        if number in self._arrived or number <= self._sorted_no:
            return True
        if origin == self.broker_id:
            return False  # the task goes on under its old number, or has ended there
        taken = self.taken.setdefault(origin, Numbers())
        if carried.number in taken:
            return False
        taken.add(carried.number)
        return True

    def _whole_row(self, number: int, options: TaskOptions | None) -> Row | None:
        row = self._rows.get(number)
        if row is None or number not in self._headless:
            return row
        before = options.carried.history if options is not None and options.carried else ()
        return row._replace(history=(*before, *row.history)[-HISTORY_MAX:])
