"""Those who read: all of it, from now on, with a position that they keep in several ways."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from busnode.client import Bus, FileCursorStore, Gap, MemoryCursorStore, Message, Subscription
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.history import Began, Delivered, GapTold, Left, Measured
from busnode.testing.sim.life import DiskOfLife, HostOfLife
from busnode.testing.sim.stage import Stage
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId, LogId, Topic

AGAIN_S: Final = 0.5
"""When a consumer comes back that was refused."""

VISIT_S: Final = (1.0, 12.0)
"""How long one stays that comes and goes."""

INBOX_BYTES_MAX: Final = 16 * 1024 * 1024


class Reader:
    """One consumer, through all its subscriptions."""

    def __init__(self, stage: Stage, name: str, homes: list[str], pattern: str, how: str) -> None:
        """`how` is `earliest`, `latest`, `memory`, `file`, `durable`, `queue` or `live`."""
        self.name = name
        self.how = how
        self.pattern = pattern
        self.got: dict[bytes, int] = {}
        """Payloads, and how often each has come."""
        self.excused: dict[tuple[LogId, int], None] = {}
        """Numbers of which it was told that they cannot be had."""
        self._stage = stage
        self._homes = homes
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._sessions = 0
        self._bus: Bus | None = None

    async def run(self) -> None:
        match self.how:
            case "memory":
                store = MemoryCursorStore()
                await self._stay(lambda bus: self._visits(bus, cursors=store))
            case "durable":
                await self._stay(lambda bus: self._visits(bus, durable=self.name))
            case "file":
                await self._come_and_die()
            case "queue":
                await self._stay(lambda bus: self._read_on(bus, queue="group"))
            case "live":
                await self._stay(self._read_on)
            case start:
                await self._stay(lambda bus: self._read_on(bus, start=start))

    # How they come and go -------------------------------------------------------------------------

    async def _stay(self, work: Callable[[Bus], Awaitable[None]]) -> None:
        """With one connection for good, as far as the library keeps it."""
        while True:
            try:
                async with self._stage.cluster.client(
                    *self._homes, name=self.name, deadline_s=3600.0
                ) as bus:
                    await work(bus)
            except BusnodeError as error:
                self._left(error.code)
            await trio.sleep(AGAIN_S)

    async def _read_on(self, bus: Bus, **options: Any) -> None:
        while True:
            try:
                async with bus.subscribe(self.pattern, on_gap=self._gap, **options) as messages:
                    self._began(messages)
                    await self._read(bus, messages)
            except BusnodeError as error:
                self._left(error.code)
            await trio.sleep(AGAIN_S)

    async def _visits(self, bus: Bus, **options: Any) -> None:
        """Leaves now and then, with or without being done, and comes back to its position."""
        while True:
            try:
                async with bus.subscribe(
                    self.pattern, start="earliest", on_gap=self._gap, **options
                ) as messages:
                    self._began(messages)
                    with trio.move_on_after(self._entropy.between(*VISIT_S)):
                        await self._read(bus, messages)
                    if self._entropy.chance(0.5):
                        messages.done()
                self._left("on its own")
            except BusnodeError as error:
                self._left(error.code)
            await trio.sleep(self._entropy.between(0.0, AGAIN_S))

    async def _come_and_die(self) -> None:
        """Keeps its position in a file, and its machine loses power now and then."""
        stage = self._stage
        disk = SimDisk(f"{stage.seed}/{self.name}", clock=SimClock())
        disk.make_directory("/kept")
        disk.sync_directory("/")
        while True:
            files, network = DiskOfLife(disk), HostOfLife(stage.cluster.network.host(self.name))
            world = stage.cluster.world(
                self.name, f"life {self._sessions}", files=files, network=network
            )
            store = FileCursorStore("/kept/cursors", files)
            scope = trio.CancelScope()

            async def die(
                files: DiskOfLife = files,
                network: HostOfLife = network,
                scope: trio.CancelScope = scope,
            ) -> None:
                await trio.sleep(self._entropy.between(*VISIT_S))
                files.die()
                network.die()
                disk.power_loss()
                stage.cluster.network.reset(self.name)
                scope.cancel()

            try:
                with scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(die)
                        async with (
                            stage.cluster.client(
                                *self._homes, name=self.name, deadline_s=3600.0, world=world
                            ) as bus,
                            bus.subscribe(
                                self.pattern, start="earliest", cursors=store, on_gap=self._gap
                            ) as messages,
                        ):
                            self._began(messages)
                            await self._read(bus, messages)
            except* (BusnodeError, OSError):
                pass  # the dead cannot save
            self._left("without power")
            disk.kill()
            await trio.sleep(AGAIN_S)

    # What they see --------------------------------------------------------------------------------

    async def _read(self, bus: Bus, messages: Subscription) -> None:
        self._bus = bus
        async for message in messages:
            self._delivered(bus, message)
            held = messages.statistics().inbox_bytes
            if held > INBOX_BYTES_MAX:
                now = self._stage.now
                event = Measured(now, self.name, "inbox bytes", held, INBOX_BYTES_MAX)
                self._stage.history.add(event)

    def _began(self, messages: Subscription) -> None:
        self._sessions += 1
        position = tuple(
            (LogId(BrokerId(broker_id), Topic(topic)), int(msg_no))
            for (broker_id, topic), msg_no in sorted(messages.position.items())
        )
        event = Began(self._stage.now, self.name, self._sessions, self.how, position)
        self._stage.history.add(event)

    def _left(self, how: str) -> None:
        self._stage.history.add(Left(self._stage.now, self.name, self._sessions, how))

    def _delivered(self, bus: Bus, message: Message) -> None:
        stage = self._stage
        log_id: LogId | None = None
        is_safe = True
        if message.broker_id is not None and message.msg_no is not None:
            log_id = LogId(message.broker_id, message.topic)
            is_safe = bool(stage.holders(log_id, message.msg_no))
        payload = message.payload
        self.got[payload] = self.got.get(payload, 0) + 1
        connections = bus.statistics().connections
        stage.history.add(
            Delivered(
                stage.now, self.name, self._sessions, log_id, message.msg_no or 0, payload, is_safe,
                connections,
            )
        )  # fmt: skip

    def _within_reach(self) -> set[str]:
        """The home, and the nodes that are linked with it."""
        home = None if self._bus is None else self._bus.statistics().home
        node = self._stage.cluster.nodes.get((home or "").partition(":")[0])
        if node is None or not node.is_up:
            return set()
        up = {each.name for each in self._stage.cluster.up if not each.is_paused}
        return up & {node.name, *node.linked}

    def _gap(self, gap: Gap) -> None:
        stage = self._stage
        log_id = LogId(gap.broker_id, gap.topic)
        last = gap.last or gap.first
        near = self._within_reach()
        reachable = tuple(
            name
            for name in stage.names
            if name in near and all(
                stage.platters[name].holds(log_id, number)
                for number in range(gap.first, min(last, gap.first + 1000) + 1)
            )
        )  # fmt: skip
        if gap.last:
            for number in range(gap.first, gap.last + 1):
                self.excused[log_id, number] = None
        stage.history.add(
            GapTold(stage.now, self.name, self._sessions, log_id, gap.first, gap.last, gap.reason,
                    reachable)
        )  # fmt: skip
