"""Tells those who listen to the system topics which tasks were completed and which have failed for
good, with all that is known of each."""

import logging
from collections import deque
from typing import Any, Final

import msgpack
import trio

from busnode.node.own_messages import OwnMessages
from busnode.node.router import Router
from busnode.node.task_queue import OwnedQueue
from busnode.tasks.events import Report
from busnode.wire.batches import BODY_BYTES_MAX, Columns
from busnode.wire.errors import BusnodeError
from busnode.wire.frames import Flags
from busnode.wire.ids import Topic
from busnode.wire.limits import KIB
from busnode.world.clock import Clock

logger = logging.getLogger(__name__)

TOPICS: Final = {
    "completed": Topic("/$sys/task/completed"),
    "failed": Topic("/$sys/task/failed"),
}

WAITING_MAX: Final = 10_000
"""Tasks that are still to be told of. What comes faster is not told: it is not persistent."""

TOLD_AT_ONCE: Final = 100
"""Tasks in one batch."""

BATCH_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB
ROW_BYTES: Final = 64
"""What a body has of each message beside its payload."""


class TaskReports:
    def __init__(self, router: Router, own: OwnMessages, clock: Clock) -> None:
        self._router = router
        self._own = own
        self._clock = clock
        self._waiting: deque[tuple[OwnedQueue, Report]] = deque()
        self._waiting_count = 0
        self._woken = trio.Event()
        self.passed_over = 0
        """Tasks that nobody was told of, because there were too many at once."""

    def report(self, queue: OwnedQueue, report: Report) -> None:
        if not len(self._router.route(TOPICS[report.kind].encode())):
            return  # nobody listens
        if self._waiting_count >= WAITING_MAX:
            self.passed_over += len(report.numbers)
            return
        self._waiting_count += len(report.numbers)
        self._waiting.append((queue, report))
        self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                queue, report = self._waiting.popleft()
                self._waiting_count -= len(report.numbers)
                try:
                    await self._tell(queue, report)
                except (BusnodeError, OSError) as error:
                    logger.warning("tasks of queue %s are not told of: %s", queue.name, error)

    async def _tell(self, queue: OwnedQueue, report: Report) -> None:
        payloads: list[bytes] = []
        size_bytes = 0
        for number in report.numbers:
            payload = await self._payload(queue, report, number)
            if payload is None:
                continue
            if payloads and (
                len(payloads) == TOLD_AT_ONCE or size_bytes + len(payload) > BATCH_BYTES_MAX
            ):
                self._publish(queue, report, payloads)
                payloads, size_bytes = [], 0
            payloads.append(payload)
            size_bytes += len(payload) + ROW_BYTES
        if payloads:
            self._publish(queue, report, payloads)

    async def _payload(self, queue: OwnedQueue, report: Report, number: int) -> bytes | None:
        batch = await queue.batch(number)
        if batch is None:
            return None
        payload, headers, task_id, enqueued_us = batch.task(number, queue.tasks.log_id.broker_id)
        told: dict[str, Any] = {
            "id": task_id,
            "queue": queue.name,
            "payload": payload,
            "headers": headers,
            "attempts": report.attempts(number),
            "history": [list(each) for each in report.history(number)],
            "worker": report.worker,
            "enqueued_us": enqueued_us,
            "at_us": report.at_us,
        }
        packed = msgpack.packb(told)
        assert isinstance(packed, bytes)
        return packed if len(packed) <= BATCH_BYTES_MAX else None

    def _publish(self, queue: OwnedQueue, report: Report, payloads: list[bytes]) -> None:
        columns = Columns(payloads, headers=[{"queue": queue.name}] * len(payloads))
        self._own.publish(TOPICS[report.kind], columns, self._clock.utc_us(), Flags.GLOBAL)
        self._own.flush()
