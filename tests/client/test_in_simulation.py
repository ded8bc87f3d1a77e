"""A client and a real node in the simulator: connections break at any moment, and promises hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from busnode.client import Bus, MemoryCursorStore, Message, connect
from busnode.node.config import NodeConfig
from busnode.node.node import start_node
from busnode.testing.sim import (
    SimClock,
    SimDiscovery,
    SimDisk,
    SimEntropy,
    SimNetwork,
    simulate,
)
from busnode.world.world import World

MESSAGES = 400


def world(network: SimNetwork, host: str, seed: int) -> World:
    return World(
        clock=SimClock(),
        entropy=SimEntropy(f"{seed}/{host}"),
        files=SimDisk(seed),
        network=network.host(host),
        discovery=SimDiscovery(),
    )


@asynccontextmanager
async def one_node(network: SimNetwork, seed: int) -> AsyncIterator[None]:
    config = NodeConfig(
        "sim", name="node", data="/data", listen="node", peer_port=None, heartbeat_s=2.0
    )
    async with start_node(world(network, "node", seed), config):
        yield


async def break_connections(network: SimNetwork, entropy: SimEntropy, hosts: list[str]) -> None:
    """Reset them, or cut them for longer or shorter than a heartbeat can bear."""
    while True:
        await trio.sleep(entropy.between(0.05, 1.0))
        host = entropy.choose(hosts)
        if entropy.chance(0.7):
            network.reset(host)
        else:
            network.partition(host, "node")
            await trio.sleep(entropy.between(0.1, 12.0))
            network.heal(host, "node")


@pytest.mark.parametrize("seed", range(15))
def test_what_was_acked_arrives_once_and_in_order_whatever_breaks(seed: int) -> None:
    async def main() -> None:
        network = SimNetwork(seed)
        entropy = SimEntropy(f"{seed}/faults")
        acked: dict[bytes, int] = {}
        got: list[Message] = []
        visits: dict[str, int] = {}

        async def publish(bus: Bus, first: int) -> None:
            for i in range(first, MESSAGES, 4):
                payload = b"%d" % i
                receipt = await bus.publish(f"/orders/{i % 2}", payload, persistent=True)
                acked[payload] = receipt.msg_no
                await trio.sleep(entropy.between(0.0, 0.2))

        async def consume() -> None:
            """Comes and goes; its position stays."""
            store = MemoryCursorStore()
            async with connect(
                "bus://node", world=world(network, "consumer", seed), deadline_s=600
            ) as bus:
                while len(got) < MESSAGES:
                    async with bus.subscribe(
                        "/orders/*", start="earliest", cursors=store, on_gap="raise"
                    ) as messages:
                        with trio.move_on_after(entropy.between(0.5, 20.0)):
                            while len(got) < MESSAGES:
                                got.append(await anext(messages))
                        messages.done()
                visits["consumer"] = bus.statistics().connections

        async with one_node(network, seed), trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            here = world(network, "publisher", seed)
            async with connect("bus://node", world=here, deadline_s=600) as bus:
                faults = ["publisher", "consumer"]
                nursery.start_soon(break_connections, network, entropy, faults)
                async with trio.open_nursery() as publishing:
                    for first in range(4):
                        publishing.start_soon(publish, bus, first)
                visits["publisher"] = bus.statistics().connections
            while "consumer" not in visits:
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

        assert visits["publisher"] + visits["consumer"] > 2, "nothing broke"
        assert len(acked) == MESSAGES
        assert {message.payload: message.msg_no for message in got} == acked
        assert len(got) == MESSAGES, "something came twice"
        for topic in ("/orders/0", "/orders/1"):
            numbers = [message.msg_no for message in got if message.topic == topic]
            assert numbers == list(range(1, MESSAGES // 2 + 1))

    simulate(seed, main)


@pytest.mark.parametrize("seed", range(5))
def test_a_pipelined_publisher_gets_every_receipt_whatever_breaks(seed: int) -> None:
    async def main() -> None:
        network = SimNetwork(seed)
        entropy = SimEntropy(f"{seed}/faults")
        async with one_node(network, seed), trio.open_nursery() as nursery:
            here = world(network, "publisher", seed)
            async with connect("bus://node", world=here, deadline_s=600) as bus:
                nursery.start_soon(break_connections, network, entropy, ["publisher"])
                async with bus.publisher("/t", persistent=True) as out:
                    for i in range(20):
                        await out.send_many([b"%d %d" % (i, j) for j in range(500)])
                        await trio.sleep(entropy.between(0.0, 0.5))
                    receipts = await out.flush()
                assert [receipt.msg_no for receipt in receipts] == list(range(1, 10_001))
                nursery.cancel_scope.cancel()

    simulate(seed, main)
