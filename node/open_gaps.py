"""Ranges that all nodes lack which are there, while one is expected that may have them.

A link is also lost when a record on its way was damaged, and is made anew a moment later. What
another node cannot serve in that moment is no gap yet: it is asked for again until the range comes,
or the time is over in which somebody may come back.
"""

from typing import Final

from busnode.node.remote_reading import RemoteReading
from busnode.wire.ids import LogId
from busnode.world.clock import Clock

AGAIN_S: Final = 0.25
"""How soon it is asked for again: a link is made anew in less, and asking is a round trip."""

WAIT_S: Final = 5.0
"""How long a consumer waits for a range: as long as for one that its home is mending."""


class _Open:
    __slots__ = ("after_no", "again_at", "since")

    def __init__(self, after_no: int, now: float) -> None:
        self.after_no = after_no
        self.since = now
        self.again_at: float | None = None
        """None: it was asked for again, and there is no answer yet."""


class OpenGaps:
    """Of all subscriptions; of each log there is one at a time. `run` it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[tuple[RemoteReading, LogId], _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def wait(self, reading: RemoteReading, log_id: LogId, after_no: int) -> bool:
        """Nobody has what comes after a number, and somebody is expected. Whether that is waited
        for; then the reading hears, as if who was asked had gone, that it must ask again."""
        now = self._clock.monotonic()
        known = self._open.get((reading, log_id))
        if known is None or known.after_no != after_no:
            known = self._open[reading, log_id] = _Open(after_no, now)
        if now - known.since >= WAIT_S:
            del self._open[reading, log_id]
            return False
        known.again_at = now + AGAIN_S
        return True

    async def run(self) -> None:
        while True:
            await self._clock.sleep(AGAIN_S)
            now = self._clock.monotonic()
            for (reading, log_id), known in list(self._open.items()):
                if reading.closed or now - known.since >= 2 * WAIT_S:
                    del self._open[reading, log_id]
                if known.again_at is not None and known.again_at <= now and not reading.closed:
                    known.again_at = None
                    reading.lost(log_id)
