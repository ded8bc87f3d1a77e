from busnode.testing.sim.cluster import (
    PATIENCE_S,
    PEER_PORT,
    TEST_S,
    SimulatedCluster,
    SimulatedNode,
    on_cluster,
    seed_address,
)

__all__ = [
    "PATIENCE_S",
    "PEER_PORT",
    "TEST_S",
    "SimulatedCluster",
    "SimulatedNode",
    "on_cluster",
    "seed_address",
]
