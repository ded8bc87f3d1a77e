"""Several discoveries as one."""

from collections.abc import Callable, Sequence

import trio

from busnode.world.discovery import Announcement, Discovery, DiscoveryStatistics, Hint


class JoinedDiscovery:
    """Announces in all of them and tells what any of them finds; it ends when all have ended."""

    def __init__(self, parts: Sequence[Discovery]) -> None:
        self._parts = tuple(parts)

    async def run(self, announcement: Announcement, found: Callable[[Hint], None]) -> None:
        async with trio.open_nursery() as nursery:
            for part in self._parts:
                nursery.start_soon(part.run, announcement, found)

    def statistics(self) -> DiscoveryStatistics:
        """Sums; and the failures of all that fail, which does not say that the others do."""
        each = [part.statistics() for part in self._parts]
        return DiscoveryStatistics(
            events=sum(part.events for part in each),
            dropped=sum(part.dropped for part in each),
            malformed=sum(part.malformed for part in each),
            failure="; ".join(part.failure for part in each if part.failure) or None,
        )
