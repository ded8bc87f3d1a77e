"""Fences grow: each lease of an owner has one of its own, who goes on with a task begins above all
that it could know to be given out, and a word with an old one is refused."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.checkers.task_knowledge import is_split
from busnode.testing.sim.task_audit import Fates
from busnode.testing.sim.task_history import TaskAnswered, TaskGiven, TaskSaid
from busnode.testing.sim.task_platters import Place
from busnode.wire.ids import LogId

Lease = tuple[LogId, int, int]


@checker("fences only grow")
def check(story: Story) -> Found:
    fences: dict[tuple[LogId, int], TaskGiven] = {}
    given: dict[Place, list[TaskGiven]] = {}
    judges_successors = story.tasks is not None and not is_split(story.history)
    for event in story.history.of(TaskGiven):
        before = fences.setdefault((event.log_id, event.fence), event)
        if before is not event:
            text = f"{before.id} and {event.id} were both given out with fence {event.fence}"
            yield event.at, text, event.payload
        if judges_successors and story.tasks is not None:
            for place in _before(story.tasks, Place(event.log_id, event.number)):
                for earlier in given.get(place, ()):
                    if event.node in earlier.fenced_at and event.fence <= earlier.fence:
                        text = (
                            f"{event.id} was given out with fence {earlier.fence}, and by "
                            f"{event.node}, which went on with it, with {event.fence}"
                        )
                        yield event.at, text, event.payload
        given.setdefault(Place(event.log_id, event.number), []).append(event)


def _before(fates: Fates, place: Place) -> list[Place]:
    """From where a task was carried here, the last first."""
    found: list[Place] = []
    kept = fates.tasks.get(place)
    while kept is not None and kept.origin is not None and kept.origin not in found:
        found.append(kept.origin)
        kept = fates.tasks.get(kept.origin)
    return found


@checker("a word that comes too late is refused")
def check_late(story: Story) -> Found:
    latest: dict[Place, TaskGiven] = {}
    said: dict[tuple[Lease, str], float] = {}
    for event in story.history.events:
        match event:
            case TaskGiven():
                place = Place(event.log_id, event.number)
                before = latest.setdefault(place, event)
                if event.fence > before.fence:
                    latest[place] = event
            case TaskSaid():
                said.setdefault(((event.log_id, event.number, event.fence), event.verb), event.at)
            case TaskAnswered(code=""):
                lease = event.log_id, event.number, event.fence
                now = latest.get(Place(event.log_id, event.number))
                # It may have been said in time, and now again: that is a repeat.
                if now is None or now.fence <= event.fence or now.at >= said[lease, event.verb]:
                    continue
                text = (
                    f"{event.worker} said {event.verb} of {event.id} with fence {event.fence}, "
                    f"and {now.worker} had it with {now.fence} by then"
                )
                yield event.at, text, None
            case _:
                pass
