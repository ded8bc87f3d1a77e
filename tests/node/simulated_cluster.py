"""A cluster of real nodes in the simulator, each on a host of its own, in virtual time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from busnode.client import Bus, connect
from busnode.node.config import NodeConfig
from busnode.node.node import RunningNode, start_node
from busnode.testing.sim import SimClock, SimDiscovery, SimDisk, SimEntropy, SimNetwork
from busnode.testing.sim.discovery import SimEther
from busnode.testing.sim.simulation import simulate
from busnode.world.discovery import Hint
from busnode.world.network import Address
from busnode.world.world import World

PATIENCE_S: Final = 60.0
"""Of virtual time: what takes longer will never be."""

TEST_S: Final = 1000.0
"""Of virtual time, for a whole test: so that one that hangs fails."""

PEER_PORT: Final = 4251


class SimulatedNode:
    """One host with its disk; its node runs, dies and comes back."""

    def __init__(self, cluster: "SimulatedCluster", name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.settings = settings
        self.disk = SimDisk(f"{cluster.seed}/{name}")
        self.starts = 0
        self._cluster = cluster
        self._running: RunningNode | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def node(self) -> RunningNode:
        assert self._running is not None, f"{self.name} is down"
        return self._running

    @property
    def is_up(self) -> bool:
        return self._running is not None

    @property
    def url(self) -> str:
        return f"bus://{self.name}"

    @property
    def linked(self) -> set[str]:
        """Nodes with which it has links in both directions."""
        peers = self.node.peers
        both = peers.links.keys() & peers.sessions.keys()
        return {link.name for broker_id, link in peers.links.items() if broker_id in both}

    async def start(self) -> None:
        self.starts += 1
        self._ended = trio.Event()
        await self._cluster.nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        cluster = self._cluster
        hints = [Hint((seed,), "seed") for seed in self.settings.get("seeds", ())]
        world = cluster.world(self.name, f"start {self.starts}", self.disk, hints)
        config = NodeConfig(
            **{
                "cluster_id": "sim", "name": self.name, "data": "/data", "listen": self.name,
                "http_port": None, "drain_timeout_s": 2.0, **self.settings,
            }
        )  # fmt: skip
        try:
            with trio.CancelScope() as self._scope:
                async with start_node(world, config) as self._running:
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._running = None
            self._ended.set()

    async def stop(self) -> None:
        """Drain and leave."""
        self._scope.cancel()
        await self._ended.wait()

    async def kill(self) -> None:
        """Its process dies: nobody is told, and only what was synced is left."""
        node = self.node
        node.hurry()
        node.draining = node.peers._leaving = True  # a listener that is gone ends nothing now
        cluster = self._cluster
        cluster.isolate(self.name)  # what it does while it is taken down reaches nobody
        cluster.network.reset(self.name)
        self._scope.cancel()
        await self._ended.wait()
        self.disk.kill()
        cluster.rejoin(self.name)


class SimulatedCluster:
    """Nodes in one network and one ether. `running` starts those that are named."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.network = SimNetwork(seed)
        self.ether = SimEther()
        self.entropy = SimEntropy(f"{seed}/test")
        self.nodes: dict[str, SimulatedNode] = {}
        self.nursery: trio.Nursery

    def world(
        self,
        host: str,
        life: str = "",
        disk: SimDisk | None = None,
        hints: Iterable[Hint] = (),
    ) -> World:
        return World(
            clock=SimClock(),
            entropy=SimEntropy(f"{self.seed}/{host}/{life}"),
            files=disk or SimDisk(self.seed),
            network=self.network.host(host),
            discovery=SimDiscovery(hints, self.ether),
        )

    async def add(self, host: str, **settings: Any) -> SimulatedNode:
        node = self.nodes[host] = SimulatedNode(self, host, settings)
        await node.start()
        return node

    def __getitem__(self, name: str) -> SimulatedNode:
        return self.nodes[name]

    @asynccontextmanager
    async def client(self, *nodes: str, name: str = "client", **options: Any) -> AsyncIterator[Bus]:
        """A client whose URL names these nodes."""
        options = {"deadline_s": PATIENCE_S, **options}
        url = "bus://" + ",".join(nodes)
        async with connect(url, name=name, world=self.world(name), **options) as bus:
            yield bus

    # Faults ---------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        for other in self.network._hosts:
            if other != name:
                self.network.partition(name, other)

    def rejoin(self, name: str) -> None:
        for other in self.network._hosts:
            if other != name:
                self.network.heal(name, other)

    # Waiting --------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], what: str = "that") -> float:
        """How long it took until something was so."""
        began = trio.current_time()
        with trio.move_on_after(PATIENCE_S) as scope:
            while not holds():
                await trio.sleep(0.01)
        assert not scope.cancelled_caught, f"{what} did not come in {PATIENCE_S} s"
        return trio.current_time() - began

    async def meshed(self) -> float:
        """How long it took until all nodes that are up were linked with all others."""
        up = {node.name for node in self.nodes.values() if node.is_up}

        def all_linked() -> bool:
            return all(
                node.linked == up - {node.name} and not node.node.peers.missing_links()
                for node in self.nodes.values()
                if node.is_up
            )

        try:
            return await self.until(all_linked, "a full mesh")
        except AssertionError:
            for node in self.nodes.values():
                if node.is_up:
                    peers = node.node.peers
                    print(
                        node.name, node.linked, peers.missing_links(), peers.membership.candidates
                    )
            raise


def on_cluster(
    seed: int, *names: str, **settings: Any
) -> Callable[[Callable[[SimulatedCluster], Awaitable[None]]], None]:
    """Runs a function with a cluster of these nodes, which are meshed before it begins."""

    def run(main: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
        async def whole() -> None:
            cluster = SimulatedCluster(seed)
            async with trio.open_nursery() as cluster.nursery:
                for name in names:
                    await cluster.add(name, **settings)
                await cluster.meshed()
                with trio.fail_after(TEST_S):
                    await main(cluster)
                cluster.nursery.cancel_scope.cancel()

        print(f"seed {seed}")
        simulate(seed, whole)

    return run


def seed_address(name: str) -> Address:
    return Address(name, PEER_PORT)
