"""No task is given out before it is due: when it was enqueued with a delay, and when it has failed.

By which clock? Its owner's, so this is judged where nobody has set one.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.checkers.task_knowledge import Knowledge
from busnode.testing.sim.history import FaultBegun
from busnode.testing.sim.task_history import LetterAsked, TaskAnswered, TaskGiven, TaskSent
from busnode.wire.retry_schedule import Schedule

SLACK_S = 0.001
"""Delays are told in milliseconds."""


@checker("no task is given out before it is due")
def check(story: Story) -> Found:
    if any(event.kind.startswith("clock") for event in story.history.of(FaultBegun)):
        return
    knowledge = Knowledge(story.history, story.tasks)
    sent = {event.payload: event for event in story.history.of(TaskSent)}
    failed: dict[str, list[TaskAnswered]] = {}
    for event in story.history.events:
        match event:
            case LetterAsked(act="requeue"):
                failed.pop(event.id, None)
            case TaskAnswered(verb="fail", code=""):
                failed.setdefault(event.id, []).append(event)
            case TaskGiven():
                wanted = sent[event.payload]
                if event.at < wanted.not_before - SLACK_S:
                    early_s = wanted.not_before - event.at
                    yield event.at, f"{event.id} was given out {early_s:.3f} s early", event.payload
                schedule = Schedule.parse(wanted.retry)
                for before in failed.get(event.id, ()):
                    if before.attempt == schedule.attempts_max:
                        continue
                    # At the least: a schedule with jitter may wait a little more.
                    wait_s = schedule.wait_s(before.attempt + 1, 0.0)
                    due = before.said_at + wait_s - SLACK_S
                    if event.at < due and knowledge.knew(event, before):
                        text = f"{event.id} was tried again {due - event.at:.3f} s early"
                        yield event.at, text, event.payload
            case _:
                pass
