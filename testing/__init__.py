"""For tests of busnode and of what stands on it: a simulated world, checkers, pytest fixtures."""

from busnode.testing.bus_cluster import BusCluster, ClusterNode

__all__ = ["BusCluster", "ClusterNode"]
