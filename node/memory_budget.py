"""What a node keeps in memory for others, counted in one place, and what happens when it is much.

Counted is what waits for consumers, what waits to be sent as answers, and what connections have
received of frames that are not complete. Persistent messages are in files and are not counted: a
consumer that is behind costs nothing here, and nothing of it is ever dropped.
"""

from collections.abc import Callable
from typing import Final

import trio

LOW: Final = 0.9
"""From full to full again there should be room for some batches, or all would be looked through for
each of them."""

AGAIN_S: Final = 0.1
"""How soon it is looked again for something that can be dropped."""


class MemoryBudget:
    """Counts; whoever runs it says what is let go when there is too much."""

    def __init__(self, bytes_max: int | None = None) -> None:
        """None: it is counted, and that is all."""
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.is_full = False
        """Whether publishers are not read from, and nobody new is let in."""
        self.times_full = 0
        self._filled = trio.Event()
        self._room = trio.Event()

    def add(self, change_bytes: int) -> None:
        """So much more, or less, is kept."""
        self.used_bytes += change_bytes
        most = self.bytes_max
        if most is None:
            return
        if self.is_full:
            if self.used_bytes <= most * LOW:
                self.is_full = False
                self._room.set()
        elif self.used_bytes > most:
            self.is_full = True
            self.times_full += 1
            self._room = trio.Event()
            self._filled.set()

    async def wait_for_room(self, seconds: float) -> None:
        """Wait until there is some, and no longer than that: who is not read from cannot say that
        it has taken something, and that may be what all wait for."""
        with trio.move_on_after(seconds):
            while self.is_full:
                await self._room.wait()

    async def run(self, shed: Callable[[], None]) -> None:
        """Call `shed` whenever there is too much, again and again while that is so."""
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            while self.is_full:
                shed()
                await self.wait_for_room(AGAIN_S)
