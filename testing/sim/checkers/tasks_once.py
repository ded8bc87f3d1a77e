"""One attempt has one outcome: it is never completed and a dead letter as well."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.task_history import TaskAnswered
from busnode.wire.ids import LogId

ENDS = ("complete", "fail", "reject")


@checker("one attempt at a task has one outcome")
def check(story: Story) -> Found:
    told: dict[tuple[LogId, int, int], TaskAnswered] = {}
    for event in story.history.of(TaskAnswered):
        if event.verb in ENDS and not event.code:
            before = told.setdefault((event.log_id, event.number, event.fence), event)
            if before.verb != event.verb:
                text = (
                    f"{event.id} with fence {event.fence}: {before.verb} was taken, and "
                    f"{event.verb} too"
                )
                yield event.at, text, None
    if story.tasks is None:
        return
    for log_id in story.tasks.journals:
        state: dict[int, str] = {}
        for number, what in story.tasks.said(log_id):
            before_it = state.get(number, "")
            # A snapshot says of all that is finished that it was completed.
            if before_it in ("completed", "deleted") and what in ("failed", "dead", "requeued"):
                text = f"the journal of {log_id} says of {number} that it was {before_it}"
                yield 0.0, f"{text}, and then that it is {what}", None
            if before_it == "dead" and what in ("completed", "failed"):
                text = f"the journal of {log_id} says of {number} that it is a dead letter"
                yield 0.0, f"{text}, and then that it is {what}", None
            state.setdefault(number, what)
            if what != "completed" or before_it not in (
                "carried",
                "dropped",
                "elsewhere",
                "repeated",
            ):
                state[number] = what
