"""Where a run takes place: the cluster, its disks as they are for sure, and its history.

Faults act through it, and it knows what may be destroyed: nothing of which no other disk has a
whole copy.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final

import trio

from busnode.testing.sim.cluster import SimulatedCluster, SimulatedNode
from busnode.testing.sim.directory import File
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.history import Gone, History, NodeCrashed, NodeDown, NodeUp
from busnode.testing.sim.innermost import innermost
from busnode.testing.sim.platter import Platter
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import LogId, Topic

START_AGAIN_S: Final = 1.0
"""When a node is started again that could not start."""


class Skipped(Exception):
    """A fault that cannot be done now, or may not."""


class Stage:
    def __init__(
        self, seed: int, cluster: SimulatedCluster, history: History, names: list[str]
    ) -> None:
        self.seed = seed
        self.cluster = cluster
        self.history = history
        self.names = names
        """The nodes that are always there again in the end."""
        self.clients: list[str] = []
        """The hosts of clients."""
        self.platters: dict[str, Platter] = {}
        self.wrote: dict[bytes, str] = {}
        """Which node an incarnation belongs to."""
        self._busy: dict[str, None] = {}
        self._destroyed: dict[tuple[LogId, int], dict[str, None]] = {}
        cluster.on_crash = self._crashed

    # Nodes ----------------------------------------------------------------------------------------

    async def begin(self, settings: dict[str, Any]) -> None:
        for name in self.names:
            node = SimulatedNode(self.cluster, name, settings)
            self.cluster.nodes[name] = node
            self.take_disk(node, node.disk)
            await self.start(node)

    def take_disk(self, node: SimulatedNode, disk: SimDisk) -> None:
        """From now on a node has this disk."""
        node.disk = disk
        self.platters[node.name] = Platter(disk)

        def gone(path: str, file: File, size_bytes: int, by: File | None) -> None:
            self._gone(node, path, file, size_bytes, by)

        disk.on_gone = gone

    async def start(self, node: SimulatedNode) -> None:
        """Start it, again and again while its disk does not let it.

        After a sync has failed nobody knows what is on the platter, and the system, which shows it
        all the same, says of the next sync that all is well. A person who knows of it does not
        trust that memory: the machine is started anew, not the process alone.
        """
        if node.disk.has_doubts:
            self.history.add(NodeDown(self.now, node.name, "its machine is started anew"))
            node.disk.power_loss()
        while True:
            try:
                await node.start()
            except (BusnodeError, OSError) as error:
                self.history.add(NodeDown(self.now, node.name, f"cannot start: {error}"))
                await trio.sleep(START_AGAIN_S)
            else:
                break
        self.note_incarnations()
        self.history.add(NodeUp(self.now, node.name, node.node.broker_id.hex()[:8]))

    def note_incarnations(self) -> None:
        """Remember who writes what now: a node begins anew when its disk fails."""
        for node in self.cluster.up:
            self.wrote[node.node.broker_id] = node.name

    @contextmanager
    def alone_with(self, *names: str) -> Generator[list[SimulatedNode]]:
        """Nodes that run, and that nobody else ends or starts meanwhile."""
        nodes = [self.cluster[name] for name in names]
        for node in nodes:
            if node.name in self._busy or not node.is_up:
                raise Skipped(f"{node.name} is down, or about to be")
        for node in nodes:
            self._busy[node.name] = None
        try:
            yield nodes
        finally:
            for node in nodes:
                self._busy.pop(node.name, None)

    def down(self, node: SimulatedNode, how: str) -> None:
        self.history.add(NodeDown(self.now, node.name, how))

    def _crashed(self, name: str, error: Exception) -> None:
        self.history.add(NodeCrashed(self.now, name, innermost(error)))

    # Disks ----------------------------------------------------------------------------------------

    def holders(self, log_id: LogId, msg_no: int) -> tuple[str, ...]:
        """Whose disks have a message for sure."""
        found = (name for name, each in self.platters.items() if each.holds(log_id, msg_no))
        return tuple(found)

    def had(self, log_id: LogId, msg_no: int) -> tuple[str, ...]:
        """Whose disks have a message for sure, or had it until a fault took it from them: its ack
        may have been on its way then."""
        taken = self._destroyed.get((log_id, msg_no), {})
        return tuple(dict.fromkeys((*self.holders(log_id, msg_no), *taken)))

    def destroys(self, name: str, log_id: LogId, numbers: Iterable[int]) -> None:
        """A fault is about to take messages from a disk."""
        for number in numbers:
            self._destroyed.setdefault((log_id, number), {})[name] = None

    def others(self, name: str) -> list[Platter]:
        """The disks of all other nodes that stay."""
        return [self.platters[other] for other in self.names if other != name]

    def spares(self, name: str) -> str | None:
        """None when all that a disk has is on another one too; else what is not."""
        others = [each.contents() for each in self.others(name)]
        for log_id, numbers in self.platters[name].contents().items():
            for number, record in numbers.items():
                copies = (other.get(log_id, {}).get(number) for other in others)
                if all(copy is None or copy.body_hash != record.body_hash for copy in copies):
                    return f"{log_id} {number} is on no other disk"
        return None

    def _gone(
        self, node: SimulatedNode, path: str, file: File, size_bytes: int, by: File | None
    ) -> None:
        """A program is about to do away with a file, or with the end of it."""
        platter = self.platters[node.name]
        broker_id = platter.broker_of(path)
        if broker_id is None:
            return
        others = [each for each in platter.files_of(broker_id) if each is not file]
        if by is not None:
            others.append(by)
        kept = {
            (record.topic, number)
            for other in others
            for record in platter.records(other, broker_id)
            for number in range(record.first_no, record.last_no + 1)
        }
        for record in platter.records(file, broker_id):
            if record.offset >= size_bytes:
                numbers = range(record.first_no, record.last_no + 1)
                is_kept = all((record.topic, number) in kept for number in numbers)
                reason = "it is in another file of this disk" if is_kept else ""
                log_id = LogId(broker_id, Topic(record.topic))
                self.history.add(
                    Gone(self.now, node.name, path, log_id, numbers[0], numbers[-1], reason)
                )

    # Chance and time ------------------------------------------------------------------------------

    def entropy(self, number: int) -> SimEntropy:
        """For one fault."""
        return SimEntropy(f"{self.seed}/fault {number}")

    @property
    def now(self) -> float:
        return self.history.now()
