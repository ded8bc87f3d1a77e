"""Planted bugs, by the part that they are planted in."""

from busnode.testing.sim.mutants import clients, mirrors, nodes, segments
from busnode.testing.sim.mutants.mutant import MUTANTS, SEEDS_MAX, Mutant

__all__ = ["MUTANTS", "SEEDS_MAX", "Mutant", "clients", "mirrors", "nodes", "segments"]
