"""Notes of what workers get, say and are told, with what the disks know at that moment."""

from collections.abc import Sequence

from busnode.client import Task
from busnode.node.mirroring import MirrorStream
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_history import TaskAnswered, TaskGiven, TaskSaid
from busnode.testing.sim.task_platters import TASKS, Place, TaskPlatters, name_of
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId, LogId, Topic


class TaskNotes:
    """For all workers of a run."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.platters = TaskPlatters(stage.platters)

    def given(self, worker: str, task: Task, lease_s: float, asked_at: float) -> None:
        stage = self.stage
        stage.note_incarnations()
        log_id = log_of(task)
        stage.history.add(
            TaskGiven(
                stage.now, worker, name_of(log_id.topic, task.id), log_id, task.number, task.fence,
                task.attempt, task.payload, stage.wrote.get(task.owner, "?"), lease_s, asked_at,
                self.platters.fenced_at(log_id, task.fence),
            )
        )  # fmt: skip

    def saying(self, worker: str, verb: str, tasks: Sequence[Task]) -> "Saying":
        """Before it is said. `told` follows, or nothing when the worker dies."""
        return Saying(self, worker, verb, tasks)


class Saying:
    """What a worker says of some tasks of one owner, until it is told that it is so."""

    def __init__(self, notes: TaskNotes, worker: str, verb: str, tasks: Sequence[Task]) -> None:
        self._notes = notes
        self._worker = worker
        self._verb = verb
        self._tasks = tasks
        self._said_at = notes.stage.now
        self._mirrors = {task.owner: self._in_force(task.owner) for task in tasks}
        for task in tasks:
            notes.stage.history.add(TaskSaid(*self._lease(task), verb))

    def _lease(self, task: Task) -> tuple[float, str, str, LogId, int, int, int]:
        log_id = log_of(task)
        who = self._worker, name_of(log_id.topic, task.id)
        return self._notes.stage.now, *who, log_id, task.number, task.fence, task.attempt

    def told(self, level: str | None = None, error: BusnodeError | None = None) -> None:
        """It is so, at this level, or not: then the error may name those for which it is not."""
        refused: Sequence[Task] = getattr(error, "tasks", self._tasks) if error is not None else ()
        stage = self._notes.stage
        stage.note_incarnations()
        for task in self._tasks:
            code = error.code if error is not None and task in refused else ""
            known_at: tuple[str, ...] = ()
            if not code and self._verb in ("complete", "fail", "reject"):
                place = Place(log_of(task), task.number)
                known_at = self._notes.platters.settled_at(place, self._verb, task.attempt)
            mirrors = self._mirrors[task.owner]
            still = self._in_force(task.owner)
            stage.history.add(
                TaskAnswered(
                    *self._lease(task), self._verb, self._said_at, code, level or "", known_at,
                    self._claimed_by(task.owner), any(each in still for each in mirrors),
                )
            )  # fmt: skip

    def _in_force(self, owner: BrokerId) -> list[MirrorStream]:
        """The mirrors without which its owner acks nothing."""
        for node in self._notes.stage.cluster.up:
            if node.node.broker_id == owner:
                streams = node.node.mirroring.streams.values()
                return [stream for stream in streams if stream.progress.in_force]
        return []

    def _claimed_by(self, owner: BrokerId) -> tuple[str, ...]:
        return tuple(
            node.name
            for node in self._notes.stage.cluster.up
            if node.node.task_claims.has_claimed(owner)
        )


def log_of(task: Task) -> LogId:
    return LogId(task.owner, Topic(TASKS + task.queue))
