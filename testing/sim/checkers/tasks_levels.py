"""What a worker was told, and what whoever enqueued was told, was true: so many disks had it."""

from typing import Final

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import DISK_LOST, NodeDown
from busnode.testing.sim.task_history import TaskAcked, TaskAnswered

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
    for told in story.history.of(TaskAnswered):
        if told.code or told.verb not in ("complete", "fail", "reject"):
            continue
        if any(told.said_at <= at <= told.at for at in disks_gone):
            continue  # it may have been the mirror's, and had it
        if len(told.known_at) < (2 if told.had_mirror else 1):
            where = " ".join(told.known_at) or "no disk"
            text = f"{told.verb} of {told.id} was acked, and is written at {where} alone"
            yield told.at, text, None
