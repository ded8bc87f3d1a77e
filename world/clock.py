"""The seam to time."""

from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that only goes forward, and the calendar, which people and NTP may move."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; the same scale as the deadlines of the event loop."""
        ...

    def utc_us(self) -> int:
        """Microseconds since 1970. It may jump: never measure a duration with it."""
        ...

    async def sleep(self, seconds: float) -> None: ...
