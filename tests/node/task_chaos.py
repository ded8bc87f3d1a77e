"""Chaos: tasks are enqueued and worked on while nodes are killed, and one loses its disk.

Each task that was acked ends as completed or as a dead letter. Some come more than once; why, is
counted. What may be lost is what was acked as `local` by the node whose disk was lost. Run by
`scripts/chaos tasks`, and in short by the tests.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import trio

from busnode.client import NotSettled, Queue, Task, connect
from busnode.wire.errors import BusnodeError

from .process_cluster import PATIENCE_S, Cluster, cluster_of
from .task_history import Delivery, History, Said
from .trouble import Kinds, Trouble, shuffled_url, tell

QUEUE: Final = "chaos"
PRODUCERS: Final = 4
WORKERS: Final = 10
TASKS_PER_S: Final = 270
LEASE_S: Final = 4.0
RETRY: Final = "0,0.2,0.5,1,1"
ADOPT_AFTER: Final = "3s"

FATES: Final = {"ok": 880, "flaky": 60, "later": 30, "rejected": 10, "failing": 10, "forgotten": 10}
"""What becomes of tasks, of a thousand: `flaky` ones fail twice, `later` ones are delayed,
`forgotten` ones are not answered for the first time, so that their lease runs out."""


class Producer:
    """Enqueues its share of the tasks, evenly over the time there is."""

    def __init__(self, number: int, history: History) -> None:
        self._number = number
        self._history = history

    async def run(self, cluster: Cluster, chance: Random, tasks: int, seconds: float) -> None:
        began = time.monotonic()
        url = shuffled_url(cluster, chance)
        name = f"producer {self._number}"
        async with connect(url, name=name, deadline_s=PATIENCE_S) as bus:
            queue = bus.queue(QUEUE, retry=RETRY)
            done = 0
            while done < tasks:
                count = min(chance.choice([1, 1, 1, 5, 20]), tasks - done)
                await self._enqueue(queue, chance, done, count)
                done += count
                await trio.sleep(max(0.0, began + seconds * done / tasks - time.monotonic()))

    async def _enqueue(self, queue: Queue, chance: Random, first: int, count: int) -> None:
        (fate,) = chance.choices(list(FATES), list(FATES.values()))
        payloads = [b"%d %d %s" % (self._number, first + n, fate.encode()) for n in range(count)]
        delay = chance.uniform(0.1, 8.0) if fate == "later" else None
        receipts = await queue.enqueue_many(payloads, delay=delay)
        for payload, receipt in zip(payloads, receipts, strict=True):
            self._history.enqueued(payload, receipt)


class Worker:
    """Does with each task what is written on it."""

    def __init__(self, number: int, history: History) -> None:
        self._number = number
        self._history = history

    async def run(self, cluster: Cluster, chance: Random) -> None:
        name = f"worker {self._number}"
        while True:
            url = shuffled_url(cluster, chance)
            async with connect(url, name=name, deadline_s=PATIENCE_S) as bus:
                queue = bus.queue(QUEUE)
                with trio.move_on_after(chance.uniform(2.0, 20.0)):
                    if self._number % 2:
                        async for task in queue.poll(lease=LEASE_S, prefetch=2):
                            with trio.CancelScope(shield=True):
                                await self._work(queue, [task])
                    else:
                        async for tasks in queue.poll_many(10, lease=LEASE_S):
                            with trio.CancelScope(shield=True):
                                await self._work(queue, tasks)

    async def _work(self, queue: Queue, tasks: Sequence[Task]) -> None:
        words: dict[Said, list[tuple[Task, Delivery]]] = {}
        for task in tasks:
            delivery = self._history.delivered(task)
            delivery.said = word(task)
            words.setdefault(delivery.said, []).append((task, delivery))
        for said, rows in words.items():
            if said != "nothing":
                await self._say(queue, said, rows)

    async def _say(self, queue: Queue, said: Said, rows: list[tuple[Task, Delivery]]) -> None:
        tasks = [task for task, _ in rows]
        refused: set[str] = set()
        # Of those that were not refused it is not said here how safe they are.
        level = "local"
        try:
            if said == "complete":
                level = await queue.complete(tasks)
            else:
                level = await queue.fail(tasks, "as it is written", permanent=said == "reject")
        except NotSettled as error:
            refused = {task.id for task in error.tasks}
        except BusnodeError:
            refused = {task.id for task in tasks}
        for task, delivery in rows:
            if task.id not in refused:
                self._history.settled(task, delivery, level)


def word(task: Task) -> Said:
    """What a worker says of a task."""
    fate = task.payload.split()[2].decode()
    if fate == "failing" or (fate == "flaky" and task.attempt <= 2):
        return "fail"
    if fate == "rejected":
        return "reject"
    return "nothing" if fate == "forgotten" and task.attempt == 1 else "complete"


class TaskChaos:
    """One run, from one seed. The processors and the disk have their own say in it."""

    def __init__(self, cluster: Cluster, seed: int, kinds: Kinds) -> None:
        self._cluster = cluster
        self._chance = Random(seed)
        self._trouble = Trouble(cluster, self._chance, kinds)
        self.history = History(self._trouble)

    async def run(self, seconds: float, progress: Callable[[str], None]) -> History:
        await self._trouble.whole()
        async with trio.open_nursery() as working:
            for number in range(WORKERS):
                worker = Worker(number, self.history)
                working.start_soon(worker.run, self._cluster, self._another_chance())
            working.start_soon(tell, progress, lambda: self.history)
            async with trio.open_nursery() as producing:
                tasks = round(TASKS_PER_S * seconds / PRODUCERS)
                for number in range(PRODUCERS):
                    producer = Producer(number, self.history)
                    work = self._cluster, self._another_chance(), tasks, seconds
                    producing.start_soon(producer.run, *work)
                end_at = time.monotonic() + seconds
                while time.monotonic() < end_at:
                    await self._trouble.strike()
            await self._settle()
            working.cancel_scope.cancel()
        return self.history

    def _another_chance(self) -> Random:
        return Random(self._chance.random())

    async def _settle(self) -> None:
        """Wait until no node has a task to be done, as long as something happens."""
        async with connect(self._cluster.url(), name="auditor", deadline_s=PATIENCE_S) as bus:
            queue = bus.queue(QUEUE)
            seen, since = self.history.deliveries, time.monotonic()
            while time.monotonic() - since < PATIENCE_S:
                status = await queue.status()
                alive = (
                    status.ready
                    + status.delayed
                    + status.retrying
                    + status.leased
                    + status.settling
                )
                if not (alive or status.silent or status.orphans):
                    break
                await trio.sleep(0.2)
                if self.history.deliveries != seen:
                    seen, since = self.history.deliveries, time.monotonic()
            letters = await queue.dead.list()
        self.history.end({letter.id for letter in letters})


async def task_chaos(
    folder: Path,
    seconds: float,
    seed: int,
    nodes: int,
    kinds: Kinds,
    progress: Callable[[str], None],
) -> History:
    async with cluster_of(folder, nodes, adopt_after=ADOPT_AFTER) as cluster:
        return await TaskChaos(cluster, seed, kinds).run(seconds, progress)
