"""A bounded way from a thread of somebody else's into trio."""

from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Inlet(Generic[T]):
    """Takes values in one thread and gives them to one task of the loop in which it was made.

    Neither side ever waits for the other to take: when it is full, nothing more goes in. The loop
    is woken by one call however many values came, since trio's own queue of calls has no bound.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: deque[T] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._arrived = trio.Event()

    def offer(self, value: T) -> bool:
        """Whether there was room for it. For the thread."""
        if len(self._waiting) >= self._size_max:
            return False
        self._waiting.append(value)
        with suppress(trio.RunFinishedError):  # nobody will ask for it
            self._token.run_sync_soon(self._wake, idempotent=True)
        return True

    async def receive(self) -> T:
        """The next value. For the task; it lets others run before each."""
        await trio.lowlevel.checkpoint()
        while True:
            self._arrived = trio.Event()  # before the look: the thread puts first and wakes then
            if self._waiting:
                return self._waiting.popleft()
            await self._arrived.wait()

    def _wake(self) -> None:
        self._arrived.set()
