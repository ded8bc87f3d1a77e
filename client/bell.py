"""Waking those who wait for something to change."""

import anyio


class Bell:
    """Wakes everybody who waits; each then looks for itself at what has changed.

    Ringing costs next to nothing while nobody waits. Between looking and waiting there must be no
    checkpoint, or a ring is missed.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
