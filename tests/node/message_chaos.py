"""Chaos: publishers and consumers at work while nodes are killed, and one loses its disk.

Each message that was acked must reach each consumer once. What may be lost is what was acked as
`local` by the node whose disk was lost. Run by `scripts/chaos messages`, and in short by the tests.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio

from busnode.client import Bus, Message, connect
from busnode.wire.ids import BrokerId

from .process_cluster import PATIENCE_S, Cluster, cluster_of
from .trouble import Kinds, Trouble, shuffled_url, tell

PUBLISHERS: Final = 4
CONSUMERS: Final = 3
PAUSE_S: Final = 0.004
"""Between two messages of a publisher: the trouble is to last longer than what is published."""

UNKNOWN, LOCAL, MIRRORED, LOCAL_AND_WIPED = range(4)
"""What became of a message: the last is one that may be lost."""


@dataclass
class Tally:
    """What happened, to be printed and judged."""

    trouble: Trouble
    acks: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0
    returns: int = 0
    repeats: int = 0
    """Dropped by the client."""
    again: int = 0
    """Messages that came a second time after a return: of two logs, the first of which was not done
    when its consumer went."""
    gaps: int = 0
    pause_s: float = 0.0
    """The longest that a consumer saw between two deliveries while there was publishing."""
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = ", ".join(f"{count} {level}" for level, count in sorted(self.acks.items()))
        return (
            f"{self.trouble}; {self.returns} returns of consumers; acks: "
            f"{levels or 'none'}; {self.deliveries} deliveries, {len(self.lost)} losses, "
            f"{self.repeats} repeats dropped, {self.again} again after a return, {self.gaps} gaps; "
            f"longest pause {self.pause_s:.2f} s"
        )


class Publisher:
    """Publishes one message after the other, and awaits the receipt of each."""

    def __init__(self, number: int, tally: Tally) -> None:
        self.number = number
        self.outcomes: array[int] = array("B")
        """Of each message what it was acked as."""
        self.brokers: list[BrokerId] = []
        self._places: dict[BrokerId, int] = {}
        self.acked_by: array[int] = array("L")
        """For each message its broker's place in `brokers`."""
        self._tally = tally

    async def run(self, cluster: Cluster, chance: Random, stop: trio.Event) -> None:
        url = shuffled_url(cluster, chance)
        async with connect(url, name=f"publisher {self.number}", deadline_s=PATIENCE_S) as bus:
            while not stop.is_set():
                await self._publish(bus)
                await trio.sleep(chance.uniform(0, 2 * PAUSE_S))

    async def _publish(self, bus: Bus) -> None:
        number = len(self.outcomes)
        payload = b"%d %d" % (self.number, number)
        topic = f"/chaos/{self.number % 2}"  # some share a log
        self.outcomes.append(UNKNOWN)
        self.acked_by.append(0)
        receipt = await bus.publish(topic, payload, persistent=True)
        place = self._places.setdefault(receipt.broker_id, len(self.brokers))
        if place == len(self.brokers):
            self.brokers.append(receipt.broker_id)
        self.outcomes[number] = MIRRORED if receipt.level == "mirrored" else LOCAL
        self.acked_by[number] = place
        self._tally.acks[receipt.level] += 1


class Consumer:
    """Reads all, leaves now and then, and comes back with its cursor file."""

    def __init__(self, name: str, folder: Path, tally: Tally) -> None:
        self.name = name
        self._cursors = folder / f"{name}.cursors"
        self._tally = tally
        self.seen: dict[int, bytearray] = {number: bytearray() for number in range(PUBLISHERS)}
        """For each publisher how often each of its messages came."""
        self._visits: dict[tuple[int, int], int] = {}
        self._visit = 0
        self._reached: dict[tuple[bytes | None, str], int] = {}
        self._last_at: float | None = None
        self.publishing = True

    async def run(self, cluster: Cluster, chance: Random) -> None:
        while True:
            self._visit += 1
            self._last_at = None
            url = shuffled_url(cluster, chance)
            async with (
                connect(url, name=self.name, deadline_s=PATIENCE_S) as bus,
                bus.subscribe("/chaos/*", start="earliest", cursors=self._cursors,
                              on_gap=self._gap) as messages,
            ):  # fmt: skip
                self._last_at = time.monotonic()
                with trio.move_on_after(chance.uniform(1.0, 8.0)):
                    async for message in messages:
                        self._take(message)
                messages.done()
                self._tally.repeats += messages.statistics().repeats
            self._tally.returns += 1
            await trio.sleep(chance.uniform(0.0, 0.5))

    def _take(self, message: Message) -> None:
        now = time.monotonic()
        if self._last_at is not None and self.publishing:
            self._tally.pause_s = max(self._tally.pause_s, now - self._last_at)
        self._last_at = now
        self._tally.deliveries += 1
        assert message.msg_no is not None
        log = (message.broker_id, message.topic)
        if message.msg_no <= self._reached.get(log, 0):
            self._wrong(f"{message.payload!r} is {message.msg_no} of {log}, which was read to "
                        f"{self._reached[log]}")  # fmt: skip
        self._reached[log] = message.msg_no
        publisher, number = map(int, message.payload.split())
        seen = self.seen[publisher]
        if number >= len(seen):
            seen.extend(bytes(number + 1000 - len(seen)))
        seen[number] = min(seen[number] + 1, 255)
        if seen[number] > 1:
            if self._visits.get((publisher, number)) == self._visit:
                self._wrong(f"{message.payload!r} came twice in one visit")
            self._tally.again += 1
        self._remember(publisher, number)

    def _remember(self, publisher: int, number: int) -> None:
        """In which visit it came; of this visit and the one before alone, which bounds it."""
        self._visits[publisher, number] = self._visit
        if len(self._visits) > 1_000_000:
            self._visits = {k: v for k, v in self._visits.items() if v >= self._visit - 1}

    def _wrong(self, what: str) -> None:
        self._tally.wrong.append(f"{self.name}: {what}")

    def _gap(self, _: object) -> None:
        """That nobody who is up has a log is told to whoever returns meanwhile. It is no loss:
        what the log has comes when its node does."""
        self._tally.gaps += 1

    def lacks(self, publishers: list[Publisher]) -> list[str]:
        """What was acked, must not be lost, and has not come."""
        found: list[str] = []
        for publisher in publishers:
            seen = self.seen[publisher.number]
            for number, outcome in enumerate(publisher.outcomes):
                if outcome in (LOCAL, MIRRORED) and not (number < len(seen) and seen[number]):
                    broker = publisher.brokers[publisher.acked_by[number]].hex()
                    level = "mirrored" if outcome == MIRRORED else "local"
                    found.append(f"{publisher.number} {number}, {level} at {broker}")
        return found


class Chaos:
    """One run, from one seed. The processors and the disk have their own say in it."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, kinds: Kinds) -> None:
        self._cluster = cluster
        self._folder = folder
        self._chance = Random(seed)
        self._trouble = Trouble(cluster, self._chance, kinds)
        self.tally = Tally(self._trouble)
        self._publishers = [Publisher(number, self.tally) for number in range(PUBLISHERS)]
        self._consumers = [Consumer(f"c{n}", folder, self.tally) for n in range(CONSUMERS)]

    async def run(self, seconds: float, progress: Callable[[str], None]) -> Tally:
        stop = trio.Event()
        await self._trouble.whole()
        async with trio.open_nursery() as consuming:
            for consumer in self._consumers:
                consuming.start_soon(consumer.run, self._cluster, Random(self._chance.random()))
            consuming.start_soon(tell, progress, lambda: self.tally)
            async with trio.open_nursery() as publishing:
                for publisher in self._publishers:
                    chance = Random(self._chance.random())
                    publishing.start_soon(publisher.run, self._cluster, chance, stop)
                end_at = time.monotonic() + seconds
                while time.monotonic() < end_at:
                    await self._trouble.strike()
                    self._excuse()
                stop.set()
            for consumer in self._consumers:
                consumer.publishing = False
            # The others have had most messages before something happened to them; this one has all
            # from what is left.
            auditor = Consumer("auditor", self._folder, self.tally)
            auditor.publishing = False
            self._consumers.append(auditor)
            consuming.start_soon(auditor.run, self._cluster, Random(self._chance.random()))
            await self._settle()
            consuming.cancel_scope.cancel()
        return self.tally

    def _excuse(self) -> None:
        """What the fragile node acked as local was on its disk alone."""
        for publisher in self._publishers:
            for number, outcome in enumerate(publisher.outcomes):
                broker = outcome == LOCAL and publisher.brokers[publisher.acked_by[number]]
                if broker in self._trouble.wiped:
                    publisher.outcomes[number] = LOCAL_AND_WIPED

    async def _settle(self) -> None:
        """Wait until all have everything, as long as more comes."""
        delivered, since = self.tally.deliveries, time.monotonic()
        while any(consumer.lacks(self._publishers) for consumer in self._consumers):
            await trio.sleep(0.1)
            if self.tally.deliveries != delivered:
                delivered, since = self.tally.deliveries, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                break
        self.tally.lost = [
            f"{consumer.name} lacks {message}"
            for consumer in self._consumers
            for message in consumer.lacks(self._publishers)
        ]


async def message_chaos(
    folder: Path,
    seconds: float,
    seed: int,
    nodes: int,
    kinds: Kinds,
    progress: Callable[[str], None],
) -> Tally:
    async with cluster_of(folder, nodes) as cluster:
        return await Chaos(cluster, folder, seed, kinds).run(seconds, progress)
