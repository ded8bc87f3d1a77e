"""A cluster for a test: real nodes on real sockets, to be killed, started again and cut apart.

The nodes run beside each other on one event loop in a thread of its own. As processes they would
take a second to start and could not be cut apart without being root: nodes tell each other their
addresses, so a relay between two of them is soon gone around. Here each has a network whose cables
can be cut, and a disk that its death takes away; all else is what `busnode start` runs.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

import trio

from busnode.client.blocking import BlockingBus, connect
from busnode.node.config import NodeConfig
from busnode.node.embedding import NodeSettings
from busnode.node.node import RunningNode
from busnode.node.settings import check
from busnode.node.status import status
from busnode.testing.cut_network import Cables
from busnode.testing.full_mesh import not_meshed
from busnode.testing.hosted_node import HostedNode
from busnode.wire.ids import BrokerId
from busnode.world.network import Address
from busnode.world.real_entropy import RealEntropy
from busnode.world.real_loop import TrioLoop
from busnode.world.real_ports import LOOPBACK, ReservedPort

NODES: Final = 3
"""The fewest of which one can be cut from another while a third sees both."""

NODES_MAX: Final = 16
"""They share one core: more say nothing that these do not."""

LINK_HEARTBEAT_S: Final = 0.25
"""So a cut is noticed within a second. Less, and a busy machine looks like one."""

TIMEOUT_S: Final = 15.0
"""For what takes a second, or four where nodes have given up for a while, on a busy machine."""

LOOK_EVERY_S: Final = 0.01

FIXED: Final = frozenset(
    {"name", "data", "listen", "interface", "port", "peer_port", "seeds", "mdns"}
)


class ClusterNode:
    """One node of a `BusCluster`, which makes it. It stays the same through all its lives."""

    def __init__(self, hosted: HostedNode, url: str) -> None:
        self.name = hosted.name
        self.url = url
        """What `busnode.connect` takes; the same after a restart."""
        self._hosted = hosted

    @property
    def broker_id(self) -> BrokerId:
        """Of its present life, or its last one."""
        assert self._hosted.last is not None
        return self._hosted.last.broker_id

    @property
    def is_running(self) -> bool:
        return self._hosted.is_running

    def __repr__(self) -> str:
        return f"<{self.name} at {self.url}{'' if self.is_running else ', down'}>"


class BusCluster:
    """Nodes of a cluster of their own while its `with` block runs; linked when it begins.

    What it does to them takes effect at once, and then it waits until the nodes have noticed;
    `wait=False` does not. All of it may be called from any thread. In an async test that blocks the
    test's own loop for as long, but not the nodes: they have another one.
    """

    def __init__(
        self, directory: Path, nodes: int = NODES, **settings: Unpack[NodeSettings]
    ) -> None:
        """Nodes keep their data in folders of `directory`. `settings` are those of `busnode.Node`
        as far as they are not the cluster's own."""
        if not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"a cluster of {nodes} nodes; there may be 1 to {NODES_MAX}")
        if fixed := FIXED.intersection(settings):
            raise TypeError(f"{', '.join(sorted(fixed))}: the cluster itself sets that")
        settings.setdefault("link_heartbeat_s", LINK_HEARTBEAT_S)
        settings.setdefault("http_port", None)
        settings["mdns"] = False  # or tests that run at the same time would hear of each other
        self.cluster_id = f"test-{RealEntropy().broker_id().hex()}"
        self.nodes: tuple[ClusterNode, ...] = ()
        self._directory = directory
        self._count = nodes
        self._settings = settings
        self._stack = ExitStack()
        self._loop = TrioLoop(self.cluster_id)
        self._cables = Cables()
        self._hosted: dict[ClusterNode, HostedNode] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self._place()
            self._stack.enter_context(self._loop)
            self._stack.callback(self._loop.call, self._kill_all)
            self._loop.call(self._start_all)
            self.wait_meshed()
            self._stack = self._stack.pop_all()  # nothing went wrong: it stays for later
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """What `busnode.connect` takes to go to any of them."""
        return "bus://" + ",".join(node.url.removeprefix("bus://") for node in self.nodes)

    def bus(self, node: ClusterNode | None = None, **options: Any) -> BlockingBus:
        """A client without async, closed at the end of the test; `options` are `connect`'s.

        It begins at the node, or at any, and goes to another one when that is gone.
        """
        url = self.url if node is None else node.url
        return self._stack.enter_context(connect(url, **{"name": "test", **options}))

    def status(self, node: ClusterNode) -> dict[str, Any]:
        """What `busnode status --json` would tell of a node that runs."""

        async def look() -> dict[str, Any]:
            return status(self._running(node))

        return self._loop.call(look)

    # Faults ---------------------------------------------------------------------------------------

    def kill(self, node: ClusterNode, *, wait: bool = True) -> None:
        """As `kill -9`: no goodbye, nothing is sent or written any more. Noticed when no other
        node has a link to it; one that is cut from it needs some heartbeats for that."""
        self._running(node)
        self._loop.call(self._hosted[node].kill)
        if wait:
            self.wait_meshed()

    def restart(self, node: ClusterNode, *, wait: bool = True) -> None:
        """Start it again, with its data, its name and its ports, and a new brokerId.

        One that still runs leaves first, as it does on SIGTERM: it sends its clients elsewhere.
        """

        async def restart(hosted: HostedNode) -> None:
            if hosted.is_running:
                await hosted.leave()
            await hosted.start(self._loop.nursery)

        self._loop.call(restart, self._hosted[node])
        if wait:
            self.wait_meshed()

    def partition(self, one: ClusterNode, other: ClusterNode, *, wait: bool = True) -> None:
        """Cut the cable between two nodes, both ways. Nobody is told: connections fall silent and
        dials hang. Clients still reach both. Noticed when their links to each other are lost."""
        if one is other:
            raise ValueError(f"{one.name} has no cable to itself")

        async def cut() -> None:
            self._cables.cut(one.name, other.name)

        self._loop.call(cut)
        if wait:
            self.wait_meshed()

    def heal(self, *, wait: bool = True) -> None:
        """Mend all cables."""

        async def heal() -> None:
            self._cables.heal()

        self._loop.call(heal)
        if wait:
            self.wait_meshed()

    def wait_meshed(self, timeout: float = TIMEOUT_S) -> None:
        """Wait until each running node has links to and from each other one that it is not cut
        from, knows what that one's clients want, and has links to nobody else.

        TimeoutError tells what is missing.
        """
        self._loop.call(self._wait_meshed, timeout)

    # On the loop ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give each node its name, its ports and its folder."""
        names = [f"n{number}" for number in range(1, self._count + 1)]
        client_ports = [self._reserved() for _ in names]
        peer_ports = [self._reserved() for _ in names]
        seeds = [Address(LOOPBACK, port) for port in peer_ports]
        common = NodeConfig(self.cluster_id, **self._settings)
        check(common)
        for name, port, peer_port in zip(names, client_ports, peer_ports, strict=True):
            data = str(self._directory / name)
            config = replace(common, name=name, data=data, port=port, peer_port=peer_port)
            others = [seed for seed in seeds if seed.port != peer_port]
            hosted = HostedNode(config, self._cables, others)
            node = ClusterNode(hosted, f"bus://{LOOPBACK}:{port}")
            self._hosted[node] = hosted
        self.nodes = tuple(self._hosted)

    def _reserved(self) -> int:
        port = ReservedPort()
        self._stack.callback(port.close)
        return port.number

    async def _start_all(self) -> None:
        for hosted in self._hosted.values():
            await hosted.start(self._loop.nursery)

    async def _kill_all(self) -> None:
        for hosted in self._hosted.values():
            if hosted.is_running:
                await hosted.kill()

    def _running(self, node: ClusterNode) -> RunningNode:
        hosted = self._hosted[node]
        if hosted.last is None or not hosted.is_running:
            raise RuntimeError(f"{node.name} is down: restart it first")
        return hosted.last

    async def _wait_meshed(self, timeout_s: float) -> None:
        deadline = trio.current_time() + timeout_s
        while missing := self._missing():
            if trio.current_time() > deadline:
                raise TimeoutError(f"after {timeout_s:g} s still: {'; '.join(missing)}")
            await trio.sleep(LOOK_EVERY_S)

    def _missing(self) -> list[str]:
        running = [self._running(node).peers for node in self.nodes if node.is_running]
        return not_meshed(running, self._cables.is_cut)
