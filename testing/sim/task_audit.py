"""What has become of each task in the end: by the journals on all disks, and by what the queues of
nodes have."""

from busnode.tasks.journal import Failed, Finished, JournalRecord, Requeued
from busnode.tasks.rows import DEAD
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_history import TaskFound
from busnode.testing.sim.task_platters import Kept, Place, TaskPlatters
from busnode.wire.ids import LogId

OVER = ("completed", "deleted", "over")


class Fates:
    """As things are when it is made."""

    def __init__(self, stage: Stage, platters: TaskPlatters) -> None:
        self.tasks = platters.tasks()
        self.journals = platters.journals()
        self.found = _found(stage, self.tasks)
        self.places: dict[str, list[Place]] = {}
        """All of a task's, by its id."""
        for place, kept in self.tasks.items():
            self.places.setdefault(kept.id, []).append(place)
        self.ends: dict[Place, str] = {}
        """How each place ended. A snapshot says of all that they were completed, and comes later
        than the record that it is about."""
        for log_id, records in self.journals.items():
            for record in records:
                if isinstance(record, Finished):
                    for first, last in record.runs:
                        for number in range(first, last + 1):
                            self.ends.setdefault(Place(log_id, number), record.how)
        self._waiting = {each.id for each in self.found}

    def how(self, task_id: str) -> list[str]:
        """How a task ended, in all its places."""
        return [self.ends.get(place, "") for place in self.places.get(task_id, ())]

    def is_lost(self, task_id: str) -> bool:
        """Whether it is neither over nor anywhere."""
        if task_id in self._waiting or any(how in OVER for how in self.how(task_id)):
            return False
        return not self._is_repeat(task_id)

    def _is_repeat(self, task_id: str) -> bool:
        """Whether it was dropped where it was enqueued: for its key, as another checker sees."""
        places = self.places.get(task_id, ())
        return any(
            self.ends.get(place) == "repeated" and self.tasks[place].origin is None
            for place in places
        )

    def told(self, task_id: str) -> str:
        """Where it was, and how that ended."""
        places = [
            f"{str(place.log_id)[:12]} {place.number} {self.ends.get(place, 'goes on')}"
            for place in self.places.get(task_id, ())
        ]
        waiting = [f"{each.state} at {each.node}" for each in self.found if each.id == task_id]
        return ", ".join(places + waiting) or "it is on no disk"

    def said(self, log_id: LogId) -> list[tuple[int, str]]:
        """What a journal says of its tasks, one by one and in order: a number and `failed`, `dead`,
        `requeued` or how it is finished."""
        return [each for record in self.journals.get(log_id, ()) for each in _each(record)]


def _each(record: JournalRecord) -> list[tuple[int, str]]:
    match record:
        case Finished(how, runs):
            return [(number, how) for first, last in runs for number in range(first, last + 1)]
        case Requeued(runs):
            return [(n, "requeued") for first, last in runs for n in range(first, last + 1)]
        case Failed(numbers, _, dues):
            columns = zip(numbers, dues, strict=True)
            return [(number, "dead" if due == DEAD else "failed") for number, due in columns]
        case _:
            return []


def _found(stage: Stage, tasks: dict[Place, Kept]) -> list[TaskFound]:
    found: list[TaskFound] = []
    for node in stage.cluster.up:
        for queue in node.node.task_queues.owned.values():
            log_id = queue.tasks.log_id
            for row in queue.machine.rows(None, 0, queue.machine.extent):
                kept = tasks.get(Place(log_id, row.number), Kept("?", b"", None))
                found.append(
                    TaskFound(
                        stage.now, node.name, kept.id, log_id, row.number, row.state,
                        row.row.attempts, row.row.history[-1].error if row.row.history else "",
                        kept.payload,
                    )
                )  # fmt: skip
    return found
