"""What somebody has said of some tasks, until it is answered: how it waits, and how it ends."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from busnode.client.backoff import Backoff
from busnode.client.bell import Bell
from busnode.client.refusal import refusal
from busnode.client.task import Task
from busnode.wire.errors import BusnodeError, LeaseExpired
from busnode.wire.ids import BrokerId
from busnode.wire.limits import TASKS_MAX

SHOWN: Final = 5
LOCAL: Final = "local"


class Word(NamedTuple):
    """What is said, and to whom."""

    owner: BrokerId
    queue: str
    verb: str
    error: str = ""
    lease_s: float = 0.0


class NotSettled(LeaseExpired):
    """`tasks` were not this worker's to settle any more; the others that were named with them are
    settled."""

    def __init__(self, text: str, tasks: Sequence[Task]) -> None:
        super().__init__(text)
        self.tasks = tasks


class Asker(Protocol):
    """A worker that can take more when it has an answer, and says so along with its word."""

    number: int

    def ask_along(self) -> int:
        """How many more, from the moment at which that is answered. They count as asked for."""
        ...

    def not_asked(self, want: int) -> None:
        """So many will not come: what was said along with it was refused."""
        ...


class Settlement:
    """Tasks of one owner and queue of which somebody has said the same, and what became of it."""

    __slots__ = ("asked_at", "asker", "bell", "in_flight", "left", "level", "refused", "until")

    def __init__(
        self, count: int, until: float, asked_at: float, asker: Asker | None = None
    ) -> None:
        self.left = count
        """Tasks that are not answered for."""
        self.until = until
        """When the last of their leases ends."""
        self.asked_at = asked_at
        self.asker = asker
        self.in_flight = 0
        """Frames that have some of them."""
        self.bell = Bell()
        """Rings when none is left."""
        self.refused: list[tuple[Task, BusnodeError]] = []
        self.level = ""
        """At which it is safe: the lower one, where it took several answers."""

    def reached(self, level: str) -> None:
        if self.level != LOCAL:
            self.level = level


Part = tuple[Settlement, Sequence[Task]]
"""Tasks of one settlement: all of them, or what fits into a frame."""


class Pile:
    """What is to be said with one word and is not in flight."""

    __slots__ = ("backoff", "flying", "later", "parts", "tasks", "word")

    def __init__(self, word: Word) -> None:
        self.word = word
        self.parts: deque[Part] = deque()
        self.tasks = 0
        self.flying = 0
        """Frames in flight, and 1 while its owner is given time."""
        self.later: list[Part] = []
        """What could not be told to its owner, until it is tried again."""
        self.backoff = Backoff()

    @property
    def empty(self) -> bool:
        return not (self.parts or self.flying or self.later)

    def add(self, settlement: Settlement, tasks: Sequence[Task]) -> None:
        self.parts.append((settlement, tasks))
        self.tasks += len(tasks)

    def put_back(self, parts: Sequence[Part]) -> None:
        """In front, because it was said before all others."""
        for part in reversed(parts):
            self.parts.appendleft(part)
            self.tasks += len(part[1])

    def take(self) -> list[Part]:
        """What goes into the next frame; nothing where all was given up."""
        taken: list[Part] = []
        room = TASKS_MAX
        while self.parts and room:
            settlement, tasks = self.parts.popleft()
            self.tasks -= len(tasks)
            if not settlement.left:
                continue
            if len(tasks) > room:
                self.put_back([(settlement, tasks[room:])])
                tasks = tasks[:room]
            taken.append((settlement, tasks))
            room -= len(tasks)
        return taken

    def prune(self) -> None:
        """Let go of what was given up."""
        self.parts = deque(_open(self.parts))
        self.later = list(_open(self.later))
        self.tasks = sum(len(tasks) for _, tasks in self.parts)


def _open(parts: Iterable[Part]) -> Iterable[Part]:
    return (part for part in parts if part[0].left)


def failure(verb: str, refused: Sequence[tuple[Task, BusnodeError]]) -> BusnodeError:
    """One error for all tasks that were refused; the first that is no LeaseExpired, if one is."""
    tasks = [task for task, _ in refused]
    ids = ", ".join(f"{task.id} of {task.queue}" for task in tasks[:SHOWN])
    more = f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    for _, error in refused:
        if not isinstance(error, LeaseExpired):
            return refusal(error.code, f"cannot {verb} {ids}{more}: {error.text}")
    return NotSettled(f"cannot {verb} {ids}{more}: {refused[0][1].text}", tasks)
