"""The seam to other processors: work that takes long and touches nothing."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    async def compute(self, work: Callable[[], T]) -> T:
        """Have it worked out where nobody else waits for it."""
        ...


class Inline:
    """Works it out at once: for worlds in which time is not real."""

    async def compute(self, work: Callable[[], T]) -> T:
        return work()
