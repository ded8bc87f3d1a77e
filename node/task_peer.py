"""Another node as the home of workers that our queues have tasks for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from busnode.node.task_frames import TaskFrames
from busnode.node.task_queue import Given
from busnode.node.task_queues import TaskQueues
from busnode.wire.control import (
    TaskDone,
    TaskPoll,
    TaskReady,
    Tasks,
    TaskSettled,
    encode_trusted,
)
from busnode.wire.errors import Refused
from busnode.wire.task_options import check_queue

if TYPE_CHECKING:
    from busnode.node.peer_session import PeerSession


@dataclass(frozen=True, slots=True)
class PeerAsking:
    """One of its workers, until it is answered."""

    peer: "TaskPeer"
    poll: int

    def given(self, tasks: Given) -> None:
        self.peer.frames.send(encode_trusted(Tasks, self.poll, *tasks))


@dataclass(frozen=True, slots=True)
class PeerWaiting:
    """One of its workers' words, until it is durable."""

    session: "PeerSession"
    done: int

    def settled(self, level: str, refused: list[tuple[int, str]]) -> None:
        self.session.tell(TaskSettled(self.done, level, refused))


class TaskPeer:
    """What one other node asks of our queues. Its session owns it."""

    def __init__(self, session: "PeerSession", queues: TaskQueues) -> None:
        self._session = session
        self._queues = queues
        self.frames = TaskFrames(session.outgoing)

    def poll(self, message: TaskPoll) -> None:
        home = self._session.broker_id
        if home is None:
            raise Refused("a node has no tasks for itself over a link")
        self._queues.poll(
            check_queue(message.queue), PeerAsking(self, message.poll), home, self.ready,
            message.worker, message.name, message.want, message.lease_s,
        )  # fmt: skip

    def done(self, message: TaskDone) -> None:
        waiting = PeerWaiting(self._session, message.done)
        self._queues.settle(waiting, message, message.worker)

    def ready(self, queue: str) -> None:
        self._session.tell(TaskReady(queue))

    def forget(self) -> None:
        if self._session.broker_id is not None:
            self._queues.gone(self._session.broker_id, self.ready)
