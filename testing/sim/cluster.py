"""A cluster of real nodes in the simulator, each on a host of its own, in virtual time."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from busnode.client import Bus, connect
from busnode.node.config import NodeConfig
from busnode.node.node import RunningNode, start_node
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.discovery import SimDiscovery, SimEther
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.freezer import HOST, Freezer
from busnode.testing.sim.life import DiskOfLife, HostOfLife
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate
from busnode.world.discovery import Hint
from busnode.world.files import Files
from busnode.world.network import Address, Network
from busnode.world.world import World

PATIENCE_S: Final = 60.0
"""Of virtual time: what takes longer will never be."""

TEST_S: Final = 1000.0
"""Of virtual time, for a whole test: so that one that hangs fails."""

PEER_PORT: Final = 4251

DEATH: Final = "death"
"""The cause of cuts around a host whose process is being taken down."""


class SimulatedNode:
    """One host with its disk and its clock; its node runs, dies and comes back."""

    def __init__(self, cluster: "SimulatedCluster", name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.settings = settings
        self.clock = SimClock()
        self.disk = SimDisk(f"{cluster.seed}/{name}", clock=self.clock)
        self.starts = 0
        self.is_starting = False
        self._cluster = cluster
        self._running: RunningNode | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._dying = False
        self._files = DiskOfLife(self.disk)
        self._network = HostOfLife(cluster.network.host(name))

    @property
    def node(self) -> RunningNode:
        assert self._running is not None, f"{self.name} is down"
        return self._running

    @property
    def is_up(self) -> bool:
        return self._running is not None and not self._dying

    @property
    def is_paused(self) -> bool:
        return self.name in self._cluster.freezer.frozen

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
        """Raises what a node raises that cannot start."""
        self.starts += 1
        self._ended = trio.Event()
        self._dying = False
        self.is_starting = True
        self._files = DiskOfLife(self.disk)
        self._network = HostOfLife(self._cluster.network.host(self.name))
        self._cluster.network.rejoin(self.name, DEATH)
        try:
            await self._cluster.nursery.start(self._run)
        finally:
            self.is_starting = False

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        HOST.set(self.name)
        cluster = self._cluster
        hints = [Hint((seed,), "seed") for seed in self.settings.get("seeds", ())]
        world = cluster.world(
            self.name, f"start {self.starts}", self._files, hints, self.clock, self._network
        )
        settings: dict[str, Any] = {
            "cluster_id": "sim", "name": self.name, "data": "/data", "listen": self.name,
            "http_port": None, "drain_timeout_s": 2.0, **self.settings,
        }  # fmt: skip
        config = NodeConfig(**settings)
        try:
            with trio.CancelScope() as self._scope:
                async with start_node(world, config) as self._running:
                    task_status.started()
                    await trio.sleep_forever()
        except Exception as error:
            if not self._dying and (self._running is None or cluster.on_crash is None):
                raise
            if not self._dying and cluster.on_crash is not None:
                cluster.on_crash(self.name, error)
        finally:
            self._running = None
            self._ended.set()

    async def stop(self) -> None:
        """Drain and leave."""
        self._scope.cancel()
        await self._ended.wait()

    async def kill(self) -> None:
        """Its process dies: nothing is sent or written any more; its connections are reset, and
        what it had written is there for whoever comes next."""
        self._die()
        self._cluster.network.reset(self.name)
        self.disk.kill()
        await self._take_down()

    async def lose_power(self) -> None:
        """Its machine stops: nobody is told, and only what was synced is left for sure. It is
        silent until it starts again."""
        self.silence()
        self.disk.power_loss()
        self._cluster.network.reset(self.name)
        await self._take_down()

    def silence(self) -> None:
        """The first half of losing power: for several at the same moment."""
        self._die()
        self._cluster.network.isolate(self.name, DEATH)

    def _die(self) -> None:
        self._dying = True
        self._files.die()
        self._network.die()
        self._cluster.freezer.thaw(self.name)
        self.node.hurry()

    async def _take_down(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    def pause(self) -> None:
        """Its process gets no time any more, until `resume`."""
        self._cluster.freezer.freeze(self.name)

    def resume(self) -> None:
        self._cluster.freezer.thaw(self.name)


class SimulatedCluster:
    """Nodes in one network and one ether. `running` starts those that are named."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.network = SimNetwork(seed)
        self.ether = SimEther()
        self.freezer = Freezer()
        self.entropy = SimEntropy(f"{seed}/test")
        self.nodes: dict[str, SimulatedNode] = {}
        self.nursery: trio.Nursery
        self.on_crash: Callable[[str, Exception], None] | None = None
        """Told of a node that ends by an error of its own; without it the error is raised."""

    def world(
        self,
        host: str,
        life: str = "",
        files: Files | None = None,
        hints: Iterable[Hint] = (),
        clock: SimClock | None = None,
        network: Network | None = None,
    ) -> World:
        return World(
            clock=clock or SimClock(),
            entropy=SimEntropy(f"{self.seed}/{host}/{life}"),
            files=files or SimDisk(self.seed),
            network=network or self.network.host(host),
            discovery=SimDiscovery(hints, self.ether),
        )

    async def add(self, host: str, **settings: Any) -> SimulatedNode:
        node = self.nodes[host] = SimulatedNode(self, host, settings)
        await node.start()
        return node

    def __getitem__(self, name: str) -> SimulatedNode:
        return self.nodes[name]

    @property
    def up(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.is_up]

    @asynccontextmanager
    async def client(
        self, *nodes: str, name: str = "client", **options: Any
    ) -> AsyncGenerator[Bus]:
        """A client whose URL names these nodes."""
        options = {"deadline_s": PATIENCE_S, **options}
        url = "bus://" + ",".join(nodes)
        world = options.pop("world", None) or self.world(name)
        async with connect(url, name=name, world=world, **options) as bus:
            yield bus

    # Faults ---------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        self.network.isolate(name)

    def rejoin(self, name: str) -> None:
        self.network.rejoin(name)

    async def lose_power(self, names: Iterable[str]) -> None:
        """All in the same moment; they stay down."""
        nodes = [self.nodes[name] for name in names]
        for node in nodes:
            node.silence()
        for node in nodes:
            await node.lose_power()

    # Waiting --------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], what: str = "that") -> float:
        """How long it took until something was so."""
        began = trio.current_time()
        with trio.move_on_after(PATIENCE_S) as scope:
            while not holds():
                await trio.sleep(0.01)
        assert not scope.cancelled_caught, f"{what} did not come in {PATIENCE_S} s"
        return trio.current_time() - began

    @property
    def is_meshed(self) -> bool:
        """Whether all nodes that are up are linked with all others."""
        # By what they greet each other with: a clone has the name of another one.
        up = {node.node.peers.me.broker_id for node in self.up}
        return all(
            peers.links.keys() & peers.sessions.keys() == up - {peers.me.broker_id}
            and not peers.missing_links()
            for peers in (node.node.peers for node in self.up)
        )

    async def meshed(self) -> float:
        """How long it took until all nodes that are up were linked with all others."""
        try:
            return await self.until(lambda: self.is_meshed, "a full mesh")
        except AssertionError:
            for node in self.up:
                peers = node.node.peers
                print(node.name, node.linked, peers.missing_links(), peers.membership.candidates)
            raise


def on_cluster(
    seed: int, *names: str, **settings: Any
) -> Callable[[Callable[[SimulatedCluster], Awaitable[None]]], None]:
    """Runs a function with a cluster of these nodes, which are meshed before it begins."""

    def run(main: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
        cluster = SimulatedCluster(seed)

        async def whole() -> None:
            async with trio.open_nursery() as cluster.nursery:
                for name in names:
                    await cluster.add(name, **settings)
                await cluster.meshed()
                with trio.fail_after(TEST_S):
                    await main(cluster)
                cluster.freezer.thaw_all()
                cluster.nursery.cancel_scope.cancel()

        print(f"seed {seed}")
        with cluster.freezer.installed():
            simulate(seed, whole)

    return run


def seed_address(name: str) -> Address:
    return Address(name, PEER_PORT)
