"""TLS over streams that split, stall and lie; and certificates that are not what they should be."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from busnode.world.files import Bytes, ReadFile
from busnode.world.network import Address, Stream
from busnode.world.real_files import RealFiles
from busnode.world.real_network import RealNetwork
from busnode.world.real_tls import RealTls
from busnode.world.real_tls_stream import EARLY_BYTES_MAX, PIECE_BYTES, TlsStream
from busnode.world.tls import Certificate, Demand, TlsError, TlsTerms
from tests.certificates import Authority
from tests.world.test_network import receive, receive_exactly, send_all

HERE = Address("127.0.0.1", 1)


class Wire:
    """One end of a wire that carries `step_bytes` at a time and holds `room_bytes`."""

    certificate = None

    def __init__(self, step_bytes: int, room_bytes: int) -> None:
        self.peer = HERE
        self.step_bytes = step_bytes
        self.room_bytes = room_bytes
        self.arrived = bytearray()
        self.carried_bytes = 0
        self.closed = False
        self.other: Wire = self
        self.changed = trio.lowlevel.ParkingLot()

    def receive_into(self, view: memoryview) -> int | None:
        if not self.arrived:
            return 0 if self.other.closed else None
        count = min(len(view), self.step_bytes, len(self.arrived))
        view[:count] = self.arrived[:count]
        del self.arrived[:count]
        self.other.changed.unpark_all()
        return count

    def send(self, data: Bytes) -> int:
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        count = min(len(data), self.step_bytes, self.room_bytes - len(self.other.arrived))
        self.other.arrived += memoryview(data)[:count]
        self.carried_bytes += count
        self.other.changed.unpark_all()
        return count

    def send_both(self, first: Bytes, second: Bytes) -> int:
        return self.send(bytes(first) + bytes(second))

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        raise NotImplementedError

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.arrived and not self.other.closed:
            await self.changed.park()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while len(self.other.arrived) >= self.room_bytes:
            await self.changed.park()

    def close(self) -> None:
        self.closed = True
        self.other.changed.unpark_all()


def wires(step_bytes: int, room_bytes: int = 1 << 20) -> tuple[Wire, Wire]:
    one, other = Wire(step_bytes, room_bytes), Wire(step_bytes, room_bytes)
    one.other, other.other = other, one
    return one, other


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def ends(authority: Authority, near: Stream, far: Stream) -> tuple[Stream, Stream]:
    """Both with a certificate."""
    node = authority.node()
    dialling = RealTls(authority.dialling(node))
    listening = RealTls(authority.listening(node, Demand.NODE))
    return dialling.wrap(near, "127.0.0.1"), listening.wrap(far, None)


async def failure_of(stream: Stream) -> OSError:
    try:
        while await receive(stream):
            pass
    except OSError as error:
        return error
    raise AssertionError("it went well")


@pytest.mark.parametrize("step_bytes", [1, 2, 3, 7, 100, 1460, 16384])
async def test_any_split_of_the_bytes_gives_the_same(authority: Authority, step_bytes: int) -> None:
    near, far = ends(authority, *wires(step_bytes))
    up, down = os.urandom(2_000 + 4 * step_bytes), os.urandom(1_000 + 3 * step_bytes)
    got: dict[str, bytes] = {}

    async def take(name: str, stream: Stream, count: int) -> None:
        got[name] = await receive_exactly(stream, count)
        if len(got) == 2:
            nursery.cancel_scope.cancel()
        await receive(stream)  # somebody always reads

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, near, up)
        nursery.start_soon(send_all, far, down)
        nursery.start_soon(take, "far", far, len(up))
        nursery.start_soon(take, "near", near, len(down))
    assert got == {"far": up, "near": down}
    assert near.certificate == far.certificate == Certificate("node", ("127.0.0.1", "localhost"))


async def test_the_handshake_goes_on_through_a_wire_that_is_nearly_full(
    authority: Authority,
) -> None:
    """Nobody sends anything more: what is owed goes out while both only read."""
    near, far = ends(authority, *wires(50, room_bytes=50))
    assert near.send(bytes(1000)) == 1000  # before the handshake, of which it has to wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(failure_of, near)
        assert await receive_exactly(far, 1000) == bytes(1000)
        nursery.cancel_scope.cancel()


async def test_what_is_sent_early_is_bounded_and_waits_for_the_handshake(
    authority: Authority,
) -> None:
    near, far = ends(authority, *wires(1 << 16))
    assert near.send(bytes(EARLY_BYTES_MAX)) == EARLY_BYTES_MAX
    assert near.send(b"x") == 0

    async def more() -> None:  # who writes and does not read drives the handshake all the same
        await send_all(near, b"x" * 100_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(more)
        expected = bytes(EARLY_BYTES_MAX) + b"x" * 100_000
        assert await receive_exactly(far, len(expected)) == expected


async def shaken(near: Stream, far: Stream) -> None:
    async def take(stream: Stream) -> None:
        assert await receive(stream) == b"."

    async with trio.open_nursery() as nursery:
        for stream in (near, far):
            stream.send(b".")
            nursery.start_soon(take, stream)


async def test_little_is_kept_for_who_does_not_read(authority: Authority) -> None:
    one, other = wires(1 << 20, room_bytes=100_000)
    near, far = ends(authority, one, other)
    await shaken(near, far)
    before = one.carried_bytes
    data = os.urandom(3 * PIECE_BYTES)
    assert near.send(data) == 0
    assert one.carried_bytes - before <= 100_000
    for _ in range(100):
        assert near.send(data) == 0
    assert isinstance(near, TlsStream)
    assert near._tail is not None
    assert len(near._tail) < 1.1 * PIECE_BYTES

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, near, data)
        assert await receive_exactly(far, len(data)) == data


async def test_ranges_of_files_arrive_byte_for_byte(authority: Authority, tmp_path: Path) -> None:
    near, far = ends(authority, *wires(50_000, room_bytes=70_000))
    await shaken(near, far)
    data = os.urandom(2 * PIECE_BYTES + 12_345)
    (tmp_path / "log").write_bytes(b"before" + data)
    file = RealFiles().open(str(tmp_path / "log"))

    async def send() -> None:
        at = 0
        while at < len(data):
            sent = near.send_range(file, 6 + at, len(data) - at)
            at += sent
            if not sent:
                await near.wait_writable()
        await send_all(near, b"behind")
        with pytest.raises(OSError, match="ends before"):
            near.send_range(file, 6 + len(data), 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await receive_exactly(far, len(data) + 6) == data + b"behind"
    file.close()


async def test_waiting_returns_at_once_while_something_is_decrypted(authority: Authority) -> None:
    near, far = ends(authority, *wires(1 << 16))
    await shaken(near, far)
    near.send(b"abc")
    view = memoryview(bytearray(1))
    for expected in (b"a", b"b", b"c"):
        await far.wait_readable()
        assert far.receive_into(view) == 1
        assert bytes(view) == expected


async def test_an_end_without_a_word_is_an_end(authority: Authority) -> None:
    one, other = wires(1 << 16)
    near, far = ends(authority, one, other)
    await shaken(near, far)
    near.send(b"last")
    one.close()  # below TLS
    assert await receive_exactly(far, 4) == b"last"
    assert await receive(far) == b""


async def refused(dialling: TlsTerms, listening: TlsTerms, host: str = "127.0.0.1") -> str:
    """What the dialler is told."""
    one, other = wires(1 << 16)
    near, far = RealTls(dialling).wrap(one, host), RealTls(listening).wrap(other, None)
    error = None
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                with suppress(OSError):
                    await receive(far)
                far.close()

            nursery.start_soon(listen)
            near.send(b"hello")
            error = await failure_of(near)
            near.close()
    assert isinstance(error, TlsError), error
    return str(error)


async def test_an_authority_that_is_not_known_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    told = await refused(authority.dialling(), other.listening(other.node()))
    assert "the certificate of 127.0.0.1 is not signed by any authority of" in told
    assert authority.certificate in told


async def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    old = authority.node("old", days=-1)
    told = await refused(authority.dialling(), authority.listening(old))
    assert told == "the certificate of 127.0.0.1 has expired: it needs a new one"


@pytest.mark.parametrize("host", ["localhost.example", "127.0.0.2", "::1"])
async def test_a_certificate_for_another_host_is_refused(authority: Authority, host: str) -> None:
    told = await refused(authority.dialling(), authority.listening(authority.node()), host)
    assert f"is not for {host}" in told


@pytest.mark.parametrize("demand", [Demand.SIGNED, Demand.NODE])
async def test_who_shows_no_certificate_is_told_so(authority: Authority, demand: Demand) -> None:
    told = await refused(authority.dialling(), authority.listening(authority.node(), demand))
    assert "wants a certificate" in told


async def test_who_shows_anothers_certificate_is_told_so(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "other").client()
    shown = authority.dialling()._replace(certificate=stranger.certificate, key=stranger.key)
    listening = authority.listening(authority.node(), Demand.OFFERED)
    assert "does not know who has signed our certificate" in await refused(shown, listening)


async def test_a_clients_certificate_makes_nobody_a_node(authority: Authority) -> None:
    alice, node = authority.client(), authority.node()
    one, other = wires(1 << 16)
    near = RealTls(authority.dialling(alice)).wrap(one, "127.0.0.1")
    far = RealTls(authority.listening(node, Demand.NODE)).wrap(other, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, near)
        with pytest.raises(TlsError, match="the certificate of a client"):
            await receive(far)
        nursery.cancel_scope.cancel()
    # Nor is a client taken for a node by who dials it.
    told = await refused(authority.dialling(node, Demand.NODE), authority.listening(alice))
    assert "unsuitable certificate purpose" in told or "is not signed" in told


async def test_a_client_without_a_certificate_is_nobody(authority: Authority) -> None:
    for demand in (Demand.NOTHING, Demand.OFFERED):
        one, other = wires(1 << 16)
        near = RealTls(authority.dialling()).wrap(one, "localhost")
        far = RealTls(authority.listening(authority.node(), demand)).wrap(other, None)
        await shaken(near, far)
        assert far.certificate is None
        assert near.certificate is not None


async def test_who_speaks_no_tls_is_refused_on_both_sides(authority: Authority) -> None:
    one, other = wires(1 << 16)
    far = RealTls(authority.listening(authority.node())).wrap(other, None)
    one.send(b"GET / HTTP/1.1\r\n\r\n")
    assert "does not speak TLS" in str(await failure_of(far))
    assert bytes(one.arrived[:2]) == b"\x15\x03"  # an alert, which somebody may know
    one, other = wires(1 << 16)
    near = RealTls(authority.dialling()).wrap(one, "127.0.0.1")
    other.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "does not speak TLS" in str(await failure_of(near))


async def test_new_connections_have_the_new_certificate(authority: Authority) -> None:
    node = authority.node()
    listening = RealTls(authority.listening(node))
    dialling = RealTls(authority.dialling())

    async def shown() -> Certificate | None:
        one, other = wires(1 << 16)
        near, far = dialling.wrap(one, "localhost"), listening.wrap(other, None)
        await shaken(near, far)
        return near.certificate

    assert await shown() == Certificate("node", ("127.0.0.1", "localhost"))
    one, other = wires(1 << 16)
    old_near, old_far = dialling.wrap(one, "localhost"), listening.wrap(other, None)
    authority.node("node", "localhost", "new.example")
    listening.load()
    await shaken(old_near, old_far)  # those that were there go on
    assert await shown() == Certificate("node", ("localhost", "new.example"))
    Path(node.certificate).write_text("garbage")
    with pytest.raises(OSError, match="no certificate"):
        listening.load()
    assert await shown() == Certificate("node", ("localhost", "new.example"))


def test_files_that_are_not_what_they_should_be_are_named(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = authority.node(), authority.node("other")
    terms = authority.listening(node, Demand.SIGNED)
    garbage = str(tmp_path / "garbage")
    Path(garbage).write_text("garbage")
    for wrong, file, text in (
        (terms._replace(certificate=f"{garbage}.not"), f"{garbage}.not", "No such file"),
        (terms._replace(key=f"{garbage}.not"), f"{garbage}.not", "No such file"),
        (terms._replace(authorities=f"{garbage}.not"), f"{garbage}.not", "No such file"),
        (terms._replace(certificate=garbage), garbage, "is no certificate"),
        (terms._replace(key=garbage), garbage, "is no certificate or private key"),
        (terms._replace(authorities=garbage), garbage, "holds no certificates"),
        (terms._replace(key=other.key), other.key, "is not that of"),
    ):
        with pytest.raises(OSError, match=text) as raised:
            RealNetwork().tls(wrong)
        assert raised.value.filename == file
    assert not caplog.records
    Path(node.key).chmod(0o640)
    RealNetwork().tls(terms)
    assert "others can read the private key" in caplog.text
