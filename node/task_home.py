"""A node as the home of workers: it gets tasks for them, from its own queues and from other owners,
and passes on what they say of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from busnode.node.access import check_right
from busnode.node.session import ClientSession
from busnode.node.task_frames import TaskFrames
from busnode.node.task_queue import NOBODY, Given, Settler
from busnode.node.task_queues import TaskQueues, topic_of, verb_of
from busnode.tasks.supply import (
    Action,
    Answered,
    AskOwn,
    AskOwner,
    Event,
    OwnerGone,
    OwnerReady,
    Supply,
    Unwanted,
    WorkerGone,
    WorkerWants,
)
from busnode.wire.control import TaskDone, TaskPoll, Tasks, TaskSettled, encode_trusted
from busnode.wire.errors import BadTask, LimitReached, Unavailable
from busnode.wire.ids import BrokerId
from busnode.wire.task_options import check_queue

POLLS_MAX: Final = 1000
"""Queues that one client may work on at once."""

WANT_MAX: Final = 10_000
"""Tasks that one poll may have on their way: more would only wait with a worker that is busy."""

DONE_MAX: Final = 10_000
"""Answers that one client may wait for."""

LEASE_S_MIN: Final = 0.1
LEASE_S_MAX: Final = 12 * 3600.0
"""Longer work extends its lease: until it runs out nobody else can have the task."""

LOCAL: Final = "local"


class Owner(Protocol):
    """Another node that may have tasks: a link to it."""

    @property
    def broker_id(self) -> BrokerId: ...

    def send(self, frame: bytes) -> None: ...


@dataclass(eq=False, slots=True)
class Worker:
    """One poll of one client."""

    session: ClientSession
    frames: TaskFrames
    number: int
    """As the supply knows it."""
    poll: int
    queue: str
    lease_s: float
    want: int = 0
    """What it can take and has not got."""


@dataclass(frozen=True, slots=True)
class Asking:
    """An asking for a worker until it is answered; the `Asker` of our own queues."""

    home: "TaskHome"
    ask: int
    worker: Worker
    want: int

    def given(self, tasks: Given) -> None:
        self.home.answered(self, tasks)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A client that waits for its word to be durable at the owner."""

    session: ClientSession
    done: int
    poll: int
    want: int
    """What that poll of it can take more when it has the answer."""
    home: "TaskHome"

    def settled(self, level: str, refused: list[tuple[int, str]]) -> None:
        answer = encode_trusted(TaskSettled, self.done, level, refused)
        self.home.settled(self, answer)


class TaskHome:
    def __init__(self, queues: TaskQueues) -> None:
        self._queues = queues
        self._links: dict[BrokerId, Owner] = {}
        self._written: dict[BrokerId, BrokerId] = {}
        """By what an owner has greeted us with: what it writes since its disk failed."""
        self._polls: dict[ClientSession, dict[int, Worker]] = {}
        self._frames: dict[ClientSession, TaskFrames] = {}
        self._supplies: dict[str, Supply] = {}
        self._workers: dict[int, Worker] = {}
        self._askings: dict[int, tuple[BrokerId, Asking]] = {}
        """What other owners were asked for and have not answered."""
        self._forwarded: dict[int, tuple[BrokerId, Settler, int]] = {}
        """What they were told and have not answered: for whom, and of how many tasks."""
        self._done: dict[ClientSession, int] = {}
        self._number = 0
        self._events: list[tuple[str, Event]] = []
        self._is_handling = False

    @property
    def workers(self) -> int:
        """Polls of clients here."""
        return len(self._workers)

    def polls_of(self, session: ClientSession) -> Iterable[tuple[str, int]]:
        """The queues that a client works on, and how many tasks more it can take of each."""
        return [(each.queue, each.want) for each in self._polls.get(session, {}).values()]

    def _next(self) -> int:
        self._number += 1
        return self._number

    # Clients --------------------------------------------------------------------------------------

    def poll(self, session: ClientSession, message: TaskPoll) -> None:
        """BadTask or LimitReached for what cannot be, Forbidden for what may not."""
        polls = self._polls.setdefault(session, {})
        worker = polls.get(message.poll)
        if not message.want:
            if worker is not None:
                self._end(worker)
            return
        if worker is None:
            worker = self._begin(session, message, polls)
        elif worker.queue != message.queue:
            raise BadTask(f"poll {message.poll} is one of queue {worker.queue!r}")
        worker.lease_s = _lease(message.lease_s)
        self._want(worker, message.want)

    def _want(self, worker: Worker, want: int) -> None:
        more = min(want, WANT_MAX - worker.want)
        if more > 0:
            worker.want += more
            self._handle(worker.queue, WorkerWants(worker.number, more))

    def _begin(self, session: ClientSession, message: TaskPoll, polls: dict[int, Worker]) -> Worker:
        queue = check_queue(message.queue)
        check_right(session.rights, "queue", topic_of(queue))
        lease_s = _lease(message.lease_s)
        if len(polls) >= POLLS_MAX:
            raise LimitReached(f"{len(polls)} polls of one client; the limit is {POLLS_MAX}")
        frames = self._frames.get(session)
        if frames is None:
            frames = self._frames[session] = TaskFrames(session.outgoing)
        worker = Worker(session, frames, self._next(), message.poll, queue, lease_s)
        polls[message.poll] = self._workers[worker.number] = worker
        if queue not in self._supplies:
            self._supplies[queue] = Supply(self._next)
            for owner in self._links:
                self._handle(queue, OwnerReady(owner))
        return worker

    def _end(self, worker: Worker) -> None:
        del self._polls[worker.session][worker.poll]
        del self._workers[worker.number]
        self._handle(worker.queue, WorkerGone(worker.number))
        if not any(each.queue == worker.queue for each in self._workers.values()):
            del self._supplies[worker.queue]

    def leave(self, session: ClientSession) -> None:
        for worker in list(self._polls.get(session, {}).values()):
            self._end(worker)
        self._polls.pop(session, None)
        self._frames.pop(session, None)
        self._done.pop(session, None)

    def done(self, session: ClientSession, message: TaskDone) -> None:
        if self._done.get(session, 0) >= DONE_MAX:
            raise LimitReached(f"{DONE_MAX} answers are waited for by one client")
        check_right(session.rights, "queue", topic_of(message.queue))
        if verb_of(message) == "extend":
            _lease(message.lease_s)
        self._count_done(session, 1)
        worker = self._polls.get(session, {}).get(message.for_poll)
        is_asked = worker is not None and worker.queue == message.queue
        want = message.want if is_asked else 0
        waiting = Waiting(session, message.done, message.for_poll, want, self)
        self._settle(waiting, message, session.producer_id)

    def settled(self, waiting: Waiting, answer: bytes) -> None:
        session = waiting.session
        self._count_done(session, -1)
        worker = self._polls.get(session, {}).get(waiting.poll) if waiting.want else None
        if worker is None or session.outgoing.has_ended:
            session.send(answer)
            return
        worker.frames.hold(answer)
        self._want(worker, waiting.want)
        worker.frames.let_go()

    def _count_done(self, session: ClientSession, change: int) -> None:
        left = self._done.get(session, 0) + change
        if left > 0:
            self._done[session] = left
        else:
            self._done.pop(session, None)

    def _settle(self, settler: Settler, message: TaskDone, worker: int) -> None:
        owner = self._links.get(message.owner)
        for greeted, written in self._written.items() if owner is None else ():
            if written == message.owner:
                owner = self._links.get(greeted)
        if owner is None:
            if self._queues.is_here(message.owner):
                self._queues.settle(settler, message, worker)
            else:
                settler.settled(LOCAL, _unavailable(len(message.numbers)))
            return
        number = self._next()
        self._forwarded[number] = owner.broker_id, settler, len(message.numbers)
        owner.send(
            encode_trusted(
                TaskDone, number, message.owner, message.queue, message.verb,
                message.numbers, message.fences, message.error, message.lease_s, worker,
            )
        )  # fmt: skip

    # Asking ---------------------------------------------------------------------------------------

    def ready(self, queue: str) -> None:
        """This node's own queue has something."""
        self._handle(queue, OwnerReady(None))

    def _handle(self, queue: str, event: Event) -> None:
        """Tell the supply, and do what it wants. What that brings about at once comes after it."""
        self._events.append((queue, event))
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                name, each = self._events.pop(0)
                supply = self._supplies.get(name)
                if supply is not None:
                    for action in supply.handle(each):
                        self._do(name, action)
        finally:
            self._is_handling = False

    def _do(self, queue: str, action: Action) -> None:
        match action:
            case AskOwn(ask, number, want, hungry):
                worker = self._workers[number]
                asking = Asking(self, ask, worker, want)
                session = worker.session
                self._queues.poll(
                    queue, asking, None, self.ready,
                    session.producer_id, session.name, want, worker.lease_s, max(1, hungry),
                )  # fmt: skip
            case AskOwner(ask, owner, number, want):
                self._ask(queue, owner, Asking(self, ask, self._workers[number], want))
            case Unwanted():
                pass  # `answered` sees that the worker is gone

    def _ask(self, queue: str, owner: BrokerId, asking: Asking) -> None:
        worker = asking.worker
        session = worker.session
        number = self._next()
        self._askings[number] = owner, asking
        self._links[owner].send(
            encode_trusted(
                TaskPoll, number, queue, asking.want, worker.lease_s,
                session.producer_id, session.name,
            )
        )  # fmt: skip

    def answered(self, asking: Asking, tasks: Given) -> None:
        worker = asking.worker
        count = len(tasks.numbers)
        if count and worker.number not in self._workers:
            release = TaskDone(
                0, tasks.owner, tasks.queue, "release", tasks.numbers, tasks.fences, "", 0.0, 0
            )
            self._settle(NOBODY, release, worker.session.producer_id)
        elif count:
            worker.want -= min(worker.want, count)
            worker.frames.send(encode_trusted(Tasks, worker.poll, *tasks))
        self._go_on(worker, Answered(asking.ask, count))

    def _go_on(self, worker: Worker, answered: Answered) -> None:
        """Ask for more when there is room for it: a worker that does not read holds up itself."""
        outgoing = worker.session.outgoing
        if outgoing.is_full and worker.number in self._workers:
            outgoing.when_room(partial(self._go_on, worker, answered))
        else:
            self._handle(worker.queue, answered)

    # Other owners ---------------------------------------------------------------------------------

    def linked(self, owner: Owner) -> None:
        self._links[owner.broker_id] = owner
        for queue in list(self._supplies):
            self._handle(queue, OwnerReady(owner.broker_id))

    def unlinked(self, owner: Owner) -> None:
        """What it was asked for others are asked for; what it was told is to be told again."""
        gone = owner.broker_id
        del self._links[gone]
        self._written.pop(gone, None)
        self._askings = {n: each for n, each in self._askings.items() if each[0] != gone}
        for queue in list(self._supplies):
            self._handle(queue, OwnerGone(gone))
        for number, (to, settler, count) in list(self._forwarded.items()):
            if to == gone:
                del self._forwarded[number]
                settler.settled(LOCAL, _unavailable(count))

    def owner_ready(self, owner: Owner, queue: str) -> None:
        self._handle(queue, OwnerReady(owner.broker_id))

    def tasks_from(self, owner: Owner, message: Tasks) -> None:
        to, asking = self._askings.get(message.poll, (None, None))
        if asking is None or to != owner.broker_id:
            return
        del self._askings[message.poll]
        if message.owner != owner.broker_id:
            self._written[owner.broker_id] = message.owner
        self.answered(
            asking,
            Given(
                message.owner, message.queue, message.numbers, message.ids, message.fences,
                message.attempts, message.enqueued_us, message.headers, message.payloads,
            ),
        )  # fmt: skip

    def settled_from(self, owner: Owner, message: TaskSettled) -> None:
        to, settler, _ = self._forwarded.get(message.done, (None, NOBODY, 0))
        if to == owner.broker_id:
            del self._forwarded[message.done]
            settler.settled(message.level, message.refused)


def _unavailable(count: int) -> list[tuple[int, str]]:
    return [(place, Unavailable.code) for place in range(count)]


def _lease(lease_s: float) -> float:
    if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise BadTask(
            f"lease of {lease_s:g} s; expected {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds"
        )
    return lease_s
