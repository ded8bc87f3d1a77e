"""Simulated time."""

from contextlib import suppress

import trio

START_UTC_US = 1_700_000_000_000_000
"""November 2023. Any moment would do, as long as it is always the same."""


class SimClock:
    """Time as one machine sees it: the loop's virtual time, and a calendar that a test may move.

    The loop must run on `trio.testing.MockClock` (see `simulate`). Outside of a run time stands
    still where it was last read, so that what needs a clock can be tested without a loop.
    """

    def __init__(self, start_utc_us: int = START_UTC_US) -> None:
        self._start_utc_us = start_utc_us
        self._jumped_us = 0
        self._last = 0.0

    def monotonic(self) -> float:
        with suppress(RuntimeError):  # not in a run
            self._last = trio.current_time()
        return self._last

    def utc_us(self) -> int:
        return self._start_utc_us + round(self.monotonic() * 1_000_000) + self._jumped_us

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Move the calendar, forward or back; deadlines and `monotonic` do not notice."""
        self._jumped_us += round(seconds * 1_000_000)
