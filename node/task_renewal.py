"""Keeps what queues need from growing as old as retention allows.

Logs expire by age, here and on every copy. So what is unfinished for long, a task that is due in a
week or a dead letter, is carried: written again at the end of its queue's log, well before its
record may go. In the same way a journal gets a snapshot now and then, however little happens.
"""

import logging
from collections import deque
from typing import Final

import trio

from busnode.node.own_messages import OwnMessages
from busnode.node.task_carrying import Carrying
from busnode.node.task_queue import OwnedQueue
from busnode.node.task_queues import TaskQueues
from busnode.tasks.recovery import carry
from busnode.wire.errors import BusnodeError
from busnode.world.clock import Clock

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
SAMPLES: Final = 32
"""How many times in half the retention it is noted how far a queue has got: what is carried is at
most so much younger than it must be."""


class TaskRenewal:
    def __init__(self, queues: TaskQueues, own: OwnMessages, clock: Clock, retain_s: float) -> None:
        self._queues = queues
        self._own = own
        self._clock = clock
        self._half_s = retain_s / 2
        self._every_s = min(LOOK_EVERY_S, self._half_s / SAMPLES)
        self._extents: dict[OwnedQueue, deque[tuple[float, int]]] = {}
        """By queue: when it had got how far, the oldest first."""
        self.carried = 0

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._every_s)
            queues = list(self._queues.owned.values())
            self._extents = {queue: self._extents.get(queue, deque()) for queue in queues}
            for queue in queues:
                try:
                    await self._renew(queue)
                except (BusnodeError, OSError) as error:
                    # What could not be renewed now is so the next time: there is half of the time.
                    logger.error("queue %s was not renewed: %s", queue.name, error)
                await trio.lowlevel.checkpoint()

    async def _renew(self, queue: OwnedQueue) -> None:
        now = self._clock.monotonic()
        extents = self._extents[queue]
        if not extents or now - extents[-1][0] >= self._half_s / SAMPLES:
            extents.append((now, queue.machine.extent))
        old_no = 0
        while extents and now - extents[0][0] >= self._half_s:
            old_no = extents.popleft()[1]
        if old_no >= queue.machine.floor:
            await self._carry(queue, old_no + 1)
        if now - queue.snapshot_at >= self._half_s:
            queue.snapshot()

    async def _carry(self, queue: OwnedQueue, before_no: int) -> None:
        carrying = Carrying(queue.name, self._own, self._clock)
        fence = queue.machine.fence
        for number, row in list(queue.machine.carry_before(before_no)):
            batch = await queue.batch(number)
            if batch is None:
                continue  # it becomes a dead letter when it is given out
            at = number - batch.first_no
            options = None if batch.options is None else batch.options[at]
            headers = None if batch.columns.headers is None else batch.columns.headers[at]
            enqueued_us = batch.enqueued_us()[at]
            carried = carry(queue.owner, number, enqueued_us, options, row, fence)
            await carrying.add(batch.columns.payloads[at], headers or {}, carried)
        await carrying.finish()
        self.carried += carrying.count
