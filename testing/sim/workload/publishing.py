"""Those who publish: one by one, in bursts, with a mirror or not at all, for queues, and live."""

from collections.abc import Callable
from typing import Final

import trio

from busnode.client import Bus
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.history import Acked, NotAcked, Sent
from busnode.testing.sim.stage import Stage
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import LogId, Topic

TOPICS: Final = 3
LONG_BYTES: Final = 900
"""Some messages are long, so that segments of a few KB are rolled."""


class Publisher:
    """One client that publishes until it is told to stop. What it has sent has an answer then."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        kind: str,
        pause_s: tuple[float, float],
        burst: int = 1,
        at_once: int = 1,
    ) -> None:
        """A `burst` goes to one topic as fast as it can; `at_once` go to any, each by itself."""
        self.name = name
        self.kind = kind
        self.unanswered: dict[bytes, float] = {}
        """Payloads that were sent and have no answer yet, and since when."""
        self._stage = stage
        self._pause_s = pause_s
        self._burst = burst
        self._at_once = at_once
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._count = 0

    async def run(self, bus: Bus, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await trio.sleep(self._entropy.between(*self._pause_s))
            if self._burst > 1:
                await self._publish_burst(bus)
            else:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._at_once):
                        nursery.start_soon(self.publish, bus)

    def _next(self) -> tuple[str, bytes]:
        self._count += 1
        payload = f"{self.name}-{self._count} ".encode()
        if self._entropy.chance(0.2):
            payload = payload.ljust(1 + self._entropy.below(LONG_BYTES), b".")
        prefix = {"live": "/live", "queue": "/queue"}.get(self.kind, "/work")
        return f"{prefix}/{self._entropy.below(TOPICS)}", payload

    async def publish(self, bus: Bus) -> None:
        topic, payload = self._next()
        self._sent(bus, topic, payload)
        try:
            receipt = await bus.publish(
                topic,
                payload,
                persistent=self.kind != "live",
                require="mirrored" if self.kind == "mirrored" else None,
            )
        except BusnodeError as error:
            self._refused(payload, error)
            return
        self.unanswered.pop(payload, None)
        if receipt is not None:
            self._acked(bus, payload, LogId(receipt.broker_id, Topic(topic)), receipt.msg_no,
                        receipt.level)  # fmt: skip

    async def _publish_burst(self, bus: Bus) -> None:
        topic, first = self._next()
        payloads = [first, *(self._next()[1] for _ in range(self._entropy.below(self._burst)))]
        for payload in payloads:
            self._sent(bus, topic, payload)
        try:
            async with bus.publisher(topic, persistent=True) as out:
                await out.send_many(payloads)
                receipts = await out.flush()
        except BusnodeError as error:
            for payload in payloads:
                self._refused(payload, error)
            return
        for payload, receipt in zip(payloads, receipts, strict=True):
            self.unanswered.pop(payload, None)
            log_id = LogId(receipt.broker_id, Topic(topic))
            self._acked(bus, payload, log_id, receipt.msg_no, receipt.level)

    def _sent(self, bus: Bus, topic: str, payload: bytes) -> None:
        self.unanswered[payload] = self._stage.now
        connections = bus.statistics().connections
        event = Sent(self._stage.now, self.name, payload, topic, self.kind, connections)
        self._stage.history.add(event)

    def _acked(self, bus: Bus, payload: bytes, log_id: LogId, msg_no: int, level: str) -> None:
        stage = self._stage
        safe_at = stage.had(log_id, msg_no)
        connections = bus.statistics().connections
        stage.history.add(
            Acked(stage.now, self.name, payload, log_id, msg_no, level, safe_at, connections)
        )

    def _refused(self, payload: bytes, error: BusnodeError) -> None:
        self.unanswered.pop(payload, None)
        self._stage.history.add(NotAcked(self._stage.now, self.name, payload, error.code))
