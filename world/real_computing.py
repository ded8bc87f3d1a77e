"""Real threads for work that takes long and touches nothing, such as verifying a password."""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")

AT_ONCE_MAX: Final = 2
"""Each may take 20 MB and all of a processor: whoever guesses passwords waits for those before."""


class RealThreads:
    def __init__(self) -> None:
        self._limiter: trio.CapacityLimiter | None = None

    async def compute(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = trio.CapacityLimiter(AT_ONCE_MAX)
        return await trio.to_thread.run_sync(work, limiter=self._limiter)
