"""One owner gives a task to one worker at a time: before the next gets it the first one has said
what became of it, or its lease has ended, which is an attempt."""

from itertools import pairwise

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.task_history import (
    Leased,
    LetterAsked,
    TaskAnswered,
    TaskGiven,
    TaskSaid,
)
from busnode.testing.sim.task_platters import Place


@checker("an owner gives a task to one worker at a time")
def check(story: Story) -> Found:
    said: dict[tuple[Place, int], set[str]] = {}
    extended: dict[tuple[Place, int], float] = {}
    """Since when, of those that were told so: what a worker said alone may never have come."""
    requeued: dict[str, list[float]] = {}
    given: dict[Place, dict[int, TaskGiven]] = {}
    for event in story.history.events:
        match event:
            case TaskSaid():
                said.setdefault(lease_of(event), set()).add(event.verb)
            case TaskAnswered(verb="extend", code=""):
                lease = lease_of(event)
                extended[lease] = max(extended.get(lease, 0.0), event.said_at)
            case LetterAsked(act="requeue"):
                requeued.setdefault(event.id, []).append(event.at)
            case TaskGiven():
                given.setdefault(Place(event.log_id, event.number), {})[event.fence] = event
            case _:
                pass
    for place, by_fence in given.items():
        ordered = [by_fence[fence] for fence in sorted(by_fence)]
        for first, second in pairwise(ordered):
            lease = place, first.fence
            if second.at < first.at:
                continue  # it was slow on its way, and over when it came
            if any(at < second.at for at in requeued.get(second.id, ())):
                continue  # attempts begin anew, and who knows when that was done
            if said.get(lease, set()) & {"fail", "reject", "release", "complete"}:
                continue
            ends_at = max(first.asked_at, extended.get(lease, 0.0)) + first.lease_s
            if second.attempt == first.attempt or second.at < ends_at:
                text = (
                    f"{first.id} was with {first.worker} as attempt {first.attempt}, and was given "
                    f"to {second.worker} as attempt {second.attempt}"
                )
                yield second.at, text, second.payload


def lease_of(event: Leased) -> tuple[Place, int]:
    return Place(event.log_id, event.number), event.fence
