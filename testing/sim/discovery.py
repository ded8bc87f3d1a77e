"""Simulated discovery: a test says who is there."""

from collections.abc import AsyncIterator, Iterable

import trio

from busnode.world.discovery import Hint


class SimDiscovery:
    """Gives the hints it was made with, then those that are added; it never ends by itself."""

    def __init__(self, hints: Iterable[Hint] = ()) -> None:
        self._hints = list(hints)
        self._waiting = trio.lowlevel.ParkingLot()

    def add(self, hint: Hint) -> None:
        self._hints.append(hint)
        self._waiting.unpark_all()

    async def hints(self) -> AsyncIterator[Hint]:
        given = 0
        while True:
            while given == len(self._hints):
                await self._waiting.park()
            given += 1
            yield self._hints[given - 1]
