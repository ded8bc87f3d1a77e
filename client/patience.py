"""How long calls wait while no node can be reached."""

from collections.abc import Callable

import anyio

from busnode.client.bell import Bell
from busnode.client.refusal import again
from busnode.wire.errors import BusnodeError, Disconnected
from busnode.world.clock import Clock


class Patience:
    """Knows whether there is a home, since when there is none, and why.

    A call that waits goes on waiting for as long as there is a home. Without one it gives up after
    `deadline_s`; what it was about stays where it is. A refusal ends all waiting at once.
    """

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.away = True
        self.failure: BusnodeError | None = None
        """Why there will never be a home again: it was refused, or the bus was closed."""
        self.why = "nobody was tried yet"
        self._clock = clock
        self._outages = 0

    def arrived(self) -> None:
        self.away = False

    def left(self, why: str) -> None:
        """The caller rings the bells of all who wait."""
        self.away = True
        self._outages += 1
        self.why = why

    def failed(self, failure: BusnodeError) -> None:
        """Likewise."""
        if self.failure is None:
            self.failure = failure

    def check(self) -> None:
        if self.failure is not None:
            raise again(self.failure)

    async def wait(self, bell: Bell, done: Callable[[], bool]) -> None:
        """Wait until `done`; the bell rings whenever it may be.

        Raises Disconnected when there was no home for too long, or what refused us.
        """
        outage = -1
        give_up_at = 0.0
        while not done():
            self.check()
            if not self.away:
                await bell.wait()
                continue
            now = self._clock.monotonic()
            if outage != self._outages:
                outage, give_up_at = self._outages, now + self.deadline_s
            if now >= give_up_at:
                raise Disconnected(f"no node for {self.deadline_s:g} s: {self.why}")
            with anyio.move_on_after(give_up_at - now):
                await bell.wait()
