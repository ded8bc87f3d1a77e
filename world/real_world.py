"""The real world: what a node gets when it is started by a person."""

from busnode.world.discovery import Discovery
from busnode.world.real_clock import RealClock
from busnode.world.real_computing import RealThreads
from busnode.world.real_entropy import RealEntropy
from busnode.world.real_files import RealFiles
from busnode.world.real_network import RealNetwork
from busnode.world.static_discovery import StaticDiscovery
from busnode.world.world import World


def real_world(discovery: Discovery | None = None) -> World:
    """With `None` nobody is ever discovered."""
    return World(
        clock=RealClock(),
        entropy=RealEntropy(),
        files=RealFiles(),
        network=RealNetwork(),
        discovery=discovery or StaticDiscovery(()),
        threads=RealThreads(),
    )
