"""What can happen to a queue, and what it answers with. Both are for whole batches."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from busnode.tasks.journal import JournalRecord
from busnode.tasks.rows import Row
from busnode.wire.carried_task import Attempt
from busnode.wire.ids import BrokerId
from busnode.wire.task_options import TaskOptions

Verb = Literal["complete", "fail", "reject", "release", "extend"]
"""reject: it failed, and another attempt would too."""

VERBS: Final = get_args(Verb)

DeadAct = Literal["requeue", "delete", "purge"]

LEASE_EXPIRED: Final = "LEASE_EXPIRED"
NOT_DEAD: Final = "NOT_DEAD"
"""There is no dead letter with this number."""


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Task records are committed. `options` is None when no task of the batch has any."""

    first_no: int
    count: int
    options: Sequence[TaskOptions | None] | None
    now_us: int


@dataclass(frozen=True, slots=True)
class Polled:
    """A worker can take so many tasks; `Lease` answers it at once."""

    poll: Hashable
    worker: int
    name: str
    want: int
    lease_s: float
    at_s: float
    now_us: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A worker says what became of tasks that it has; `Answer` answers it."""

    done: Hashable
    worker: int
    verb: Verb
    numbers: Sequence[int]
    fences: Sequence[int]
    error: str
    lease_s: float
    at_s: float
    now_us: int
    random: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: leases run out, tasks are due, dead letters and keys are over."""

    at_s: float
    now_us: int
    random: float


@dataclass(frozen=True, slots=True)
class JournalCommitted:
    """The record with this number, and all before it, are durable: what they say is so now."""

    seq: int


@dataclass(frozen=True, slots=True)
class DeadActed:
    """A person wants these dead letters, or all, to be tasks again or to be gone."""

    act: DeadAct
    numbers: Sequence[int] | None
    done: Hashable
    now_us: int


@dataclass(frozen=True, slots=True)
class FinishedElsewhere:
    """Another owner has finished them."""

    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Another owner has them, and it is durable there: tasks that were taken over from an origin,
    by their numbers there, those here and their ids. Those with a worker, or settling, stay for
    now. `ways` are all on which these tasks have come, by id: from which origin, and as which
    number there."""

    origin: BrokerId
    numbers: Mapping[int, tuple[int, str]]
    ways: Mapping[str, Sequence[tuple[BrokerId, int]]]


@dataclass(frozen=True, slots=True)
class SnapshotDue:
    """The journal has grown enough. Nothing happens while one is being written."""


Event = (
    Enqueued
    | Polled
    | Settled
    | Ticked
    | JournalCommitted
    | DeadActed
    | FinishedElsewhere
    | GivenUp
    | SnapshotDue
)


# Actions ------------------------------------------------------------------------------------------


class Leased(NamedTuple):
    """One task of a `Lease`."""

    number: int
    fence: int
    attempt: int
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Lease:
    """Give these to the worker: columns, as in TASKS. There may be none."""

    poll: Hashable
    numbers: list[int]
    fences: list[int]
    attempts: list[int]
    expires_at_s: float

    @property
    def rows(self) -> list[Leased]:
        """The same one by one."""
        columns = zip(self.numbers, self.fences, self.attempts, strict=True)
        return [Leased(*row, self.expires_at_s) for row in columns]


@dataclass(frozen=True, slots=True)
class Journal:
    """Append this record, in the order of their numbers, and say `JournalCommitted` when it is
    durable."""

    seq: int
    record: JournalRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """To `Settled` or `DeadActed`: all is durable but for what is refused, each with its place in
    the event and a code."""

    done: Hashable
    refused: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Ready:
    """There is something to poll, and a moment ago there was not."""


@dataclass(frozen=True, slots=True)
class Report:
    """For the system topics: these were completed, or are dead letters now, and it is durable."""

    kind: Literal["completed", "failed"]
    numbers: Sequence[int]
    worker: str
    at_us: int
    touched: Mapping[int, Row]
    """Of those that had failed before, or have now."""

    def attempts(self, number: int) -> int:
        """How many there were, the successful one included."""
        row = self.touched.get(number)
        failed = row.attempts if row is not None else 0
        return failed + 1 if self.kind == "completed" else failed

    def history(self, number: int) -> tuple[Attempt, ...]:
        """Those that failed."""
        row = self.touched.get(number)
        return row.history if row is not None else ()


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """The journal before the record with this number is not needed any more."""

    begun_seq: int


Action = Lease | Journal | Answer | Ready | Report | Snapshotted
