"""A simulated world: virtual time, one seed, and faults harsher than life."""

from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.discovery import SimDiscovery, SimEther
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate

__all__ = [
    "DiskFault",
    "DiskFaults",
    "SimClock",
    "SimDiscovery",
    "SimDisk",
    "SimEntropy",
    "SimEther",
    "SimNetwork",
    "simulate",
]
