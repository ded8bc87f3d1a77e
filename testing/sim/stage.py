"""Where a run takes place: the cluster, its disks as they are for sure, and its history.

Faults act through it, and it knows what may be destroyed: nothing of which no other disk has a
whole copy.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from busnode.testing.sim.cluster import SimulatedCluster, SimulatedNode
from busnode.testing.sim.directory import File
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.history import (
    Acked,
    Gone,
    History,
    Lost,
    NodeCrashed,
    NodeDown,
    NodeUp,
)
from busnode.testing.sim.innermost import innermost
from busnode.testing.sim.platter import Platter, Record, payloads_of
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId, LogId, Topic

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
        self.retain_s: dict[str, float] = {}
        """How long each node keeps messages."""
        self.expired: dict[tuple[LogId, int], None] = {}
        """What retention has dropped somewhere, rightly."""
        self.lost: dict[tuple[LogId, int], None] = {}
        """What faults took from all disks."""
        self.rotten: dict[tuple[LogId, int], None] = {}
        """What was damaged on some disk."""
        self._doubled: dict[tuple[LogId, int], None] = {}
        """What is on two disks since the last heal."""
        self.bodies: dict[tuple[LogId, int], bytes] = {}
        """Of what has expired or was taken, as far as a disk had it."""
        self._busy: dict[str, None] = {}
        self._destroyed: dict[tuple[LogId, int], dict[str, None]] = {}
        cluster.on_crash = self._crashed

    # Nodes ----------------------------------------------------------------------------------------

    async def begin(self, settings: dict[str, Any], retain_s: dict[str, float]) -> None:
        self.retain_s = retain_s
        for name in self.names:
            mine = {**settings, "retain_s": retain_s[name]}
            node = SimulatedNode(self.cluster, name, mine)
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

    def is_safe(self, log_id: LogId, msg_no: int) -> bool:
        """Whether a message is on some disk for sure, or was until it expired or was taken."""
        place = log_id, msg_no
        return (
            any(each.holds(log_id, msg_no) for each in self.platters.values())
            or place in self.expired
            or place in self._destroyed
        )

    def destroys(self, name: str, log_id: LogId, numbers: Iterable[int]) -> None:
        """A fault is about to take messages from a disk."""
        for number in numbers:
            self._destroyed.setdefault((log_id, number), {})[name] = None

    def takes(self, names: Iterable[str], log_id: LogId, numbers: range) -> None:
        """A fault is about to take messages from these disks, which are all that have them."""
        for name in names:
            self.destroys(name, log_id, numbers)
            for file in self.platters[name].files_of(log_id.broker_id):
                for record in self.platters[name].records(file, log_id.broker_id):
                    if record.topic == log_id.topic and numbers[0] in record.numbers:
                        self._remember(log_id, record, file)
        self.lost.update(((log_id, number), None) for number in numbers)
        self.history.add(Lost(self.now, log_id, numbers[0], numbers[-1]))

    def is_gone(self, log_id: LogId, msg_no: int) -> bool:
        """Whether nobody can serve a message any more, and nobody is to blame for that."""
        place = log_id, msg_no
        known = place in self.lost or place in self.expired
        return known and not self.holders(log_id, msg_no)

    def is_missed(self, log_id: LogId, msg_no: int) -> bool:
        """Whether somebody can know that there was such a number: there is a later one."""
        return any(each.has_beyond(log_id, msg_no) for each in self.platters.values())

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

    def lonely(self) -> Iterator[str]:
        """Acked messages that are on one disk alone: they should have been mirrored, or copied
        since. Not those of which a copy was damaged: nobody knows of it before it is read. Nor
        those that could not be read when a copy was made, which begins behind them for good."""
        for event in self.history.of(Acked):
            place = event.log_id, event.msg_no
            if place in self._doubled or place in self.rotten or place in self.expired:
                continue
            holders = self.holders(*place)
            others = [each for name, each in self.platters.items() if name not in holders]
            if len(holders) == 1 and not any(each.begins_behind(*place) for each in others):
                yield f"{event.log_id} {event.msg_no} is on the disk of {holders[0]} alone"
            else:
                self._doubled[place] = None  # nothing takes a disk away any more

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
            for number in record.numbers
        }
        records = [each for each in platter.records(file, broker_id) if each.offset >= size_bytes]
        first_no = platter.first_no_of(path)
        for record in records:
            numbers = record.numbers
            is_kept = all((record.topic, number) in kept for number in numbers)
            reason = "it is in another file of this disk" if is_kept else ""
            log_id = LogId(broker_id, Topic(record.topic))
            if not is_kept and self._is_old(node, record, broker_id):
                reason = "it was too old"
                # What is damaged beside it in the same file goes along.
                is_last = record is records[-1]
                next_no = platter.first_no_behind(path) if is_last else numbers[-1] + 1
                numbers = range(first_no, max(next_no, numbers[-1] + 1))
                self.expired.update(((log_id, number), None) for number in numbers)
                self._remember(log_id, record, file)
            first_no = numbers[-1] + 1
            where = node.name, path, log_id
            self.history.add(Gone(self.now, *where, numbers[0], numbers[-1], reason, is_kept))
        if not records and not size_bytes and by is None:
            self._damaged_gone(node, path, file, broker_id)

    def _damaged_gone(
        self, node: SimulatedNode, path: str, file: File, broker_id: BrokerId
    ) -> None:
        """A file goes in which all is damaged: what was there has expired with what is around."""
        platter = self.platters[node.name]
        topic, first_no = platter.topic_of(file), platter.first_no_of(path)
        numbers = range(first_no, platter.first_no_behind(path))
        if topic is not None and numbers:
            log_id = LogId(broker_id, Topic(topic))
            self.expired.update(((log_id, number), None) for number in numbers)
            reason, where = "it was damaged and too old", (node.name, path, log_id)
            self.history.add(Gone(self.now, *where, numbers[0], numbers[-1], reason, False))

    def _remember(self, log_id: LogId, record: Record, file: File) -> None:
        for number, payload in zip(record.numbers, payloads_of(file, record), strict=True):
            self.bodies.setdefault((log_id, number), payload)

    def _is_old(self, node: SimulatedNode, record: Record, broker_id: BrokerId) -> bool:
        """Whether a record is older than its origin keeps messages. It was not stored before it was
        published, so this is the least that its age must be."""
        retain_s = self.retain_s.get(self.wrote.get(broker_id, ""), max(self.retain_s.values()))
        return node.clock.utc_us() - record.utc_us > retain_s * 1e6

    # Chance and time ------------------------------------------------------------------------------

    def entropy(self, number: int) -> SimEntropy:
        """For one fault."""
        return SimEntropy(f"{self.seed}/fault {number}")

    @property
    def now(self) -> float:
        return self.history.now()
