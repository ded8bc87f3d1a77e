"""No acked task is lost: in the end each is completed, a dead letter, deleted by somebody, or waits
for a time that lies ahead. One that was dropped for its key was a repeat."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.task_audit import Fates
from busnode.testing.sim.task_history import TaskAcked, TaskSent
from busnode.testing.sim.task_platters import Place


@checker("no acked task is lost")
def check(story: Story) -> Found:
    fates = story.tasks
    if fates is None:
        return
    keys = {event.payload: event.key for event in story.history.of(TaskSent)}
    for event in story.history.of(TaskAcked):
        if fates.is_lost(event.id):
            text = f"{event.id} was acked ({event.level}) and is nowhere: {fates.told(event.id)}"
            yield event.at, text, event.payload
        place = Place(event.log_id, event.msg_no)
        if fates.ends.get(place) == "repeated" and not _is_repeat(fates, place, keys):
            text = f"{event.id} was dropped for its key, which no task before it has"
            yield event.at, text, event.payload


def _is_repeat(fates: Fates, place: Place, keys: dict[bytes, str]) -> bool:
    key = keys[fates.tasks[place].payload]
    return bool(key) and any(
        other.log_id == place.log_id
        and other.number < place.number
        and keys.get(kept.payload) == key
        for other, kept in fates.tasks.items()
    )
