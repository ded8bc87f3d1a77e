"""All queues whose tasks this incarnation has accepted or taken over."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from busnode.node.config import NodeConfig
from busnode.node.event_kinds import TASK_DEAD
from busnode.node.events import Tell
from busnode.node.mended_hole import wait_mended
from busnode.node.own_messages import OwnMessages
from busnode.node.publishing import TASKS
from busnode.node.router import Router
from busnode.node.subscription import Mender
from busnode.node.task_log import Room, TaskLog
from busnode.node.task_queue import JOURNAL, Asker, Given, OwnedQueue, Settler, nothing
from busnode.node.task_reports import TaskReports
from busnode.segments.damage import Hole
from busnode.segments.store import Log, Store
from busnode.tasks.events import (
    LEASE_EXPIRED,
    FinishedElsewhere,
    GivenUp,
    Report,
    Verb,
)
from busnode.tasks.queue import TaskQueue
from busnode.tasks.ranges import Numbers
from busnode.tasks.rows import Row
from busnode.tasks.supply import Homes
from busnode.wire.control import TaskDone
from busnode.wire.errors import BadTask, LimitReached
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.task_options import check_queue
from busnode.world.world import World

logger = logging.getLogger(__name__)

QUEUES_MAX: Final = 10_000
"""Queues of one node; each has two logs."""

SWEEP_S: Final = 1.0
"""How often leases that ran out are looked for."""

VERBS: Final[dict[str, Verb]] = {
    "complete": "complete",
    "fail": "fail",
    "reject": "reject",
    "release": "release",
    "extend": "extend",
}


@dataclass(eq=False, slots=True)
class Giving:
    """A home's asking, until it is answered."""

    queues: "TaskQueues"
    asker: Asker
    homes: Homes
    home: BrokerId | None
    want: int

    def given(self, tasks: Given) -> None:
        self.asker.given(tasks)
        self.queues.gave(self, tasks)


class TaskQueues:
    def __init__(
        self,
        world: World,
        store: Store,
        router: Router,
        own: OwnMessages,
        current: Callable[[], BrokerId],
        is_own: Callable[[BrokerId], bool],
        config: NodeConfig,
        tell: Tell,
    ) -> None:
        self._world = world
        self._store = store
        self._own = own
        self._current = current
        self._is_own = is_own
        self._config = config
        self._retries = dict(config.queue_retries)
        self._tell = tell
        self._room = Room()
        self.owned: dict[str, OwnedQueue] = {}
        self._homes: dict[str, Homes] = {}
        """By queue, those who have polled."""
        self._tell_home: dict[BrokerId | None, Callable[[str], None]] = {}
        self._nursery: trio.Nursery | None = None
        self.mender: Mender | None = None
        """Who fills holes in logs; a node that is being made has none yet."""
        self.reports = TaskReports(router, own, world.clock)
        self._scopes: dict[str, trio.CancelScope] = {}

    async def run(self) -> None:
        """Let time pass for them, until it is cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.reports.run)
            for queue in self.owned.values():
                self._nursery.start_soon(self._run_one, queue)
            while True:
                await self._world.clock.sleep(self._pause_s())
                for queue in list(self.owned.values()):
                    queue.tick()
                    await trio.lowlevel.checkpoint()

    def _pause_s(self) -> float:
        """Until the next task is due, and no longer than from one sweep to the next."""
        now_us = self._world.clock.utc_us()
        dues = (queue.machine.first_due_us for queue in self.owned.values())
        due_us = min((due for due in dues if due is not None), default=math.inf)
        return min(SWEEP_S, max(0.01, (due_us - now_us) / 1e6))

    async def _run_one(self, queue: OwnedQueue) -> None:
        with trio.CancelScope() as scope:
            self._scopes[queue.name] = scope
            await queue.run()

    def begin(self) -> None:
        """A new incarnation: what the one before has accepted is taken over from its logs."""
        for queue in self.owned.values():
            queue.lost = True
            queue.tasks.close()
        for scope in self._scopes.values():
            scope.cancel()
        self._scopes.clear()
        self.owned.clear()

    # What happens ---------------------------------------------------------------------------------

    def committed(self, logs: list[Log]) -> None:
        """Logs of this node have moved; those of queues bring tasks."""
        current = self._current()
        for log in logs:
            broker_id, topic = log.log_id
            if broker_id == current and topic.startswith(TASKS):
                self._queue(topic.removeprefix(TASKS), log).committed()

    def _queue(self, name: str, log: Log) -> OwnedQueue:
        queue = self.owned.get(name)
        if queue is None:
            queue = self.owned[name] = self._make(name, log)
        return queue

    def _make(self, name: str, log: Log) -> OwnedQueue:
        config = self._config
        machine = TaskQueue(
            name, self._retries.get(name, config.task_retry), 1, broker_id=log.log_id.broker_id,
            dead_keep_s=config.retain_dead_s,
        )  # fmt: skip
        tasks = TaskLog(self._world.files, log, self._room)
        queue = OwnedQueue(
            machine, tasks, self._own, self._world.clock, self._world.entropy,
            self._ready, self._report, self._is_mended,
        )  # fmt: skip
        if self._nursery is not None:
            self._nursery.start_soon(self._run_one, queue)
        return queue

    async def _is_mended(self, log: Log, hole: Hole) -> bool:
        return self.mender is not None and await wait_mended(self.mender, log, hole)

    def check(self, name: str) -> None:
        """Whether tasks may be published to a queue: BadTask, or LimitReached."""
        if name not in self.owned:
            check_queue(name)
            if len(self.owned) >= QUEUES_MAX:
                raise LimitReached(f"{len(self.owned)} queues; this node takes no more")

    # Those who work -------------------------------------------------------------------------------

    def poll(
        self,
        name: str,
        asker: Asker,
        home: BrokerId | None,
        tell: Callable[[str], None],
        worker: int,
        who: str,
        want: int,
        lease_s: float,
        hungry: int = 1,
    ) -> None:
        """Give what there is, or the home's share of it where others want some too; None is this
        node. Where so many workers of the home are `hungry`, one gets no more than its share of
        that. The asker is always answered; where it got less than it wants, `tell` is called with
        the queue's name once there is more."""
        self._tell_home[home] = tell
        queue = self.owned.get(name)
        homes = self._homes.get(name)
        if homes is None:
            if len(self._homes) >= QUEUES_MAX:
                asker.given(nothing(self._current(), name))
                return
            homes = self._homes[name] = Homes()
        available = 0 if queue is None else queue.machine.available
        of_home = homes.share(home, available, self._world.clock.monotonic())
        share = min(want, available, -(-of_home // hungry))
        giving = Giving(self, asker, homes, home, want)
        if queue is None or not share:
            giving.given(nothing(self._current(), name))
        else:
            queue.poll(giving, worker, who, share, lease_s)

    def gave(self, giving: "Giving", tasks: Given) -> None:
        """A home has its answer. Only now it is asked whether there is more: what has come since it
        polled, while its tasks were read from the disk, it must hear of after the answer."""
        name = tasks.queue
        queue = self.owned.get(name)
        left = 0 if queue is None else queue.machine.available
        told = giving.homes.gave(giving.home, giving.want, len(tasks.numbers), left)
        self._tell_homes(name, told)

    def settle(self, settler: Settler, message: TaskDone, worker: int) -> None:
        verb = verb_of(message)
        queue = self.owned.get(message.queue)
        if queue is None or message.owner != queue.tasks.log_id.broker_id:
            places = range(len(message.numbers))
            settler.settled("local", [(place, LEASE_EXPIRED) for place in places])
            return
        queue.settle(
            settler, worker, verb, message.numbers, message.fences, message.error, message.lease_s
        )

    def is_here(self, owner: BrokerId) -> bool:
        """Whether it is this node, now or before."""
        return self._is_own(owner)

    def gone(self, home: BrokerId, tell: Callable[[str], None]) -> None:
        """Another node asks no more; a later connection of the same node may ask on."""
        if self._tell_home.get(home) != tell:
            return
        del self._tell_home[home]
        for homes in self._homes.values():
            homes.gone(home)

    def _ready(self, name: str) -> None:
        homes = self._homes.get(name)
        if homes is not None:
            self._tell_homes(name, homes.ready())

    def _tell_homes(self, name: str, homes: list[BrokerId | None]) -> None:
        for home in homes:
            tell = self._tell_home.get(home)
            if tell is not None:
                tell(name)

    def _report(self, queue: OwnedQueue, report: Report) -> None:
        if report.kind == "failed":
            self._tell(TASK_DEAD, queue=queue.name, count=len(report.numbers))
        self.reports.report(queue, report)

    # Tasks that somebody else has too -------------------------------------------------------------

    def extents(self, origin: BrokerId, name: str) -> Numbers:
        """What this node has or had of an origin's queue, and has not given up: all, where it is
        this incarnation itself."""
        found = Numbers()
        queue = self.owned.get(name)
        if queue is None:
            return found
        if origin == queue.owner:
            if queue.machine.extent:
                found.add_run(1, queue.machine.extent)
            for first, last in queue.machine.given_up.runs():
                found.discard_run(first, last)
            return found
        for first, last in queue.machine.taken_of(origin):
            found.add_run(first, last)
        return found

    async def done_of(
        self, origin: BrokerId, name: str | None = None
    ) -> tuple[dict[str, Numbers], bool]:
        """By queue, or in one queue, what was taken over from an origin and is done here, by its
        number there; and whether that is all of it."""
        done: dict[str, Numbers] = {}
        are_all = True
        for queue in [each for each in self.owned.values() if name in (None, each.name)]:
            numbers, is_all = await queue.done_from(origin)
            if numbers or queue.owner == origin or any(queue.machine.taken_of(origin)):
                done[queue.name] = numbers
                are_all = are_all and is_all
        return done, are_all

    def remembered(self, name: str, task_id: str) -> Row | None:
        """What is known of a task that was given up."""
        queue = self.owned.get(name)
        return None if queue is None else queue.machine.remembered.get(task_id)

    async def give_up(self, origin: BrokerId, name: str, numbers: Numbers) -> None:
        """Another node has these tasks of an origin: here they do not go on."""
        queue = self.owned.get(name)
        if queue is not None:
            carried = await queue.carried_from(origin)
            those = {there: here for there, here in carried.items() if there in numbers}
            if those:
                ways = await queue.ways_of({task_id for _, task_id in those.values()})
                queue.handle(GivenUp(origin, those, ways))

    async def finish(self, origin: BrokerId, name: str, numbers: Numbers) -> None:
        """Another node has finished tasks that are here, by their numbers in the log of the origin,
        from which they may have been carried."""
        queue = self.owned.get(name)
        if queue is None:
            return
        here = await queue.numbers_of(origin, numbers)
        if here:
            queue.handle(FinishedElsewhere(here))

    # Retention ------------------------------------------------------------------------------------

    def pinned_from(self, log_id: LogId) -> MsgNo | None:
        """From where on a log of this incarnation is needed."""
        topic = log_id.topic
        if log_id.broker_id != self._current():
            return None
        if topic.startswith(TASKS):
            queue = self.owned.get(topic.removeprefix(TASKS))
            return None if queue is None else MsgNo(queue.machine.floor)
        queue = self.owned.get(topic.removeprefix(JOURNAL))
        return None if queue is None else queue.pinned_no


def topic_of(queue: str) -> Topic:
    """What access rules know a queue by."""
    return Topic(TASKS + queue)


def verb_of(message: TaskDone) -> Verb:
    """BadTask where it is none, or the columns do not fit each other."""
    verb = VERBS.get(message.verb)
    numbers, fences = len(message.numbers), len(message.fences)
    if verb is None or numbers != fences:
        raise BadTask(
            f"{message.verb!r:.40} of {numbers} tasks with {fences} fences; expected one of "
            f"{', '.join(VERBS)}, and a fence for each"
        )
    return verb
