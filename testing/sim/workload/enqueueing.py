"""Those who enqueue tasks, of all kinds; and one who looks after dead letters."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import trio

from busnode.client import Bus
from busnode.client.messages import EPOCH
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_history import (
    LetterActed,
    LetterAsked,
    TaskAcked,
    TaskRefused,
    TaskSent,
)
from busnode.testing.sim.task_platters import TASKS, name_of
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import LogId, Topic

QUEUES: Final = ("jobs", "mail")
RETRIES: Final = (
    "0,0.5,1", "0,0.2,0.2,2", "none", "exponential:first=0.2,factor=2,cap=1,attempts=4",
)  # fmt: skip
DELAY_S: Final = (0.3, 8.0)
FAR_S: Final = (600.0, 900.0)
"""Longer than a run."""

WINDOW_S: Final = 5.0
KEYS: Final = 6
LONG_BYTES: Final = 700

WISHES: Final = {"plain": 8, "delayed": 4, "due": 2, "far": 2, "prioritised": 4, "keyed": 4}


class Enqueuer:
    """One client that enqueues until it is told to stop. What it has sent has an answer then."""

    def __init__(
        self, stage: Stage, name: str, pause_s: tuple[float, float], burst: int = 1
    ) -> None:
        self.name = name
        self.unanswered: dict[bytes, float] = {}
        self._stage = stage
        self._pause_s = pause_s
        self._burst = burst
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._count = 0

    async def run(self, bus: Bus, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await trio.sleep(self._entropy.between(*self._pause_s))
            await self.enqueue(bus, self._entropy.choose(QUEUES), self._wishes())

    def _wishes(self) -> dict[str, Any]:
        entropy = self._entropy
        wishes: dict[str, Any] = {"retry": entropy.choose(RETRIES)}
        match entropy.choose_weighted(list(WISHES), list(WISHES.values())):
            case "delayed":
                wishes["delay"] = entropy.between(*DELAY_S)
            case "due":
                wishes["due"] = entropy.between(*DELAY_S)
            case "far":
                wishes["delay"] = entropy.between(*FAR_S)
            case "prioritised":
                wishes["priority"] = entropy.choose((-3, 5, 9))
            case "keyed":
                wishes["key"] = f"key {entropy.below(KEYS)}"
                wishes["window"] = WINDOW_S
            case _:
                pass
        if entropy.chance(0.2):
            wishes["require"] = "mirrored"
        return wishes

    async def enqueue(
        self, bus: Bus, queue: str, wishes: dict[str, Any], count: int | None = None
    ) -> list[str]:
        """One or more of the same kind; the ids of those that were taken."""
        if count is None:
            count = 1 + self._entropy.below(self._burst)
        payloads = [self._next() for _ in range(count)]
        now = self._stage.now
        wait_s: float = wishes.get("delay") or wishes.get("due") or 0.0
        if "due" in wishes:
            # As whoever enqueues has it, whose clock is never wrong here.
            due_us = SimClock().utc_us() + round(wait_s * 1e6)
            wishes = {**wishes, "due": EPOCH + timedelta(microseconds=due_us)}
        for payload in payloads:
            self.unanswered[payload] = now
            key = wishes.get("key", "")
            sent = TaskSent(now, self.name, payload, queue, now + wait_s, key, wishes["retry"])
            self._stage.history.add(sent)
        try:
            if count == 1:
                receipts = [await bus.queue(queue).enqueue(payloads[0], **wishes)]
            else:
                key = wishes.pop("key", None)
                keys = None if key is None else [key] * count
                receipts = await bus.queue(queue).enqueue_many(payloads, keys=keys, **wishes)
        except BusnodeError as error:
            for payload in payloads:
                del self.unanswered[payload]
                refused = TaskRefused(self._stage.now, self.name, payload, error.code)
                self._stage.history.add(refused)
            return []
        for payload, receipt in zip(payloads, receipts, strict=True):
            del self.unanswered[payload]
            log_id = LogId(receipt.broker_id, Topic(TASKS + queue))
            safe_at = self._stage.had(log_id, receipt.msg_no)
            self._stage.history.add(
                TaskAcked(
                    self._stage.now, self.name, payload, name_of(queue, receipt.id), log_id,
                    receipt.msg_no, receipt.level, safe_at,
                )
            )  # fmt: skip
        return [name_of(queue, receipt.id) for receipt in receipts]

    def _next(self) -> bytes:
        self._count += 1
        payload = f"{self.name}-{self._count} ".encode()
        if self._entropy.chance(0.2):
            payload = payload.ljust(1 + self._entropy.below(LONG_BYTES), b".")
        return payload


class LetterKeeper:
    """Looks at dead letters now and then, requeues some and deletes others."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.unanswered: dict[bytes, float] = {}
        self._stage = stage
        self._entropy = SimEntropy(f"{stage.seed}/{name}")

    async def run(self, bus: Bus, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await trio.sleep(self._entropy.between(0.5, 3.0))
            queue = self._entropy.choose(QUEUES)
            try:
                await self._look(bus, queue, is_over)
            except BusnodeError:
                continue

    async def _look(self, bus: Bus, queue: str, is_over: Callable[[], bool]) -> None:
        dead = bus.queue(queue).dead
        letters = await dead.list()
        ids = {"requeue": list[str](), "delete": list[str](), "leave": list[str]()}
        for letter in letters:
            act = self._entropy.choose_weighted(list(ids), (3, 2, 5))
            ids[act].append(letter.id)
        for act, those in ids.items():
            if act == "leave" or not those or is_over():
                continue
            for each in those:
                asked = LetterAsked(self._stage.now, self.name, act, name_of(queue, each))
                self._stage.history.add(asked)
            done = await (dead.requeue(*those) if act == "requeue" else dead.delete(*those))
            for each in done:
                acted = LetterActed(self._stage.now, self.name, act, name_of(queue, each))
                self._stage.history.add(acted)
