"""When something may be done for strangers, and how much of the loop's time that may take."""

from types import TracebackType
from typing import Final

import trio

from busnode.world.clock import Clock

RESTS: Final = 2
"""How many times as long as something for strangers has taken nothing is done for them after it:
they have a third of the loop's time at most. Measured with 1,928 connections a second that come in
bursts: persistent messages had 2.5 to 2.8 times the p99 of calm without a rest, 1.8 to 2.1 with one
times, 1.6 to 1.8 with two times and 1.5 with three times, which was too slow for that many."""

REST_MIN_S: Final = 0.001
"""No less is worth a rest: epoll waits for whole milliseconds."""


class Turn:
    """Whoever has something to do for strangers holds it for that.

    It is handed on from one turn of the loop to the next. So all doors together do one such thing
    in a turn, however many there are to be done, and who is in waits for no more than that. Before
    the next there is a rest: when a thousand come at once the node has the most of its time for
    others and the system has a processor for their syncs, and who comes waits a little longer in
    the listener's queue. Whoever is next rests, for who was there before may be gone by then: a
    stranger who leaves takes the task with him that looked at him.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = trio.Lock()
        self._began_at = 0.0
        self._owed_s = 0.0
        self._rests_until = 0.0

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            rest_s = self._rests_until - self._clock.monotonic()
            if rest_s > 0:
                await self._clock.sleep(rest_s)
        except BaseException:
            self._lock.release()
            raise
        self._began_at = self._clock.monotonic()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now = self._clock.monotonic()
        self._owed_s += RESTS * (now - self._began_at)
        if self._owed_s >= REST_MIN_S:
            self._rests_until, self._owed_s = now + self._owed_s, 0.0
        self._lock.release()
