"""Discovery by a list: the seeds that a person has named."""

from collections.abc import AsyncIterator, Sequence

from busnode.world.discovery import Hint
from busnode.world.network import Address


class StaticDiscovery:
    """One hint for each seed, in the order given, and then the end: a list does not grow."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = tuple(seeds)

    async def hints(self) -> AsyncIterator[Hint]:
        for seed in self._seeds:
            yield Hint((seed,), "seed")
