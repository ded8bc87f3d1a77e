"""The real clocks: trio's and the calendar."""

import time

import trio


class RealClock:
    """Reads the clock of the event loop, and the calendar of the machine.

    trio adds a random offset to the system's monotonic clock, a new one for each run. Inside a run
    `monotonic` is exactly trio's time, so that it may be compared with deadlines. Outside of it (in
    a worker thread, after the run) it goes on in the scale of the run in which this clock was made
    or last read. A clock that was never in a run starts in a scale of its own, which is behind
    every run's: a reading never goes backwards on the way in.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self.monotonic()

    def monotonic(self) -> float:
        try:
            now = trio.current_time()
        except RuntimeError:  # not in a run
            return time.perf_counter() + self._offset_s
        self._offset_s = now - time.perf_counter()
        return now

    def utc_us(self) -> int:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
