"""A queue as one would write it down first: each task an object, each question a loop.

It holds what is durable; what is not durable yet is a list of changes, which a crash cuts short.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from busnode.wire.carried_task import Attempt
from busnode.wire.retry_schedule import DEFAULT
from busnode.wire.task_options import TaskOptions

DEAD_KEEP_US = 3_600_000_000


@dataclass(slots=True)
class Held:
    """A lease."""

    worker: int
    name: str
    fence: int
    expires_at_s: float


@dataclass(slots=True, eq=False)
class Task:
    id: str
    number: int
    enqueued_us: int
    options: TaskOptions
    state: str = "ready"
    attempts: int = 0
    history: tuple[Attempt, ...] = ()
    due_us: int = 0
    dead_us: int | None = None
    held: Held | None = None
    failures: int = 0
    """Counts them from the beginning."""

    @property
    def attempts_max(self) -> int:
        return (self.options.retry or DEFAULT).attempts_max


@dataclass(slots=True)
class Change:
    """What a record says of one task."""

    seq: int
    task: Task
    apply: Callable[[], None]


@dataclass(slots=True)
class Model:
    tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    """Of the present log, by number."""
    changes: list[Change] = field(default_factory=list[Change])
    keys: dict[str, int] = field(default_factory=dict[str, int])
    settled: dict[str, set[tuple[int, int]]] = field(
        default_factory=dict[str, set[tuple[int, int]]]
    )
    """Numbers and fences that were settled, by verb."""
    next_fence: int = 1
    ceiling: int = 0

    def in_state(self, *states: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.state in states]

    def order(self) -> list[Task]:
        return sorted(
            self.in_state("ready"), key=lambda task: (-task.options.priority, task.number)
        )

    @property
    def available(self) -> int:
        return min(len(self.in_state("ready")), max(0, self.ceiling - self.next_fence + 1))

    def put(self, task: Task, now_us: int) -> None:
        if task.dead_us is not None:
            task.state = "dead"
        elif task.due_us <= now_us:
            task.state = "ready"
        else:
            task.state = "retrying" if task.attempts else "delayed"

    def write(self, seq: int, task: Task, apply: Callable[[], None]) -> None:
        task.state = "settling"
        task.held = None
        self.changes.append(Change(seq, task, apply))

    def commit(self, seq: int) -> None:
        done = [change for change in self.changes if change.seq <= seq]
        self.changes = [change for change in self.changes if change.seq > seq]
        for change in done:
            change.apply()
        for change in self.changes:
            change.task.state = "settling"  # something else is written of it already

    def finish(self, task: Task) -> Callable[[], None]:
        def apply() -> None:
            assert task.state != "done", "finished twice"
            task.state = "done"

        return apply

    def fail(
        self, task: Task, attempts: int, due_us: int, at_us: int, worker: str, error: str
    ) -> Callable[[], None]:
        """A due time below 0 is that of a dead letter."""

        def apply() -> None:
            assert attempts >= task.attempts, "attempts are never reset"
            task.failures += 1
            task.attempts = attempts
            task.history = (*task.history, Attempt(attempts, at_us, worker, error))
            task.due_us = max(0, due_us)
            task.dead_us = at_us if due_us < 0 else None
            self.put(task, at_us)

        return apply

    def requeue(self, task: Task, now_us: int) -> Callable[[], None]:
        def apply() -> None:
            task.attempts, task.due_us, task.dead_us = 0, 0, None
            self.put(task, now_us)

        return apply
