"""What a worker was told, and what whoever enqueued was told, was true: so many disks had it."""

from typing import Final

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import DISK_LOST, NodeDown
from busnode.testing.sim.task_history import TaskAcked, TaskAnswered
from busnode.wire.ids import LogId

CLONE: Final = "clone"
"""What names of clones begin with. One that goes takes its disk along."""


@checker("what is told of a task is durable")
def check(story: Story) -> Found:
    for event in story.history.of(TaskAcked):
        if len(event.safe_at) < (2 if event.level == "mirrored" else 1):
            where = " ".join(event.safe_at) or "no disk"
            text = f"{event.id} was acked as {event.level}, and is safe at {where} alone"
            yield event.at, text, event.payload
    disks_gone = [
        event.at
        for event in story.history.of(NodeDown)
        if event.node.startswith(CLONE) or event.how.endswith(DISK_LOST)
    ]
    words: set[tuple[LogId, int, int, str]] = set()
    for told in story.history.of(TaskAnswered):
        if told.code or told.verb not in ("complete", "fail", "reject"):
            continue
        word = told.log_id, told.number, told.fence, told.verb
        # Nothing is written for a word that is said again: it is where it was when it was said
        # first, and a mirror that came after that may be about to get it.
        had_mirror = told.had_mirror and word not in words
        words.add(word)
        if any(told.said_at <= at <= told.at for at in disks_gone):
            continue  # it may have been the mirror's, and had it
        if len(told.known_at) < (2 if had_mirror or told.level == "mirrored" else 1):
            where = " ".join(told.known_at) or "no disk"
            level = f" as {told.level}" if told.level else ""
            text = f"{told.verb} of {told.id} was acked{level}, and is written at {where} alone"
            yield told.at, text, None
