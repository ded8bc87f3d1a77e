"""A client in the protocol's own words, and nodes for it to talk to.

It knows frames and nothing else: no window, no positions, no reconnecting. So a test says exactly
what goes over the wire and sees exactly what comes back. Every wait has a limit: what never comes
fails a test and does not hang it.
"""

import errno
import gc
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import thread_time
from typing import Any, Final, TypeVar, cast

import trio

from busnode.node.config import NodeConfig
from busnode.node.node import RunningNode, start_node
from busnode.node.session import ClientSession
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate
from busnode.wire.batches import decode_columns
from busnode.wire.control import (
    Ack,
    Chunk,
    Control,
    Credit,
    Error,
    Gap,
    Hello,
    Ping,
    Pong,
    Subscribe,
    Subscribed,
    Welcome,
    encode_control,
)
from busnode.wire.frames import HEADER_BYTES, BatchHeader, Flags, read_header
from busnode.wire.ids import BrokerId, ClientNo, LogId, Topic
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import DELIVERED_KINDS
from busnode.world.files import Files
from busnode.world.network import Address, Network, Stream
from busnode.world.real_world import real_world
from busnode.world.static_discovery import StaticDiscovery
from busnode.world.world import World

from ..wire.samples import batch

M = TypeVar("M", bound=Control)
T = TypeVar("T")

WAIT_S: Final = 10.0
"""Far more than anything here takes on the slowest machine."""

AMPLE: Final = 1 << 40
"""Credit that never runs out."""

PERSISTENT: Final = int(Flags.GLOBAL | Flags.PERSISTENT)
LIVE: Final = int(Flags.GLOBAL)


@dataclass(frozen=True, slots=True)
class Delivered:
    """One batch as it came, with the chunk that had announced it."""

    chunk: Chunk
    topic: str
    header: BatchHeader
    body: bytes

    @property
    def numbers(self) -> range:
        return range(self.header.first_no, self.header.last_no + 1)

    @property
    def payloads(self) -> list[bytes]:
        return list(decode_columns(self.body, self.header.count).payloads)


Event = Control | Delivered


class Closed(Exception):
    """The node has ended the connection."""


class RawClient:
    """One connection. Whoever made it with `dialled` need not close it."""

    def __init__(self, stream: Stream, producer_id: int) -> None:
        self.stream = stream
        self.producer_id = producer_id
        self.welcome: Welcome | None = None
        self.next_seq = 1
        self.received_bytes = 0
        self._reader = FrameReader(DELIVERED_KINDS)
        self._events: deque[Event] = deque()
        self._token = 1 << 60

    # Out ------------------------------------------------------------------------------------------

    async def send(self, *frames: Control | bytes) -> None:
        encoded = (f if isinstance(f, bytes) else encode_control(f) for f in frames)
        unsent = memoryview(b"".join(encoded))
        with trio.fail_after(WAIT_S):
            while unsent:
                count = self.stream.send(unsent)
                unsent = unsent[count:]
                if unsent and not count:
                    await self.stream.wait_writable()

    def batch(
        self,
        topic: str | bytes,
        payloads: Iterable[bytes] = (b"x",),
        flags: int = PERSISTENT,
        seq: int | None = None,
        **more: Any,
    ) -> bytes:
        """A batch of this producer, with its next number or the one that is given."""
        if seq is None:
            seq = self.next_seq
            self.next_seq += 1
        more.setdefault("producer_id", self.producer_id)
        return batch(topic, payloads, flags=flags, producer_seq=seq, **more)

    async def publish(
        self, topic: str, payloads: Iterable[bytes] = (b"x",), flags: int = PERSISTENT
    ) -> None:
        await self.send(self.batch(topic, payloads, flags))

    async def subscribe(
        self,
        pattern: str,
        start: str | int | None = "latest",
        position: dict[BrokerId, dict[str, int]] | None = None,
        *,
        number: int = 1,
        credit_bytes: int = AMPLE,
        durable: str | None = None,
        queue: str | None = None,
    ) -> Subscribed:
        """Subscribe and wait until it stands."""
        await self.send(
            Subscribe(number, pattern, start, position or {}, durable, queue, credit_bytes)
        )
        return await self.expect(Subscribed, lambda answer: answer.subscription == number)

    async def credit(self, credit_bytes: int, number: int = 1) -> None:
        await self.send(Credit(number, credit_bytes))

    async def hello(self, name: str = "raw") -> Welcome:
        await self.send(Hello(PROTOCOL_VERSION, name, self.producer_id))
        self.welcome = await self.expect(Welcome)
        return self.welcome

    # In -------------------------------------------------------------------------------------------

    async def receive(self) -> Event:
        """The next event. Raises Closed at the end of the stream."""
        if not self._events:
            with trio.fail_after(WAIT_S):
                while not self._events:
                    await self._receive_some()
        return self._events.popleft()

    async def _receive_some(self) -> None:
        count = self.stream.receive_into(self._reader.space())
        if count is None:
            await self.stream.wait_readable()
            return
        if not count:
            raise Closed
        self.received_bytes += count
        self._reader.received(count)
        for event in self._reader.events():
            if isinstance(event, Runs):
                assert event.chunk is not None, "a batch that no chunk has announced"
                for run in event.runs:
                    self._events += _delivered(self._reader.view, run.start, run.end, event.chunk)
            else:
                self._events.append(event)

    async def expect(self, kind: type[M], such: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of a type; what came before it stays for others to find."""
        passed: list[Event] = []
        try:
            while True:
                event = await self.receive()
                if isinstance(event, kind) and such(event):
                    return event
                passed.append(event)
        finally:
            self._events.extendleft(reversed(passed))

    async def until(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        """All events until there are enough of them."""
        found: list[Event] = []
        while not enough(found):
            found.append(await self.receive())
        return found

    async def messages(self, count: int, number: int | None = None) -> list[tuple[int, bytes]]:
        """So many messages, as their numbers and payloads; nothing else may come between."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            event = await self.receive()
            if isinstance(event, Chunk):
                continue
            assert isinstance(event, Delivered), event
            assert number is None or event.chunk.subscription == number
            found += zip(event.numbers, event.payloads, strict=True)
        return found

    async def acked(self, batches: int) -> dict[int, int]:
        """The first msgNo of each batch by its producerSeq, once so many are acked.

        For batches of one message; of others a receipt does not tell where each begins.
        """
        found: dict[int, int] = {}
        while len(found) < batches:
            ack = await self.expect(Ack)
            assert ack.level == "local"
            for first_seq, count, first_no in ack.receipts:
                for offset in range(count):
                    assert first_seq + offset not in found, "acked twice"
                    found[first_seq + offset] = first_no + offset
        return found

    async def refused(self) -> Error:
        return await self.expect(Error)

    async def ended(self) -> list[Event]:
        """All that still comes until the node closes the connection."""
        found: list[Event] = []
        try:
            while True:
                found.append(await self.receive())
        except (Closed, ConnectionResetError):
            return found

    async def barrier(self) -> list[Event]:
        """All that the node has sent before it answers a PING: it has worked off by then what this
        client sent before, and committed nothing of it that it did not say."""
        self._token += 1
        pong = Pong(self._token)
        await self.send(Ping(pong.token))
        found = await self.until(lambda events: bool(events) and events[-1] == pong)
        return found[:-1]


def _delivered(view: memoryview, at: int, end: int, chunk: Chunk) -> Iterator[Delivered]:
    while at < end:
        header = read_header(view, at)
        body_at = at + HEADER_BYTES + header.topic_bytes
        topic = bytes(view[at + HEADER_BYTES : body_at]).decode()
        yield Delivered(chunk, topic, header, bytes(view[body_at : at + header.length]))
        at += header.length


@asynccontextmanager
async def dialled(
    network: Network, address: Address, producer_id: int = 1
) -> AsyncIterator[RawClient]:
    """A connection that has not said HELLO."""
    client = RawClient(await network.dial(address), producer_id)
    try:
        yield client
    finally:
        client.stream.close()


# Checking -----------------------------------------------------------------------------------------


@dataclass
class Journal:
    """What one subscription has got: no hole, no repeat, right order, or it fails at once."""

    next_no: dict[LogId, int] = field(default_factory=dict[LogId, int])
    """Where each log goes on; one that is not named begins with 1."""
    payloads: dict[LogId, list[bytes]] = field(default_factory=dict[LogId, list[bytes]])
    gaps: list[Gap] = field(default_factory=list[Gap])

    def take(self, event: Event) -> None:
        if isinstance(event, Gap):
            self.gaps.append(event)
            if event.last_no:
                log_id = LogId(event.broker_id, Topic(event.topic))
                assert event.first_no == self.next_no.get(log_id, 1), event
                self.next_no[log_id] = event.last_no + 1
        elif isinstance(event, Delivered):
            self._take_batch(event)

    def _take_batch(self, event: Delivered) -> None:
        log_id = LogId(event.header.broker_id, Topic(event.topic))
        assert (event.chunk.broker_id, event.chunk.topic) == log_id
        expected = self.next_no.get(log_id, 1)
        # Only the first batch of a chunk may reach back, to the middle of which a cursor points.
        first = event.header.first_no
        assert first <= expected <= event.header.last_no, f"{log_id}: {first} after {expected - 1}"
        assert expected in (first, event.chunk.first_no), f"{log_id}: {first} again"
        self.payloads.setdefault(log_id, []).extend(event.payloads[expected - first :])
        self.next_no[log_id] = event.header.last_no + 1

    def count(self) -> int:
        return sum(map(len, self.payloads.values()))


# Nodes --------------------------------------------------------------------------------------------


class Bus:
    """A running node and a way to it."""

    def __init__(self, node: RunningNode, network: Network) -> None:
        self.node = node
        self.network = network

    @property
    def broker_id(self) -> BrokerId:
        return self.node.broker_id

    @asynccontextmanager
    async def stranger(self, producer_id: int = 1) -> AsyncIterator[RawClient]:
        async with dialled(self.network, self.node.address, producer_id) as client:
            yield client

    @asynccontextmanager
    async def client(self, producer_id: int = 1, name: str = "raw") -> AsyncIterator[RawClient]:
        async with self.stranger(producer_id) as client:
            await client.hello(name)
            yield client

    async def settled(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that no frame tells of."""
        with trio.fail_after(WAIT_S):
            while not condition():
                await trio.sleep(0.001)

    def session(self, client: RawClient) -> ClientSession:
        """The node's side of a connection."""
        assert client.welcome is not None
        return self.node.sessions[ClientNo(client.welcome.client_no)]

    async def all_sent(self, client: RawClient) -> list[Event]:
        """All that the node has for a client now, also what it sends only in its turns."""
        await self.committed()
        await self.settled(lambda: self.session(client).outgoing.idle)
        return await client.barrier()

    async def committed(self) -> None:
        """Wait until all that was appended is durable."""
        node = self.node
        await self.settled(lambda: not (node.store.dirty() or node.committer.committing))


CONFIG: Final = NodeConfig(
    "test", "n1", port=0, peer_port=None, http_port=None, drain_timeout_s=2.0
)


@asynccontextmanager
async def real_bus(data: Path, **settings: Any) -> AsyncIterator[Bus]:
    """A node on loopback sockets and a real disk."""
    world = real_world()
    config = replace(CONFIG, data=str(data), **settings)
    async with start_node(world, config) as node:
        yield Bus(node, world.network)


class Mortal:
    """The disk as one process sees it, which does nothing more after its death."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise OSError(errno.EIO, "this process is dead")
        return getattr(self.disk, name)


class SimulatedMachine:
    """One machine with a disk and a network, in virtual time, from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.clock = SimClock()
        self.entropy = SimEntropy(seed)
        self.disk = SimDisk(seed, clock=self.clock)
        self.network = SimNetwork(seed)
        self.starts = 0
        self._process = Mortal(self.disk)

    @asynccontextmanager
    async def bus(self, **settings: Any) -> AsyncIterator[Bus]:
        self.starts += 1
        self._process = Mortal(self.disk)
        world = World(
            self.clock,
            self.entropy.fork(f"start {self.starts}"),
            cast(Files, self._process),  # by its __getattr__, which type checkers do not follow
            self.network.host("n1"),
            StaticDiscovery(()),
        )
        config = replace(CONFIG, data="/data", listen="n1", **settings)
        async with start_node(world, config) as node:
            yield Bus(node, self.network.host("client"))

    def of_client(self, name: str) -> World:
        """The world of a client on a machine of its own."""
        return World(
            self.clock,
            self.entropy.fork(name),
            SimDisk(self.seed, clock=self.clock),
            self.network.host(name),
            StaticDiscovery(()),
        )

    @property
    def crashed(self) -> bool:
        return self._process.dead

    def crash(self, *, power_loss: bool) -> None:
        """The node's process dies, alone or with its machine. Its tasks are left to be ended."""
        self._process.dead = True
        self.network.reset("n1")
        if power_loss:
            self.disk.power_loss()
        else:
            self.disk.kill()

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        print(f"seed {self.seed}")
        return simulate(self.seed, main)


class LoopWatch(trio.abc.Instrument):
    """Measures the longest time for which a task of the node kept the event loop to itself.

    The processor's time, not the clock's: other programs that run meanwhile do not count.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = thread_time() - self._began
        if took > self.longest_s and self._began and task.name.startswith("busnode."):
            self.longest_s, self.longest = took, task.name.rpartition(".")[2]

    @classmethod
    @contextmanager
    def over(cls, what: str) -> Iterator[None]:
        """Print how long the loop was kept: a figure to look at, not to be judged by."""
        watch = cls()
        gc.collect()
        gc.disable()  # it would go through all that the test itself has kept
        trio.lowlevel.add_instrument(watch)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(watch)
            gc.enable()
            print(f"{what}: {1e3 * watch.longest_s:.1f} ms at most, in {watch.longest}")
