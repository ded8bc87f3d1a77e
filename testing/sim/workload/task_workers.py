"""Those who work on tasks: they complete, fail, reject, release and extend them, are too slow, say
things twice, leave, die, and come back at another node."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from busnode.client import Bus, Queue, Task
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.life import HostOfLife
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.workload.task_notes import TaskNotes
from busnode.wire.errors import BusnodeError

AGAIN_S: Final = 0.3
LIFE_S: Final = (2.0, 15.0)
LEASES_S: Final = (1.0, 2.0, 4.0)
WORK_S: Final = (0.0, 0.3)

WAYS: Final = {
    "complete": 50, "twice": 6, "fail": 12, "reject": 8, "release": 6, "extend": 6, "late": 8,
    "silent": 4,
}  # fmt: skip


class TaskWorker:
    """One of them, through all its lives. It works on one queue in each."""

    def __init__(
        self, stage: Stage, notes: TaskNotes, name: str, queues: tuple[str, ...], many: int = 1
    ) -> None:
        """With `many` it takes so many at once, and says the same of all."""
        self.name = name
        self.is_diligent = False
        """Whether it does nothing any more but what it should, and stays."""
        self._stage = stage
        self._notes = notes
        self._queues = queues
        self._many = many
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._lives = 0

    async def run(self) -> None:
        while True:
            self._lives += 1
            network = HostOfLife(self._stage.cluster.network.host(self.name))
            scope = trio.CancelScope()
            try:
                with scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._end, network, scope)
                        await self._live(network)
            except* BusnodeError:
                pass  # the next life begins at another node
            await trio.sleep(AGAIN_S)

    async def _end(self, network: HostOfLife, scope: trio.CancelScope) -> None:
        """It dies, or leaves as one should."""
        await trio.sleep(self._entropy.between(*LIFE_S))
        if self.is_diligent:
            return
        if self._entropy.chance(0.5):
            network.die()
            self._stage.cluster.network.reset(self.name)
        scope.cancel()

    async def _live(self, network: HostOfLife) -> None:
        stage, entropy = self._stage, self._entropy
        first = entropy.below(len(stage.names))
        homes = stage.names[first:] + stage.names[:first]
        world = stage.cluster.world(self.name, f"life {self._lives}", network=network)
        async with stage.cluster.client(
            *homes, name=self.name, deadline_s=3600.0, world=world
        ) as bus:
            while True:
                try:
                    await self._work(bus)
                except BusnodeError:
                    await trio.sleep(AGAIN_S)

    async def _work(self, bus: Bus) -> None:
        """On one queue for a while, then on another."""
        entropy = self._entropy
        queue = bus.queue(entropy.choose(self._queues))
        lease_s = entropy.choose(LEASES_S)
        prefetch = entropy.choose((1, 1, 3)) * self._many
        asked_at = self._stage.now
        until = self._stage.now + entropy.between(1.0, 6.0)
        async with (
            trio.open_nursery() as later,
            queue.poll_many(self._many, lease=lease_s, prefetch=prefetch) as polls,
        ):
            while self._stage.now < until:
                tasks: list[Task] = []
                with trio.move_on_at(until):
                    tasks = await anext(polls)
                for task in tasks:
                    self._notes.given(self.name, task, lease_s, asked_at)
                for group in _by_owner(tasks):
                    await self._treat(queue, group, lease_s, later)
                if prefetch == 1:
                    asked_at = self._stage.now

    async def _treat(
        self, queue: Queue, tasks: list[Task], lease_s: float, later: trio.Nursery
    ) -> None:
        entropy = self._entropy
        way = "complete"
        if not self.is_diligent:
            way = entropy.choose_weighted(list(WAYS), list(WAYS.values()))
        say = partial(self._say, tasks)
        if way == "silent":
            return
        if way == "late":
            later.start_soon(self._late, queue, tasks, lease_s)
            return
        await trio.sleep(entropy.between(*WORK_S))
        match way:
            case "fail":
                await say("fail", lambda: queue.fail(tasks, "it failed"))
            case "reject":
                await say("reject", lambda: queue.fail(tasks, "never", permanent=True))
            case "release":
                await say("release", lambda: queue.release(tasks))
            case "extend":
                await say("extend", lambda: queue.extend(tasks, lease_s))
                await trio.sleep(entropy.between(0.0, lease_s))
                await say("complete", lambda: queue.complete(tasks))
            case "twice":
                await say("complete", lambda: queue.complete(tasks))
                await say("complete", lambda: queue.complete(tasks))
            case _:
                await say("complete", lambda: queue.complete(tasks))

    async def _late(self, queue: Queue, tasks: list[Task], lease_s: float) -> None:
        """When the lease is over, or nearly."""
        await trio.sleep(lease_s * self._entropy.between(0.9, 2.5))
        verb = self._entropy.choose(("complete", "complete", "fail"))
        if verb == "complete":
            await self._say(tasks, verb, lambda: queue.complete(tasks))
        else:
            await self._say(tasks, verb, lambda: queue.fail(tasks, "it failed late"))

    async def _say(
        self, tasks: list[Task], verb: str, say: Callable[[], Awaitable[str | None]]
    ) -> None:
        saying = self._notes.saying(self.name, verb, tasks)
        try:
            level = await say()
        except BusnodeError as error:
            saying.told(error=error)
        else:
            saying.told(level)


def _by_owner(tasks: list[Task]) -> list[list[Task]]:
    found: dict[bytes, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.owner, []).append(task)
    return list(found.values())
