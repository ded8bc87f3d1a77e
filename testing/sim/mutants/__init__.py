"""Planted bugs, by the part that they are planted in."""

from busnode.testing.sim.mutants import clients, losses, mirrors, nodes, queues, segments
from busnode.testing.sim.mutants.mutant import MUTANTS, SEEDS_MAX, Mutant

__all__ = [
    "MUTANTS",
    "SEEDS_MAX",
    "Mutant",
    "clients",
    "losses",
    "mirrors",
    "nodes",
    "queues",
    "segments",
]
