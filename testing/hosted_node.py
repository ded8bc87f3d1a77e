"""A node on a loop that is not its own, with a life like a process: started, ended, killed."""

from collections.abc import Sequence
from dataclasses import replace

import trio

from busnode.node.config import NodeConfig
from busnode.node.node import RunningNode, start_node
from busnode.testing.cut_network import Cables, CutNetwork
from busnode.testing.mortal_files import MortalFiles
from busnode.world.network import Address
from busnode.world.real_world import real_world
from busnode.world.static_discovery import StaticDiscovery


class HostedNode:
    """One node of a cluster, through all its lives. All of it is to be called on the loop."""

    def __init__(self, config: NodeConfig, cables: Cables, seeds: Sequence[Address]) -> None:
        """The config names the node, and the ports that it has in each of its lives."""
        assert config.name is not None
        self.name = config.name
        self.last: RunningNode | None = None
        """What runs, or has run last."""
        self.is_running = False
        self._config = config
        self._cables = cables
        self._seeds = seeds

    async def start(self, nursery: trio.Nursery) -> None:
        """Live from now on in the nursery. Raises what a node raises that cannot start."""
        assert not self.is_running
        self._files = MortalFiles()
        self._network = CutNetwork(self.name, self._cables)
        self._leave = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        await nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        world = replace(
            real_world(StaticDiscovery(self._seeds)), files=self._files, network=self._network
        )
        try:
            with self._scope:
                async with start_node(world, self._config) as self.last:
                    self.is_running = True
                    task_status.started()
                    await self._leave.wait()
        finally:
            self.is_running = False
            self._ended.set()

    async def leave(self) -> None:
        """End as by SIGTERM: drain, say goodbye, close."""
        self._leave.set()
        await self._ended.wait()

    async def kill(self) -> None:
        """End as by SIGKILL: from now on nothing is sent and nothing is written.

        Its tasks are ended and find a network and a disk that are gone; so its data directory is
        free again when this returns, and holds what had been written.
        """
        assert self.last is not None
        self._files.die()
        self._network.die()
        self.last.hurry()
        self._scope.cancel()
        self.is_running = False
        await self._ended.wait()
