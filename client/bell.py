"""Waking those who wait for something to change."""

from busnode.world.real_parking import Parked, park, wake


class Bell:
    """Wakes everybody who waits; each then looks for itself at what has changed.

    Ringing costs next to nothing while nobody waits. Between looking and waiting there must be no
    checkpoint, or a ring is missed.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Parked, None] = {}

    def ring(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for parked in waiting:
                wake(parked)

    async def wait(self) -> None:
        await park(self._waiting)
