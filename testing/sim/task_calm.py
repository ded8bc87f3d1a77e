"""When all is settled every task is done at once and once, and in order."""

from typing import Any, Final

import trio

from busnode.client import Task
from busnode.testing.sim.history import Unsettled
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_history import TaskAnswered
from busnode.testing.sim.workload.enqueueing import QUEUES, Enqueuer
from busnode.testing.sim.workload.task_clients import TaskClients

CALM_S: Final = 20.0
ORDER: Final = "order"
"""A queue of its own, in which nobody else works."""

IDLE: Final = "o0"
DILIGENT: Final = "o1"

COUNT: Final = 6
LEASE_S: Final = 1.0
EXPIRED_S: Final = 3.0
"""By then such a lease was swept."""


async def try_tasks(stage: Stage, clients: TaskClients) -> None:
    """What is not done is noted."""
    ids: list[str] = []
    with trio.move_on_after(CALM_S):
        for enqueuer in clients.enqueuers:
            bus = clients.buses[enqueuer.name]
            for queue in QUEUES:
                for more in ({}, {"priority": 5}, {"delay": 0.5}):
                    wishes: dict[str, Any] = {"retry": "none", **more}
                    ids += await enqueuer.enqueue(bus, queue, wishes, count=2)
        ids += await _try_order(stage, clients, clients.enqueuers[0])
        while _undone(stage, ids):
            await trio.sleep(0.1)
    wanted = len(clients.enqueuers) * len(QUEUES) * 3 * 2 + COUNT
    if len(ids) < wanted:
        text = f"in fair weather: {wanted - len(ids)} of {wanted} tasks were not taken"
        stage.history.add(Unsettled(stage.now, text))
    for each in _undone(stage, ids):
        stage.history.add(Unsettled(stage.now, f"in fair weather: {each} was not completed"))


def _undone(stage: Stage, ids: list[str]) -> list[str]:
    done = {
        event.id
        for event in stage.history.of(TaskAnswered)
        if event.verb == "complete" and not event.code
    }
    return [each for each in ids if each not in done]


async def _try_order(stage: Stage, clients: TaskClients, enqueuer: Enqueuer) -> list[str]:
    """The first is given out, and comes back because its worker does nothing. Then it is the first
    again."""
    bus = clients.buses[enqueuer.name]
    ids = await enqueuer.enqueue(bus, ORDER, {"retry": "0,0,0"}, count=COUNT)
    async with stage.cluster.client(*stage.names, name=IDLE) as idle:
        await _take(clients, idle.queue(ORDER).poll(lease=LEASE_S), IDLE)
        await trio.sleep(EXPIRED_S)
    async with stage.cluster.client(*stage.names, name=DILIGENT) as diligent:
        for _ in ids:
            task = await _take(clients, diligent.queue(ORDER).poll(), DILIGENT)
            saying = clients.notes.saying(DILIGENT, "complete", [task])
            saying.told(await task.complete())
    return ids


async def _take(clients: TaskClients, polls: Any, who: str) -> Task:
    asked_at = clients.notes.stage.now
    async with polls:
        task: Task = await anext(polls)
    clients.notes.given(who, task, LEASE_S, asked_at)
    return task
