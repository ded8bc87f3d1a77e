"""Those who ask, and those who answer."""

from collections.abc import Callable
from typing import Final

import trio

from busnode.client import Bus, Request
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.history import Answered, Asked, Served
from busnode.testing.sim.stage import Stage
from busnode.wire.errors import BusnodeError

TOPIC: Final = "/ask/echo"
TIMEOUT_S: Final = 3.0
PAUSE_S: Final = (0.3, 1.5)
AGAIN_S: Final = 0.5


class Requester:
    """Asks one thing after the other; each has an answer, or a word why not."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.unanswered: dict[bytes, float] = {}
        self._stage = stage
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._count = 0

    async def run(self, bus: Bus, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await trio.sleep(self._entropy.between(*PAUSE_S))
            await self.ask(bus)

    async def ask(self, bus: Bus) -> bool:
        """Whether somebody answered."""
        self._count += 1
        payload = f"{self.name}-{self._count}".encode()
        stage = self._stage
        stage.history.add(Asked(stage.now, self.name, payload))
        self.unanswered[payload] = stage.now
        answer, code = b"", ""
        try:
            answer = (await bus.request(TOPIC, payload, timeout=TIMEOUT_S)).payload
        except BusnodeError as error:
            code = error.code
        del self.unanswered[payload]
        stage.history.add(Answered(stage.now, self.name, payload, answer, code))
        return not code


async def provide(stage: Stage, name: str, homes: list[str], buses: dict[str, Bus]) -> None:
    """Answer for ever. Its bus is kept under its name."""

    def echo(request: Request) -> bytes:
        stage.history.add(Served(stage.now, name, request.payload))
        return b"echo " + request.payload

    while True:
        try:
            async with (
                stage.cluster.client(*homes, name=name, deadline_s=3600.0) as bus,
                bus.provide(TOPIC, echo),
            ):
                buses[name] = bus
                await trio.sleep_forever()
        except BusnodeError:
            await trio.sleep(AGAIN_S)
