"""One owner gives a task to one worker at a time: before the next gets it the first one has said
what became of it, or its lease has ended, which is an attempt."""

from itertools import pairwise

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.task_history import LetterAsked, TaskGiven, TaskSaid
from busnode.testing.sim.task_platters import Place


@checker("an owner gives a task to one worker at a time")
def check(story: Story) -> Found:
    said: dict[tuple[Place, int], dict[str, float]] = {}
    requeued: dict[str, list[float]] = {}
    given: dict[Place, dict[int, TaskGiven]] = {}
    for event in story.history.events:
        match event:
            case TaskSaid():
                lease = Place(event.log_id, event.number), event.fence
                said.setdefault(lease, {})[event.verb] = event.at
            case LetterAsked(act="requeue"):
                requeued.setdefault(event.id, []).append(event.at)
            case TaskGiven():
                given.setdefault(Place(event.log_id, event.number), {})[event.fence] = event
            case _:
                pass
    for place, by_fence in given.items():
        ordered = [by_fence[fence] for fence in sorted(by_fence)]
        for first, second in pairwise(ordered):
            verbs = said.get((place, first.fence), {})
            if second.at < first.at:
                continue  # it was slow on its way, and over when it came
            if any(at < second.at for at in requeued.get(second.id, ())):
                continue  # attempts begin anew, and who knows when that was done
            if {"fail", "reject", "release", "complete"} & verbs.keys():
                continue
            ends_at = max(first.asked_at, verbs.get("extend", 0.0)) + first.lease_s
            if second.attempt == first.attempt or second.at < ends_at:
                text = (
                    f"{first.id} was with {first.worker} as attempt {first.attempt}, and was given "
                    f"to {second.worker} as attempt {second.attempt}"
                )
                yield second.at, text, second.payload
