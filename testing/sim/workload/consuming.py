"""Those who read: all of it, from now on, with a position that they keep in several ways."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from busnode.client import Bus, FileCursorStore, Gap, MemoryCursorStore, Message, Subscription
from busnode.client.inbox import CREDIT_BYTES
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

BACK_S: Final = (0.0, AGAIN_S)

VISIT_S: Final = (1.0, 12.0)
"""How long one stays that comes and goes."""

AWAY_S: Final = (4.0, 16.0)
"""How long one stays away that comes seldom."""

SEEN_S: Final = (0.5, 3.0)
"""How long it stays when it comes."""

INBOX_BYTES_MAX: Final = 16 * 1024 * 1024


class Reader:
    """One consumer, through all its subscriptions."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        homes: list[str],
        pattern: str,
        how: str,
        credit_bytes: int = CREDIT_BYTES,
    ) -> None:
        """`how` is `earliest`, `latest`, `memory`, `away`, `file`, `durable`, `queue` or `live`."""
        self.name = name
        self.how = how
        self.pattern = pattern
        self.got: dict[bytes, int] = {}
        """Payloads, and how often each has come."""
        self.excused: dict[tuple[LogId, int], None] = {}
        """Numbers of which it was told that they cannot be had."""
        self.may_leave = True
        self._credit_bytes = credit_bytes
        self._is_fresh = True
        self._begins: dict[LogId, int] = {}
        """Where a session began that had no position: what has expired before that is not told."""
        self._stage = stage
        self._homes = homes
        self._entropy = SimEntropy(f"{stage.seed}/{name}")
        self._sessions = 0
        self._bus: Bus | None = None

    @property
    def home(self) -> str | None:
        """Where it is connected, or None."""
        return None if self._bus is None else self._bus.statistics().home

    async def run(self) -> None:
        match self.how:
            case "memory":
                store = MemoryCursorStore()
                await self._stay(lambda bus: self._visits(bus, VISIT_S, BACK_S, cursors=store))
            case "away":
                store = MemoryCursorStore()
                await self._stay(lambda bus: self._visits(bus, SEEN_S, AWAY_S, cursors=store))
            case "durable":
                await self._stay(lambda bus: self._visits(bus, VISIT_S, BACK_S, durable=self.name))
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
                async with self._subscribe(bus, **options) as messages:
                    self._began(messages, is_fresh=True)
                    await self._read(bus, messages)
            except BusnodeError as error:
                self._left(error.code)
            await trio.sleep(AGAIN_S)

    def _subscribe(self, bus: Bus, **options: Any) -> Subscription:
        return bus.subscribe(
            self.pattern, on_gap=self._gap, credit_bytes=self._credit_bytes, **options
        )

    async def _visits(
        self, bus: Bus, stays_s: tuple[float, float], away_s: tuple[float, float], **options: Any
    ) -> None:
        """Leaves now and then, with or without being done, and comes back to its position."""
        while True:
            try:
                kept: MemoryCursorStore | None = options.get("cursors")
                is_fresh = kept is None or kept.position is None
                async with self._subscribe(bus, start="earliest", **options) as messages:
                    self._began(messages, is_fresh)
                    with trio.move_on_after(self._entropy.between(*stays_s)):
                        await self._read(bus, messages)
                    if self._entropy.chance(0.5):
                        messages.done()
                self._left("on its own")
            except BusnodeError as error:
                self._left(error.code)
            await trio.sleep(self._entropy.between(*(away_s if self.may_leave else BACK_S)))

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
            is_fresh = not disk.exists("/kept/cursors")
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
                            self._subscribe(bus, start="earliest", cursors=store) as messages,
                        ):
                            self._began(messages, is_fresh)
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

    def _began(self, messages: Subscription, is_fresh: bool) -> None:
        self._sessions += 1
        position = tuple(
            (LogId(BrokerId(broker_id), Topic(topic)), int(msg_no))
            for (broker_id, topic), msg_no in sorted(messages.position.items())
        )
        event = Began(self._stage.now, self.name, self._sessions, self.how, position, is_fresh)
        self._stage.history.add(event)
        self._is_fresh = is_fresh
        if is_fresh:
            self._begins |= {log_id: msg_no + 1 for log_id, msg_no in position}

    def _left(self, how: str) -> None:
        self._stage.history.add(Left(self._stage.now, self.name, self._sessions, how))

    def _delivered(self, bus: Bus, message: Message) -> None:
        stage = self._stage
        log_id: LogId | None = None
        is_safe = True
        if message.broker_id is not None and message.msg_no is not None:
            log_id = LogId(message.broker_id, message.topic)
            is_safe = stage.is_safe(log_id, message.msg_no)
            if self._is_fresh:
                self._begins.setdefault(log_id, message.msg_no)
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
        node = self._stage.cluster.nodes.get((self.home or "").partition(":")[0])
        if node is None or not node.is_up:
            return set()
        up = {each.name for each in self._stage.cluster.up if not each.is_paused}
        return up & {node.name, *node.linked}

    def _gap(self, gap: Gap) -> None:
        stage = self._stage
        log_id = LogId(gap.broker_id, gap.topic)
        numbers = range(gap.first, min(gap.last or gap.first, gap.first + 1000) + 1)
        near = [stage.platters[name] for name in stage.names if name in self._within_reach()]
        held = tuple(
            number
            for number in numbers
            if (log_id, number) not in stage.expired
            and any(platter.holds(log_id, number) for platter in near)
        )
        if gap.last:
            for number in range(gap.first, gap.last + 1):
                self.excused[log_id, number] = None
        told = gap.first, gap.last, gap.reason
        stage.history.add(GapTold(stage.now, self.name, self._sessions, log_id, *told, held))

    def lacks(self, payload: bytes, log_id: LogId, msg_no: int) -> bool:
        """Whether an acked message is still to come to it, or a word about it."""
        if payload in self.got or (log_id, msg_no) in self.excused:
            return False
        if not self._stage.is_gone(log_id, msg_no):
            return True
        if (log_id, msg_no) in self._stage.expired and (
            self.how == "earliest" or msg_no < self._begins.get(log_id, 0)
        ):
            return False  # who wants the earliest there is begins with what is there
        return self._stage.is_missed(log_id, msg_no)
