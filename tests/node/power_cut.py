"""Power cuts: nodes whose disks stop between two instructions while clients publish.

After each cut the nodes start again on what is left. Whatever was acked must be there, at the
number that its receipt names, and so must all that a consumer has seen; each log without a hole and
without a repeat. Of two nodes whose disks are cut at the same instant each one alone must have what
was acked as mirrored. Run by `scripts/power-cut`, and in short by the tests.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import trio

from busnode.client import Bus, Message, connect

from .cut_disk import CutDisk, cannot_be, cut
from .process_cluster import PATIENCE_S, Cluster, Node

AWAITING: Final = 12
"""Tasks that publish one message after the other."""

WINDOW: Final = 64
"""Messages that the pipelined publisher sends before it waits for their acks."""

NEW_TOPICS_MAX: Final = 6
"""Of one cycle: files that did not exist before, whose names a cut may catch as well."""

ACKED_MIN: Final = 20
"""Acks before a cut: fewer would prove little."""

SEGMENT_SIZE: Final = "64KiB"
"""So small that a log goes on in a new file several times before a cut."""

ALONE_EVERY: Final = 4
"""Cycles of a pair between two looks at what one node has alone."""

SILENT_S: Final = 5.0
"""So long nothing more has come when what is missing is called lost."""


class Place(NamedTuple):
    """Where a message stands."""

    broker_id: bytes
    topic: str
    msg_no: int


@dataclass
class Tally:
    """What happened, to be printed and judged."""

    cycles: int = 0
    acks: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    """By a consumer before a cut."""
    read: int = 0
    """By consumers afterwards."""
    logs: int = 0
    longest_s: float = 0.0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = ", ".join(f"{count} {level}" for level, count in sorted(self.acks.items()))
        return (
            f"{self.cycles} cycles; acked: {levels or 'none'}; seen before a cut {self.seen}, read "
            f"after it {self.read} from {self.logs} logs; lost {len(self.lost)}, wrong "
            f"{len(self.wrong)}; longest cycle {self.longest_s:.2f} s"
        )


class Ledger:
    """What must never be lost: each message that was acked or seen, and where it stands."""

    def __init__(self, tally: Tally) -> None:
        self.payloads: dict[Place, bytes] = {}
        self.mirrored: set[Place] = set()
        self._tally = tally

    def acked(self, place: Place, payload: bytes, level: str) -> None:
        self._tally.acks[level] += 1
        if level == "mirrored":
            self.mirrored.add(place)
        self.keep(place, payload)

    def keep(self, place: Place, payload: bytes) -> None:
        if self.payloads.setdefault(place, payload) != payload:
            self._tally.wrong.append(f"{place} is {self.payloads[place]!r:.60} and {payload!r:.60}")


class Reading:
    """What one consumer finds: each log must go on where it has stopped."""

    def __init__(self, ledger: Ledger, tally: Tally) -> None:
        self.found: set[Place] = set()
        self._reached: dict[tuple[bytes, str], int] = {}
        self._ledger = ledger
        self._tally = tally

    def take(self, message: Message) -> Place:
        assert message.broker_id is not None
        assert message.msg_no is not None
        place = Place(message.broker_id, message.topic, message.msg_no)
        reached = self._reached.get(place[:2], 0)
        if place.msg_no != reached + 1:
            self._tally.wrong.append(f"{place} came after number {reached}")
        self._reached[place[:2]] = place.msg_no
        self.found.add(place)
        self._ledger.keep(place, message.payload)
        return place

    async def read(
        self, node: Node, wanted: Iterable[Place], what: str, cursors: Path | None = None
    ) -> None:
        """Read at a node until all is found, or until nothing more comes."""
        missing = set(wanted) - self.found
        async with (
            connect(node.url, name="auditor", deadline_s=PATIENCE_S) as bus,
            bus.subscribe("/cut/*", start="earliest", cursors=cursors, on_gap="raise") as messages,
        ):
            with trio.move_on_after(SILENT_S) as patience:
                while missing:
                    missing.discard(self.take(await anext(messages)))
                    self._tally.read += 1
                    patience.deadline = trio.current_time() + SILENT_S
            messages.done()
        self._tally.lost += [
            f"{what}: {place.broker_id.hex()} {place.topic} {place.msg_no} "
            f"({self._ledger.payloads[place]!r:.60})"
            for place in sorted(missing)
        ]
        self._tally.logs = max(self._tally.logs, len(self._reached))


class PowerCut:
    """One run over one or two nodes, from one seed. Processors and disks have a say in it too."""

    def __init__(self, folder: Path, disks: list[CutDisk], seed: int) -> None:
        self.tally = Tally()
        self._disks = disks
        self._folder = folder
        self._chance = Random(seed)
        self._cluster = Cluster(folder)
        self._cluster.nodes = [
            Node(self._cluster.id, disk.path.name, folder, segment_size=SEGMENT_SIZE)
            for disk in disks
        ]
        self._ledger = Ledger(self.tally)
        self._returning = Reading(self._ledger, self.tally)
        """The consumer that comes back after each cut, with its cursors."""

    @property
    def _nodes(self) -> list[Node]:
        return self._cluster.nodes

    async def run(self, cycles: int, progress: Callable[[str], None]) -> Tally:
        try:
            async with trio.open_nursery() as clients:
                for cycle in range(cycles):
                    began = time.monotonic()
                    await self._cycle(cycle, clients)
                    self.tally.cycles += 1
                    self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began)
                    if self.tally.cycles % 10 == 0:
                        progress(str(self.tally))
                    if self.tally.lost or self.tally.wrong:
                        return self.tally
                await self._end()
        finally:
            self._cluster.close()
        return self.tally

    async def _cycle(self, cycle: int, clients: trio.Nursery) -> None:
        if len(self._nodes) > 1 and cycle % ALONE_EVERY == ALONE_EVERY - 1:
            await self._look_alone(self._chance.choice(self._nodes))
        await self._start()
        # Clients that are cancelled try for a second to get rid of what was not acked. That is in
        # the next cycle, and nobody waits for it.
        scope = trio.CancelScope()
        await clients.start(self._work, cycle, scope)
        await self._until_enough()
        await trio.sleep(self._chance.choice([0.0, 0.05, 0.3]) * self._chance.random())
        await trio.to_thread.run_sync(self._cut)
        self._kill()
        scope.cancel()
        for disk in self._disks:
            disk.restore()

    def _cut(self) -> None:
        """Frozen first: the machine of a process is gone with its disk. And of a sync that is under
        way in that instant Linux says that it has succeeded, whatever it has written; nobody is to
        hear that."""
        for node in self._nodes:
            node.freeze()
        cut(self._disks)

    async def _until_enough(self) -> None:
        enough = self.tally.acks.total() + ACKED_MIN
        with trio.fail_after(PATIENCE_S):
            while self.tally.acks.total() < enough:
                await trio.sleep(0.001)

    async def _start(self) -> None:
        """All nodes are up; whoever was away has got what it missed."""
        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                if not node.is_running:
                    nursery.start_soon(trio.to_thread.run_sync, node.start)
        if len(self._nodes) > 1:
            await self._cluster.mirrored()
        home = self._chance.choice(self._nodes)
        cursors = self._folder / "returning.cursors"
        await self._returning.read(home, self._ledger.payloads, f"back at {home.name}", cursors)

    async def _look_alone(self, node: Node) -> None:
        """One node must have all that was acked as mirrored, whatever became of the other."""
        await trio.to_thread.run_sync(node.start)
        reading = Reading(self._ledger, self.tally)
        await reading.read(node, self._ledger.mirrored, f"{node.name} alone")

    async def _end(self) -> None:
        """All that there ever was, read from the beginning; and each node alone."""
        await self._start()
        reading = Reading(self._ledger, self.tally)
        await reading.read(self._chance.choice(self._nodes), self._ledger.payloads, "the last look")
        self._kill()
        for node in self._nodes if len(self._nodes) > 1 else ():
            await self._look_alone(node)
            self._kill()
        for disk in self._disks:
            disk.check()

    def _kill(self) -> None:
        for node in self._nodes:
            node.end()

    # Clients --------------------------------------------------------------------------------------

    async def _work(
        self,
        cycle: int,
        scope: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch, self._chance.choice(self._nodes))
                nursery.start_soon(self._publish, self._chance.choice(self._nodes), cycle)
                task_status.started()

    async def _watch(
        self, node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """A consumer that is there when it happens: what it has seen must stay."""
        async with (
            connect(node.url, name="watcher", deadline_s=PATIENCE_S) as bus,
            bus.subscribe("/cut/*") as messages,
        ):
            task_status.started()
            async for message in messages:
                assert message.broker_id is not None
                assert message.msg_no is not None
                place = Place(message.broker_id, message.topic, message.msg_no)
                self._ledger.keep(place, message.payload)
                self.tally.seen += 1

    async def _publish(self, node: Node, cycle: int) -> None:
        async with (
            connect(node.url, name="publisher", deadline_s=PATIENCE_S) as bus,
            trio.open_nursery() as nursery,
        ):
            for task in range(AWAITING):
                nursery.start_soon(self._publish_awaited, bus, cycle, task)
            nursery.start_soon(self._publish_pipelined, bus, cycle)

    async def _publish_awaited(self, bus: Bus, cycle: int, task: int) -> None:
        chance = Random(self._chance.random())
        for number in count():
            topic = f"/cut/{task % 3}"
            if task < NEW_TOPICS_MAX and number == 3:
                topic = f"/cut/new/{cycle}/{task}"
            payload = b"%d %d %d " % (cycle, task, number) + bytes(chance.choice([0, 100, 4000]))
            receipt = await bus.publish(topic, payload, persistent=True)
            self._ledger.acked(
                Place(receipt.broker_id, topic, receipt.msg_no), payload, receipt.level
            )

    async def _publish_pipelined(self, bus: Bus, cycle: int) -> None:
        topic = "/cut/pipelined"
        async with bus.publisher(topic, persistent=True) as out:
            for number in count(0, WINDOW):
                payloads = [b"%d %d" % (cycle, number + each) for each in range(WINDOW)]
                await out.send_many(payloads)
                receipts = await out.flush()
                for payload, receipt in zip(payloads, receipts, strict=True):
                    place = Place(receipt.broker_id, topic, receipt.msg_no)
                    self._ledger.acked(place, payload, receipt.level)


async def power_cuts(
    folder: Path, nodes: int, cycles: int, seed: int, progress: Callable[[str], None]
) -> Tally:
    with ExitStack() as stack:
        disks = [
            stack.enter_context(CutDisk(folder / f"n{number}")) for number in range(1, nodes + 1)
        ]
        return await PowerCut(folder, disks, seed).run(cycles, progress)


def main() -> None:
    words = argparse.ArgumentParser("scripts/power-cut", description=__doc__)
    words.add_argument("--cycles", type=int, default=100, help="power cuts, half of them of pairs")
    words.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    given = words.parse_args()
    reason = cannot_be()
    if reason is not None:
        words.error(reason)
    logging.getLogger("busnode").setLevel(logging.CRITICAL)  # what clients go through is meant
    print(f"seed {given.seed}", flush=True)
    failed = False
    for nodes, name in ((1, "one node"), (2, "a pair")):
        with tempfile.TemporaryDirectory(prefix="busnode-power-cut-") as folder:

            def progress(line: str, name: str = name) -> None:
                print(f"{name}: {line}", flush=True)

            cycles = (given.cycles + 2 - nodes) // 2
            tally = trio.run(power_cuts, Path(folder), nodes, cycles, given.seed, progress)
        progress(f"in all: {tally}")
        for sentence in [*tally.lost[:20], *tally.wrong[:20]]:
            print(sentence)
        failed = failed or bool(tally.lost or tally.wrong)
    if failed:
        print(f"FAILED; to repeat: scripts/power-cut --cycles {given.cycles} --seed {given.seed}")
        sys.exit(1)


if __name__ == "__main__":
    main()
