"""Attempts never go back, but where somebody requeues a dead letter; and a task dies only when it
was rejected or has had them all."""

from busnode.node.task_queue import UNREADABLE
from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.checkers.task_knowledge import Knowledge
from busnode.testing.sim.task_history import (
    LetterAsked,
    TaskAnswered,
    TaskGiven,
    TaskSaid,
    TaskSent,
)
from busnode.wire.ids import LogId
from busnode.wire.retry_schedule import Schedule


@checker("attempts never go back")
def check(story: Story) -> Found:
    knowledge = Knowledge(story.history, story.tasks)
    failed: dict[str, list[TaskAnswered]] = {}
    last: dict[tuple[LogId, str], TaskGiven] = {}
    requeued_at: dict[str, float] = {}
    for event in story.history.events:
        match event:
            case LetterAsked(act="requeue"):
                # It may be that it was done and nobody was told, or is done a little later.
                failed.pop(event.id, None)
                requeued_at[event.id] = event.at
                for each in [each for each in last if each[1] == event.id]:
                    del last[each]
            case TaskAnswered(verb="fail" | "reject", code=""):
                # The answer may come after a requeue of what it is about.
                if event.said_at > requeued_at.get(event.id, -1.0):
                    failed.setdefault(event.id, []).append(event)
            case TaskGiven():
                for before in failed.get(event.id, ()):
                    if event.attempt <= before.attempt and knowledge.knew(event, before):
                        text = (
                            f"{event.id} had failed at attempt {before.attempt}, and {event.node} "
                            f"gave it out as attempt {event.attempt}"
                        )
                        yield event.at, text, event.payload
                earlier = last.setdefault((event.log_id, event.id), event)
                if event.fence > earlier.fence:
                    last[event.log_id, event.id] = event
                    if event.attempt < earlier.attempt:
                        text = f"{event.id}: attempt {event.attempt} after {earlier.attempt}"
                        yield event.at, text, event.payload
            case _:
                pass


@checker("a task dies when it was rejected or has had all its attempts, and else not")
def check_dead(story: Story) -> Found:
    if story.tasks is None:
        return
    retries = {event.payload: event.retry for event in story.history.of(TaskSent)}
    for event in story.history.of(TaskGiven):
        most = Schedule.parse(retries[event.payload]).attempts_max
        if event.attempt > most:
            text = f"{event.id} was given out as attempt {event.attempt} of {most}"
            yield event.at, text, event.payload
    rejected = {event.id for event in story.history.of(TaskSaid) if event.verb == "reject"}
    for found in story.tasks.found:
        if found.state == "dead" and found.id not in rejected and found.error != UNREADABLE:
            most = Schedule.parse(retries[found.payload]).attempts_max
            if found.attempts < most:
                text = (
                    f"{found.id} is dead after {found.attempts} of {most} attempts: {found.error}"
                )
                yield found.at, text, found.payload
