"""A node that does just what a test says: for faults that a good node never has.

It speaks over a real socket, on trio and asyncio alike, or over the simulated network.
"""

import inspect
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.lowlevel
import pytest

from busnode.client import Bus, connect
from busnode.wire import control
from busnode.wire.batches import Columns, decode_columns, encode_columns
from busnode.wire.control import Control, encode_control
from busnode.wire.frames import (
    HEADER_BYTES,
    BatchHeader,
    Flags,
    broker_seed,
    encode_batch_frame,
    read_header,
)
from busnode.wire.ids import NO_BROKER, BrokerId
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import stamp_run, verify_runs
from busnode.world.network import Address, Listener, Stream
from busnode.world.real_anyio import AnyioStream

BROKER = BrokerId(bytes(range(16)))
OTHER = BrokerId(bytes(range(16, 32)))
PATIENCE_S = 20.0
"""How long a test may take: far more than it does, so that only a hang fails for it."""

C = TypeVar("C", bound=Control)


class Published(NamedTuple):
    """A batch as a client sent it."""

    topic: str
    header: BatchHeader
    columns: Columns
    frame: bytes


class Peer:
    """The node's side of one connection."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.hello: control.Hello | None = None
        self._reader = FrameReader()
        self._events: deque[Control | Published] = deque()

    async def receive(self) -> Control | Published:
        """The next frame from the client. Raises EOFError when there is none any more."""
        while not self._events:
            count = self.stream.receive_into(self._reader.space())
            if count is None:
                await self.stream.wait_readable()
                continue
            if not count:
                raise EOFError
            self._reader.received(count)
            for event in self._reader.events():
                if isinstance(event, Runs):
                    self._events.extend(self._published(event))
                else:
                    self._events.append(event)
        return self._events.popleft()

    def _published(self, event: Runs) -> list[Published]:
        view = self._reader.view
        found: list[Published] = []
        for run in event.runs:
            for at, count, _, _, _ in run.batches:
                header = read_header(view, at)
                body = view[at + HEADER_BYTES + header.topic_bytes : at + header.length]
                columns = decode_columns(bytes(body), count)
                frame = bytes(view[at : at + header.length])
                found.append(Published(run.topic.decode(), header, columns, frame))
        return found

    async def expect(self, kind: type[C]) -> C:
        """The next control message of a kind; others of before are passed over."""
        while True:
            event = await self.receive()
            if isinstance(event, kind):
                return event

    async def batch(self) -> Published:
        while True:
            event = await self.receive()
            if isinstance(event, Published):
                return event

    async def send(self, *messages: Control | bytes) -> None:
        data = b"".join(
            each if isinstance(each, bytes) else encode_control(each) for each in messages
        )
        while data:
            sent = self.stream.send(data)
            data = data[sent:]
            if data:
                await self.stream.wait_writable()

    async def welcome(self, nodes: Sequence[str] = (), heartbeat_s: float = 15.0) -> control.Hello:
        self.hello = await self.expect(control.Hello)
        await self.send(control.Welcome(1, BROKER, "scripted", "test", list(nodes), heartbeat_s))
        return self.hello

    async def subscribed(
        self, position: dict[BrokerId, dict[str, int]] | None = None
    ) -> control.Subscribe:
        """Take the next subscription, with the position that it names or this one."""
        asked = await self.expect(control.Subscribe)
        await self.send(
            control.Subscribed(asked.subscription, asked.position if position is None else position)
        )
        return asked

    async def ack(self, batch: Published, first_no: int, batches: int = 1) -> None:
        rows = [(batch.header.producer_seq, batches, first_no)]
        await self.send(control.Ack(BROKER, "local", rows))

    def close(self) -> None:
        self.stream.close()


class ScriptedNode:
    """Listens, and hands each connection to the test."""

    def __init__(self, address: Address, accept: Callable[[], Awaitable[Stream]]) -> None:
        self.address = address
        self.url = f"bus://{address}"
        self.peers: list[Peer] = []
        self._accept = accept

    async def accept(self, *, greet: bool = True, nodes: Sequence[str] = ()) -> Peer:
        """The next connection, greeted."""
        peer = Peer(await self._accept())
        self.peers.append(peer)
        if greet:
            await peer.welcome(nodes)
        return peer

    async def be_polite(self) -> None:
        """Greet one client and let it go when it says goodbye."""
        peer = await self.accept()
        await peer.expect(control.Goodbye)
        peer.close()


@asynccontextmanager
async def scripted_node() -> AsyncIterator[ScriptedNode]:
    """One on a real socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)

        async def accept() -> Stream:
            while True:
                await anyio.wait_readable(listening)
                try:
                    connection, sockaddr = listening.accept()
                except BlockingIOError:
                    continue
                return AnyioStream(connection, Address(*sockaddr[:2]))

        node = ScriptedNode(Address(*listening.getsockname()[:2]), accept)
        try:
            yield node
        finally:
            for peer in node.peers:
                peer.close()


def simulated_node(listener: Listener) -> ScriptedNode:
    return ScriptedNode(listener.address, listener.accept)


@asynccontextmanager
async def visit(**options: Any) -> AsyncIterator[tuple[Bus, Peer, ScriptedNode]]:
    """A client at a scripted node: both ends and the node, for the next connection."""
    async with scripted_node() as node, anyio.create_task_group() as tasks:
        peers: list[Peer] = []

        async def greet() -> None:
            peers.append(await node.accept())

        tasks.start_soon(greet)
        async with connect(node.url, **options) as bus:
            while not peers:
                await anyio.lowlevel.checkpoint()
            try:
                yield bus, peers[0], node
            finally:
                peers[0].close()  # or closing would wait for an answer to its goodbye


def record(
    first_no: int,
    payloads: Sequence[bytes],
    *,
    topic: str = "/t",
    broker_id: BrokerId = BROKER,
    producer_id: int = 7,
    seq: int = 0,
    utc_us: int = 1_700_000_000_000_000,
    columns: Columns | None = None,
    body: bytes | None = None,
    flags: int | None = None,
) -> bytes:
    """A batch as it stands in a log; with first_no 0 one that is not persistent."""
    if flags is None:
        flags = Flags.GLOBAL | Flags.PERSISTENT if first_no else Flags.GLOBAL
    buffer = bytearray(
        encode_batch_frame(
            topic=topic.encode(),
            body=encode_columns(columns or Columns(list(payloads))) if body is None else body,
            count=len(payloads),
            flags=flags,
            utc_us=utc_us,
            producer_id=producer_id,
            producer_seq=seq,
        )
    )
    if first_no:
        view = memoryview(buffer)
        [run], _ = verify_runs(buffer, view, 0, len(buffer))
        stamp_run(view, run, broker_id, broker_seed(broker_id), first_no)
    return bytes(buffer)


def chunk(
    subscription: int,
    *records: bytes,
    topic: str = "/t",
    broker_id: BrokerId = BROKER,
    remote: bool = False,
) -> bytes:
    """Records of one log as a node sends them."""
    data = b"".join(records)
    header = read_header(memoryview(records[0]), 0)
    last = read_header(memoryview(records[-1]), 0)
    message = control.Chunk(
        1,
        subscription,
        broker_id if header.first_no else NO_BROKER,
        topic if header.first_no else "",
        header.first_no,
        last.last_no if header.first_no else 0,
        len(data),
        False,
        remote,
    )
    return encode_control(message) + data


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on trio and on asyncio. (The plugins for that exclude each other.)"""
    signature = inspect.signature(test)

    def run(backend: str, **fixtures: Any) -> None:
        async def main() -> None:
            with anyio.fail_after(PATIENCE_S):
                await test(**fixtures)

        anyio.run(main, backend=backend)

    backend = inspect.Parameter("backend", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[backend, *signature.parameters.values()], return_annotation=None
    )
    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    marked: Callable[..., None] = pytest.mark.parametrize("backend", ["trio", "asyncio"])(run)
    return marked


async def eventually(holds: Callable[[], bool]) -> None:
    """Until something is so; the test's own patience bounds it."""
    while not holds():
        await anyio.sleep(0.001)
