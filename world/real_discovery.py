"""The real discovery: what a node is told by its settings to look at."""

from collections.abc import Sequence

from busnode.world.discovery import Discovery
from busnode.world.joined_discovery import JoinedDiscovery
from busnode.world.network import Address
from busnode.world.real_mdns import MdnsDiscovery
from busnode.world.real_seeds import SeedDiscovery


def real_discovery(
    seeds: Sequence[Address], mdns_interfaces: Sequence[str] | None, *, mdns: bool
) -> Discovery:
    """Seeds, and multicast on the interfaces with these addresses (None: on all) if `mdns`."""
    found_by_seeds = SeedDiscovery(seeds)
    if not mdns:
        return found_by_seeds
    return JoinedDiscovery([found_by_seeds, MdnsDiscovery(mdns_interfaces)])
