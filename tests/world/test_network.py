"""The contract of `Network`: for real sockets, plain and in TLS, for those that can be cut, and
simulated."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from busnode.testing.cut_network import Cables, CutNetwork
from busnode.testing.sim import SimDisk, SimNetwork
from busnode.world.files import Files
from busnode.world.network import Address, Listener, Network, Stream, Tls
from busnode.world.real_files import RealFiles
from busnode.world.real_network import RealNetwork
from busnode.world.real_tls_stream import TlsStream
from busnode.world.tls import Demand
from tests.certificates import Authority


@dataclass(frozen=True)
class Ground:
    """Two hosts: one listens, the other dials; and files that both can send from."""

    listening: Network
    dialling: Network
    host: str
    foreign_host: str
    files: Files
    root: str

    async def listen(self, port: int = 0) -> Listener:
        return await self.listening.listen(Address(self.host, port))

    async def connect(self) -> tuple[Stream, Stream]:
        """The dialler's end, and the listener's."""
        listener = await self.listen()
        near = await self.dialling.dial(listener.address)
        far = await listener.accept()
        listener.close()
        if isinstance(near, TlsStream):  # whatever is sent before the handshake has to wait for it
            await trade(near, far)
        return near, far

    def write(self, name: str, data: bytes) -> str:
        file = self.files.append_to(f"{self.root}/{name}")
        file.append(data)
        file.close()
        return file.path


class InTls(RealNetwork):
    """Everything in TLS, both sides with a certificate."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        node = authority.node()
        self._listening = self.tls(authority.listening(node, Demand.NODE))
        self._dialling = self.tls(authority.dialling(node))

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        return await super().dial(address, tls or self._dialling)

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        return await super().listen(address, tls or self._listening)


async def trade(near: Stream, far: Stream) -> None:
    """A byte for a byte: then both know each other."""

    async def take(stream: Stream) -> None:
        assert await receive(stream) == b"."

    async with trio.open_nursery() as nursery:
        for stream in (near, far):
            assert stream.send(b".") == 1
            nursery.start_soon(take, stream)


@pytest.fixture(params=["real", "tls", "cut", "simulated"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    if request.param == "tls":
        private = InTls(tmp_path / "certificates")
        return Ground(private, private, "127.0.0.1", "192.0.2.1", RealFiles(), str(tmp_path))
    if request.param == "real":
        network = RealNetwork()
        return Ground(network, network, "127.0.0.1", "192.0.2.1", RealFiles(), str(tmp_path))
    if request.param == "cut":
        cables = Cables()
        cables.cut("one", "three")
        one, two = CutNetwork("one", cables), CutNetwork("two", cables)
        return Ground(one, two, "127.0.0.1", "192.0.2.1", RealFiles(), str(tmp_path))
    net = SimNetwork(seed=1)
    return Ground(net.host("one"), net.host("two"), "one", "two", SimDisk(), "")


async def receive(stream: Stream) -> bytes:
    """What comes next, one byte or more; nothing at the end."""
    view = memoryview(bytearray(65536))
    while True:
        count = stream.receive_into(view)
        if count is not None:
            return bytes(view[:count])
        await stream.wait_readable()


@asynccontextmanager
async def attended(*streams: Stream) -> AsyncIterator[None]:
    """Somebody reads there meanwhile, as somebody always does: a handshake needs both sides."""
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(receive, stream)
        yield
        nursery.cancel_scope.cancel()


async def receive_exactly(stream: Stream, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = await receive(stream)
        assert chunk, "the stream ended too early"
        received += chunk
    return received


async def send_all(stream: Stream, data: bytes) -> None:
    sent = 0
    while sent < len(data):
        count = stream.send(memoryview(data)[sent:])
        if count == 0:
            await stream.wait_writable()
        sent += count


def close(*ends: Stream | Listener) -> None:
    for end in ends:
        end.close()


OFFERED = bytes(65536)
"""What is not taken has to be offered again."""


def fill(stream: Stream) -> int:
    """Send until no more is taken."""
    total = 0
    while count := stream.send(OFFERED):
        total += count
    return total


async def test_bytes_arrive_whole_and_in_order_in_both_directions(ground: Ground) -> None:
    near, far = await ground.connect()
    up = bytes(range(256)) * 2000
    down = up[::-1]

    async def expect(stream: Stream, data: bytes) -> None:
        assert await receive_exactly(stream, len(data)) == data

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, near, up)
        nursery.start_soon(send_all, far, down)
        nursery.start_soon(expect, near, down)
        nursery.start_soon(expect, far, up)
    close(near, far)


async def test_both_ends_know_each_other(ground: Ground) -> None:
    listener = await ground.listen()
    assert listener.address.host == ground.host
    assert listener.address.port > 0
    near = await ground.dialling.dial(listener.address)
    far = await listener.accept()
    assert near.peer == listener.address
    assert far.peer.port > 0
    others = [await ground.dialling.dial(listener.address), await listener.accept()]
    assert others[1].peer != far.peer
    close(listener, near, far, *others)


async def test_nothing_yet_is_not_the_end(ground: Ground) -> None:
    near, far = await ground.connect()
    view = memoryview(bytearray(10))
    assert near.receive_into(view) is None
    far.send(b"x")
    assert await receive(near) == b"x"
    assert near.receive_into(view) is None
    far.close()
    assert await receive(near) == b""
    assert near.receive_into(view) == 0
    near.close()


async def test_a_small_view_takes_what_fits(ground: Ground) -> None:
    near, far = await ground.connect()
    near.send(b"abcdef")
    await far.wait_readable()
    view = memoryview(bytearray(4))
    assert far.receive_into(view) == 4
    assert bytes(view) == b"abcd"
    assert await receive(far) == b"ef"
    close(near, far)


async def test_what_was_sent_before_closing_still_arrives(ground: Ground) -> None:
    near, far = await ground.connect()
    assert near.send(b"last words") == 10
    near.close()
    assert await receive_exactly(far, 10) == b"last words"
    assert await receive(far) == b""
    far.close()


async def test_no_more_is_taken_when_the_other_side_does_not_read(ground: Ground) -> None:
    near, far = await ground.connect()
    total = fill(near)
    assert near.send(OFFERED) == 0
    waited = trio.Event()

    async def wait() -> None:
        await near.wait_writable()
        waited.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        # A kernel may have moved something on meanwhile; then it has room again, and says so.
        if waited.is_set():
            total += fill(near)
        received = 0
        while received < total:
            received += len(await receive(far))
    assert waited.is_set()
    assert near.send(OFFERED) > 0
    close(near, far)


async def test_a_range_of_a_file_is_sent(ground: Ground) -> None:
    near, far = await ground.connect()
    path = ground.write("x", b"0123456789" * 1000)
    file = ground.files.open(path)
    assert near.send_range(file, 5, 10) == 10
    assert await receive_exactly(far, 10) == b"5678901234"
    assert near.send_range(file, 9995, 100) == 5
    assert await receive_exactly(far, 5) == b"56789"
    assert near.send_range(file, 0, 0) == 0
    file.close()
    close(near, far)


async def test_a_range_that_the_file_does_not_have_is_an_error_and_not_a_wait(
    ground: Ground,
) -> None:
    near, far = await ground.connect()
    file = ground.files.open(ground.write("x", b"0123"))
    with pytest.raises(OSError, match=f"Errno {errno.ENODATA}"):
        near.send_range(file, 4, 1)
    file.close()
    close(near, far)


async def test_a_range_is_not_taken_when_the_other_side_does_not_read(ground: Ground) -> None:
    near, far = await ground.connect()
    file = ground.files.open(ground.write("x", bytes(1000)))
    while near.send_range(file, 0, 1000):
        pass
    file.close()
    close(near, far)


async def test_dialling_where_nobody_listens_is_refused(ground: Ground) -> None:
    listener = await ground.listen()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await ground.dialling.dial(listener.address)


async def test_an_address_has_one_listener(ground: Ground) -> None:
    listener = await ground.listen()
    with pytest.raises(OSError, match=f"Errno {errno.EADDRINUSE}"):
        await ground.listening.listen(listener.address)
    listener.close()
    again = await ground.listen(listener.address.port)
    again.close()


async def test_nobody_listens_at_the_address_of_another(ground: Ground) -> None:
    with pytest.raises(OSError, match=f"Errno {errno.EADDRNOTAVAIL}"):
        await ground.listening.listen(Address(ground.foreign_host, 0))


async def test_connections_wait_to_be_accepted(ground: Ground) -> None:
    listener = await ground.listen()
    near = [await ground.dialling.dial(listener.address) for _ in range(20)]
    for number, stream in enumerate(near):
        stream.send(bytes([number]))
    far = [await listener.accept() for _ in near]
    async with attended(*near):
        assert sorted([await receive(stream) for stream in far]) == [bytes([n]) for n in range(20)]
    close(listener, *near, *far)


async def test_one_more_is_accepted_at_once_where_there_is_one(ground: Ground) -> None:
    listener = await ground.listen()
    assert listener.accept_nowait() is None
    near = [await ground.dialling.dial(listener.address) for _ in range(3)]
    far = [await listener.accept()]
    while (stream := listener.accept_nowait()) is not None:
        far.append(stream)
    assert len(far) == 3
    listener.close()
    assert listener.accept_nowait() is None
    close(*near, *far)


async def test_a_cancelled_accept_loses_no_connection(ground: Ground) -> None:
    listener = await ground.listen()
    near = await ground.dialling.dial(listener.address)
    near.send(b"hello")
    with trio.CancelScope() as scope:
        scope.cancel()
        await listener.accept()
    assert scope.cancelled_caught
    far = await listener.accept()
    async with attended(near):
        assert await receive_exactly(far, 5) == b"hello"
    close(listener, near, far)


async def test_a_closed_listener_accepts_nothing_and_lets_nobody_wait(ground: Ground) -> None:
    listener = await ground.listen()

    async def accept() -> None:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
    listener.close()
    await accept()


async def test_a_closed_stream_does_nothing_and_lets_nobody_wait(ground: Ground) -> None:
    near, far = await ground.connect()
    fill(near)

    async def wait_readable() -> None:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            await near.wait_readable()

    async def fill_for_ever() -> None:
        while True:
            await near.wait_writable()
            fill(near)

    async def wait_writable() -> None:
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            await fill_for_ever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_readable)
        nursery.start_soon(wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        near.close()
    near.close()
    for _ in range(2):  # and again: it must not be taken for two who wait for one thing
        await wait_readable()
    await wait_writable()
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        near.send(b"x")
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        near.receive_into(memoryview(bytearray(1)))
    far.close()


async def test_sending_to_one_who_has_gone_fails_in_the_end(ground: Ground) -> None:
    near, far = await ground.connect()
    far.close()

    async def send_for_ever() -> None:
        while True:
            if near.send(bytes(1000)) == 0:
                await near.wait_writable()
            await trio.lowlevel.checkpoint()

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await send_for_ever()
    near.close()


async def test_closing_with_something_unread_resets_the_connection(ground: Ground) -> None:
    near, far = await ground.connect()
    near.send(b"never read")
    await far.wait_readable()
    far.close()
    with pytest.raises(ConnectionResetError):
        await receive(near)
    near.close()


async def test_waiting_can_be_cancelled(ground: Ground) -> None:
    near, far = await ground.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    far.send(b"x")
    assert await receive(near) == b"x"
    close(near, far)
