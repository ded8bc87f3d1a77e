"""A task that is over stays over, and no task is in two places.

A worker that was told that its word is durable may rely on that as far as it can be known. Its
owner never gives the task out again, nor does a node on whose disk it was written, when it goes on
with the owner's tasks after that. A node that could not know of it may: it had no copy of the last
part of the journal, because there was no mirror or a partition, or it went on with the tasks before
that. When all is healed everybody knows.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.checkers.task_knowledge import Knowledge
from busnode.testing.sim.history import Calm
from busnode.testing.sim.task_history import LetterActed, TaskAnswered, TaskFound, TaskGiven
from busnode.wire.ids import LogId


@checker("a task that is over stays over")
def check(story: Story) -> Found:
    knowledge = Knowledge(story.history, story.tasks)
    over: dict[str, list[TaskAnswered]] = {}
    ended: dict[str, float] = {}
    calm_at = next((event.at for event in story.history.of(Calm)), float("inf"))
    for event in story.history.events:
        match event:
            case TaskAnswered(verb="complete", code=""):
                over.setdefault(event.id, []).append(event)
                ended.setdefault(event.id, event.at)
            case LetterActed(act="delete"):
                ended.setdefault(event.id, event.at)
            case TaskGiven():
                for before in over.get(event.id, ()):
                    if knowledge.knew(event, before):
                        text = (
                            f"{event.id} was completed with fence {before.fence} of "
                            f"{before.log_id}, and given out again by {event.node}"
                        )
                        yield event.at, text, event.payload
                if event.id in ended and event.at > calm_at:
                    text = f"{event.id} was over, and was given out when all was calm"
                    yield event.at, text, event.payload
            case _:
                pass


@checker("no owner has a task twice")
def check_places(story: Story) -> Found:
    fates = story.tasks
    if fates is None:
        return
    first: dict[tuple[str, LogId], TaskFound] = {}
    for event in fates.found:
        before = first.setdefault((event.id, event.log_id), event)
        if before is not event:
            text = f"{event.id} is twice at {event.node}: {fates.told(event.id)}"
            yield event.at, text, event.payload
