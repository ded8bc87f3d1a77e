"""The cluster in a node's status, for people who look for a node that is not there."""

import trio

from busnode.node.config import PEER_PORT, NodeConfig
from busnode.node.node import start_node
from busnode.node.status import status
from busnode.testing.sim import SimClock, SimDisk, SimEntropy, SimNetwork, simulate
from busnode.world.network import Address
from busnode.world.static_discovery import StaticDiscovery
from busnode.world.world import World


def test_of_a_node_that_never_answers_it_says_just_that() -> None:
    async def main() -> None:
        network = SimNetwork(0)
        mute = await network.host("mute").listen(Address("mute", PEER_PORT))
        world = World(
            clock=SimClock(),
            entropy=SimEntropy(0),
            files=SimDisk(0),
            network=network.host("n1"),
            discovery=StaticDiscovery([mute.address]),
        )
        async with start_node(world, NodeConfig("sim", data="/data", listen="n1")) as node:
            await trio.sleep(10)
            (row,) = status(node)["cluster"]["peers"]
            assert row["error"] == f"mute:{PEER_PORT}: no answer in time"
        mute.close()

    simulate(0, main)
