"""What clients have seen of tasks, and whether that can be: each delivery, each word about it, and
what was answered."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from busnode.client import Task, TaskReceipt
from busnode.wire.ids import BrokerId

from .trouble import Trouble

Said = Literal["nothing", "complete", "fail", "reject"]

DEAD_OWNER: Final = "lease of a dead owner"
ACK_LOST: Final = "word that died with its owner, or on the way"
ALONE: Final = "word that its owner had alone, which is gone"
EXPIRED: Final = "lease that ran out"
LATE: Final = "lease that was void when the worker came to it"
ADOPTED: Final = "adopted from an owner that was only paused"
ENQUEUED_AGAIN: Final = "enqueued again, the first ack was lost"


@dataclass(slots=True)
class Delivery:
    """A task in the hands of a worker."""

    owner: BrokerId
    fence: int
    attempt: int
    said: Said = "nothing"
    level: str = ""
    """At which its word was accepted."""


@dataclass(slots=True)
class Story:
    """One task, by its id."""

    deliveries: list[Delivery] = field(default_factory=list)
    is_completed: bool = False
    """A worker's word was accepted."""
    is_safe: bool = False
    """And on two disks."""
    failures: int = 0
    """Those that were accepted, and are on two disks."""


class History:
    """Fed by producers and workers, judged at the end."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.acks: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self.deliveries = 0
        self.completed = 0
        self.dead = 0
        self.lost: list[str] = []
        self.wrong: list[str] = []
        self.acked: dict[str, tuple[bytes, TaskReceipt]] = {}
        self.stories: dict[str, Story] = {}
        self._ids: dict[bytes, str] = {}

    def __str__(self) -> str:
        levels = ", ".join(f"{count} {level}" for level, count in sorted(self.acks.items()))
        repeats = ", ".join(f"{count} {cause}" for cause, count in self.repeats.most_common())
        return (
            f"{self.trouble}; acks: {levels or 'none'}; {self.completed} completed, "
            f"{self.dead} dead letters, {len(self.lost)} losses; {self.deliveries} deliveries, "
            f"{self.repeats.total()} of them repeats: {repeats or 'none'}"
        )

    # What clients see -----------------------------------------------------------------------------

    def enqueued(self, payload: bytes, receipt: TaskReceipt) -> None:
        self.acks[receipt.level] += 1
        self.acked[receipt.id] = payload, receipt

    def delivered(self, task: Task) -> Delivery:
        story = self.stories.setdefault(task.id, Story())
        now = Delivery(task.owner, task.fence, task.attempt)
        if not story.deliveries:
            first = self._ids.setdefault(task.payload, task.id)
            if first != task.id:
                self.repeats[ENQUEUED_AGAIN] += 1
        else:
            self._judge(task, story, now)
        is_late = any(each.fence > task.fence for each in story.deliveries)
        if task.attempt <= story.failures and not (is_late or self._was_paused(story)):
            self._wrong(task, f"attempt {task.attempt} after {story.failures} that have failed")
        story.deliveries.append(now)
        self.deliveries += 1
        return now

    def settled(self, task: Task, delivery: Delivery, level: str) -> None:
        """What was said of it was accepted."""
        delivery.level = level
        story = self.stories[task.id]
        match delivery.said:
            case "complete":
                self.completed += not story.is_completed
                story.is_completed = True
                story.is_safe = story.is_safe or level == "mirrored"
            case "fail" | "reject":
                story.failures += level == "mirrored"
            case "nothing":
                raise AssertionError("nothing was said")

    # What is made of it ---------------------------------------------------------------------------

    def _judge(self, task: Task, story: Story, now: Delivery) -> None:
        """A task that has come before. Fences tell in which order it was given out, which is not
        that in which it came: it may wait with a worker that is busy."""
        last = max(story.deliveries, key=lambda each: each.fence)
        if now.fence == last.fence:
            self._wrong(task, f"fence {now.fence} twice")
        if now.fence < last.fence:
            self.repeats[LATE] += 1
        elif last.level and last.said == "fail":
            return  # it is tried again, as it should
        else:
            if story.is_safe and not self._was_paused(story):
                self._wrong(task, f"came again after it was completed: {story.deliveries}, {now}")
            self.repeats[self._cause(last, now)] += 1

    def _cause(self, last: Delivery, now: Delivery) -> str:
        if last.said != "nothing":
            return ALONE if last.level else ACK_LOST
        if last.owner in self.trouble.gone:
            return DEAD_OWNER
        return EXPIRED if last.owner == now.owner else ADOPTED

    def _wrong(self, task: Task, what: str) -> None:
        self.wrong.append(f"{task.id} {task.payload!r}: {what}")

    def end(self, dead: set[str]) -> None:
        """All is quiet, and these are the dead letters: what was acked is one of them or done."""
        self.dead = len(dead)
        for task_id, (payload, receipt) in self.acked.items():
            story = self.stories.get(task_id, Story())
            # A word that was not answered may have been heard all the same.
            was_said = any(each.said == "complete" for each in story.deliveries)
            if task_id in dead:
                if story.is_safe and not self._was_paused(story):
                    self.wrong.append(f"{task_id} {payload!r}: completed, and a dead letter")
            elif was_said:
                self.completed += not story.is_completed
            elif not (receipt.level == "local" and receipt.broker_id in self.trouble.wiped):
                self.lost.append(
                    f"{task_id} {payload!r} is lost, {receipt.level}: {story.deliveries}"
                )

    def _was_paused(self, story: Story) -> bool:
        """Whether two owners may have had it at the same time."""
        return any(each.owner in self.trouble.paused for each in story.deliveries)
