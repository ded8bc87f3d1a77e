"""The seam to discovery: who might be a peer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from busnode.wire.ids import BrokerId
from busnode.world.network import Address


class Announcement(NamedTuple):
    """What a node tells everybody about itself."""

    cluster_id: str
    protocol: int
    broker_id: BrokerId
    name: str
    addresses: tuple[Address, ...]
    """Where peers reach it."""


class Hint(NamedTuple):
    """Somebody says that a node is there. It is never a proof: dialling and PEER_HELLO decide."""

    addresses: tuple[Address, ...]
    source: str
    """`seed`, `dns`, `mdns` …"""
    cluster_id: str | None = None
    """None, here and below: the source does not know."""
    protocol: int | None = None
    broker_id: BrokerId | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DiscoveryStatistics:
    """What a discovery has seen since it was made."""

    events: int = 0
    """All that came from outside: records, goodbyes, answers of a resolver and their absence."""
    dropped: int = 0
    """Events for which there was no room. Whoever is there is heard of again."""
    malformed: int = 0
    """Events that made no sense, and may have been forged."""
    failure: str | None = None
    """Why nobody can be found now; None while it works."""


class Discovery(Protocol):
    async def run(self, announcement: Announcement, found: Callable[[Hint], None]) -> None:
        """Announce this node and tell of others until cancelled; then withdraw the announcement,
        bounded in time and shielded.

        `found` is called on the event loop and must not block. The same node may be hinted at again
        and again; that a node has gone is never told. It returns early only where nothing more can
        come, and what fails outside is no reason to: it is told in the statistics and tried again.
        """
        ...

    def statistics(self) -> DiscoveryStatistics: ...
