"""What a worker was told, and what whoever enqueued was told, was true: so many disks had it."""

from typing import Final

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import NodeDown
from busnode.testing.sim.task_history import TaskAcked, TaskAnswered

CLONE: Final = "clone"
"""What names of clones begin with."""


@checker("what is told of a task is durable")
def check(story: Story) -> Found:
    for event in story.history.of(TaskAcked):
        if len(event.safe_at) < (2 if event.level == "mirrored" else 1):
            where = " ".join(event.safe_at) or "no disk"
            text = f"{event.id} was acked as {event.level}, and is safe at {where} alone"
            yield event.at, text, event.payload
    clones_gone = [e.at for e in story.history.of(NodeDown) if e.node.startswith(CLONE)]
    for told in story.history.of(TaskAnswered):
        if told.code or told.verb not in ("complete", "fail", "reject"):
            continue
        if any(told.said_at <= at <= told.at for at in clones_gone):
            continue  # it may have been the mirror, and has taken its disk along
        if len(told.known_at) < (2 if told.had_mirror else 1):
            where = " ".join(told.known_at) or "no disk"
            text = f"{told.verb} of {told.id} was acked, and is written at {where} alone"
            yield told.at, text, None
