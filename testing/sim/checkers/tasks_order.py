"""In fair weather tasks are given out once each and in order; one whose lease has ended is back at
its place, and not at the end."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Calm
from busnode.testing.sim.task_calm import IDLE, ORDER
from busnode.testing.sim.task_history import TaskGiven, TaskSent
from busnode.wire.ids import LogId


@checker("tasks are given out once each and in order")
def check(story: Story) -> Found:
    calm_at = next((event.at for event in story.history.of(Calm)), float("inf"))
    sent = {
        event.payload: event.queue for event in story.history.of(TaskSent) if event.at >= calm_at
    }
    last: dict[LogId, TaskGiven] = {}
    seen: dict[str, TaskGiven] = {}
    for event in story.history.of(TaskGiven):
        if event.payload not in sent or event.worker == IDLE:
            continue
        before = seen.setdefault(event.id, event)
        if before is not event:
            text = f"{event.id} went to {before.worker} and to {event.worker}"
            yield event.at, text, event.payload
        if sent[event.payload] == ORDER:
            previous = last.get(event.log_id, event)
            if previous.number > event.number:
                text = f"task {event.number} of {event.log_id} came after {previous.number}"
                yield event.at, text, event.payload
            last[event.log_id] = event
