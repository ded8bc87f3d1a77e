"""Trouble for a cluster of processes: nodes are killed and come back, and one loses its disk."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from busnode.wire.ids import BrokerId

from .process_cluster import Cluster, Node

PROGRESS_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Kinds:
    """How often which trouble comes: of a hundred, the rest is one node killed."""

    pairs: int = 0
    """Two nodes are killed at once."""
    pauses: int = 0
    """A node is stopped for some seconds, and goes on."""


class Trouble:
    """One run of it, from one seed. The processors and the disk have their own say in it."""

    def __init__(self, cluster: Cluster, chance: Random, kinds: Kinds | None = None) -> None:
        self.kills = 0
        self.wipes = 0
        self.pauses = 0
        self.wait_s = 0.0
        """The longest until all was meshed and mirrored again."""
        self.gone: set[BrokerId] = set()
        """Incarnations that were killed."""
        self.wiped: set[BrokerId] = set()
        """Those of them whose disk was lost later, and with it all that was nowhere else."""
        self.paused: set[BrokerId] = set()
        """Those that were stopped for a while: others may have taken them for dead."""
        self._cluster = cluster
        self._chance = chance
        self._kinds = kinds or Kinds()
        self._fragile = chance.choice(cluster.nodes)
        """The only one that loses its disk: of what is mirrored another one has a copy."""
        self._fragile_brokers: set[BrokerId] = set()

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.wipes} wipes, {self.pauses} pauses, mirrored again within "
            f"{self.wait_s:.2f} s"
        )

    async def whole(self) -> None:
        """Each fault meets a cluster in which all acks have a second disk again."""
        began = time.monotonic()
        await self._cluster.meshed()
        await self._cluster.mirrored()
        self.wait_s = max(self.wait_s, time.monotonic() - began)

    async def strike(self) -> None:
        """The next, after a moment; returns when the cluster is whole again."""
        chance, kinds = self._chance, self._kinds
        await trio.sleep(chance.uniform(0.3, 2.0))
        drawn = chance.randrange(100)
        down_s = chance.choice([0.0, 0.5, 3.0]) * chance.random()
        if drawn < kinds.pairs:
            await self._kill(chance.sample(self._cluster.nodes, 2), down_s)
        elif drawn < kinds.pairs + kinds.pauses:
            await self._pause(chance.choice(self._cluster.nodes), chance.uniform(0.5, 8.0))
        else:
            node = chance.choice([*self._cluster.nodes, self._fragile])
            wiped = node is self._fragile and chance.random() < 0.6
            await self._kill([node], down_s, wiped=wiped)
        await self.whole()

    async def _kill(self, nodes: list[Node], down_s: float, *, wiped: bool = False) -> None:
        for node in nodes:
            self.gone.add(_incarnation(node))
            if node is self._fragile:
                self._fragile_brokers.add(_incarnation(node))
            node.send(signal.SIGKILL)
        for node in nodes:
            await trio.to_thread.run_sync(node.end)
            self.kills += 1
        if wiped:
            self._fragile.wipe()
            self.wipes += 1
        await trio.sleep(down_s)
        for node in nodes:
            await trio.to_thread.run_sync(node.start)
        if wiped:
            self.wiped |= self._fragile_brokers

    async def _pause(self, node: Node, seconds: float) -> None:
        self.paused.add(_incarnation(node))
        self.pauses += 1
        node.send(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            node.send(signal.SIGCONT)


def _incarnation(node: Node) -> BrokerId:
    return BrokerId(bytes.fromhex(node.told["broker_id"]))


def shuffled_url(cluster: Cluster, chance: Random) -> str:
    """All nodes, in an order of its own for each client."""
    return cluster.url(*chance.sample(cluster.nodes, len(cluster.nodes)))


async def tell(progress: Callable[[str], None], how_it_stands: Callable[[], object]) -> None:
    """Say it now and then, until that is cancelled."""
    began = time.monotonic()
    while True:
        await trio.sleep(PROGRESS_EVERY_S)
        progress(f"{time.monotonic() - began:5.0f} s: {how_it_stands()}")
