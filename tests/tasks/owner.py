"""Plays the owner of a queue: keeps the journal, knows the time, and commits at once or later."""

from collections.abc import Sequence
from typing import TypeVar

from busnode.tasks.events import (
    Action,
    Answer,
    DeadAct,
    DeadActed,
    Enqueued,
    Event,
    Journal,
    JournalCommitted,
    Lease,
    Polled,
    Ready,
    Report,
    Settled,
    Ticked,
    Verb,
)
from busnode.tasks.journal import JournalRecord
from busnode.tasks.queue import DEAD_KEEP_S, TaskQueue
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import DEFAULT, Schedule
from busnode.wire.task_options import TaskOptions

A = TypeVar("A", bound=Action)
ME = BrokerId(b"m" * 16)
START_US = 1_700_000_000_000_000


class Owner:
    def __init__(
        self, retry: Schedule = DEFAULT, first_fence: int = 1, dead_keep_s: float = DEAD_KEEP_S
    ) -> None:
        self.queue = TaskQueue("q", retry, first_fence, broker_id=ME, dead_keep_s=dead_keep_s)
        self.journal: list[JournalRecord] = []
        self.actions: list[Action] = []
        """All that came of the last thing that happened."""
        self.at_s = 0.0
        self.random = 0.5
        self.commits = True
        """Whether the disk is as fast as can be."""
        self.seq = 0
        self.committed_seq = 0

    @property
    def now_us(self) -> int:
        return START_US + round(self.at_s * 1_000_000)

    def tell(self, event: Event) -> list[Action]:
        self.actions = self._handle(event)
        done = self.actions
        while self.commits and self.committed_seq < self.seq:
            done = done + self.commit()
        self.actions = done
        return done

    def commit(self, seq: int | None = None) -> list[Action]:
        """The disk has got all that was written, or as far as this record."""
        self.committed_seq = self.seq if seq is None else seq
        self.actions = self._handle(JournalCommitted(self.committed_seq))
        return self.actions

    def _handle(self, event: Event) -> list[Action]:
        actions = self.queue.handle(event)
        for action in actions:
            if isinstance(action, Journal):
                self.seq = action.seq
                self.journal.append(action.record)
        return actions

    def some(self, kind: type[A]) -> list[A]:
        """Of the last actions, those of a kind."""
        return [action for action in self.actions if isinstance(action, kind)]

    def one(self, kind: type[A]) -> A:
        (action,) = self.some(kind)
        return action

    def says_ready(self) -> bool:
        return bool(self.some(Ready))

    # What happens ---------------------------------------------------------------------------------

    def enqueue(self, count: int = 1, options: TaskOptions | None = None) -> range:
        """Tasks that are all alike."""
        return self.enqueue_each([options] * count)

    def enqueue_each(self, options: Sequence[TaskOptions | None]) -> range:
        first_no = self.queue.extent + 1
        some = options if any(options) else None
        self.tell(Enqueued(first_no, len(options), some, self.now_us))
        return range(first_no, first_no + len(options))

    def poll(self, want: int = 1, worker: int = 1, lease_s: float = 20.0) -> Lease:
        self.tell(Polled("p", worker, f"worker {worker}", want, lease_s, self.at_s, self.now_us))
        return self.one(Lease)

    def settle(
        self,
        verb: Verb,
        numbers: Sequence[int],
        fences: Sequence[int],
        worker: int = 1,
        error: str = "",
        lease_s: float = 20.0,
    ) -> Answer | None:
        """None when it is not durable yet."""
        times = (self.at_s, self.now_us, self.random)
        self.tell(Settled("d", worker, verb, numbers, fences, error, lease_s, *times))
        return next(iter(self.some(Answer)), None)

    def complete(self, lease: Lease, worker: int = 1) -> Answer | None:
        return self.settle("complete", lease.numbers, lease.fences, worker)

    def fail(self, lease: Lease, error: str = "no", worker: int = 1) -> Answer | None:
        return self.settle("fail", lease.numbers, lease.fences, worker, error)

    def reject(self, lease: Lease, error: str = "never", worker: int = 1) -> Answer | None:
        return self.settle("reject", lease.numbers, lease.fences, worker, error)

    def act(self, act: DeadAct, numbers: Sequence[int] | None) -> Answer:
        self.tell(DeadActed(act, numbers, "d", self.now_us))
        return self.one(Answer)

    def wait(self, seconds: float) -> None:
        self.at_s += seconds
        self.tell(Ticked(self.at_s, self.now_us, self.random))

    def reports(self) -> list[Report]:
        return self.some(Report)
