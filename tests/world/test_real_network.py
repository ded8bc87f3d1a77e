"""What only real sockets can show."""

import errno
import gc
import os
import resource
import socket
import struct
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from busnode.world.network import Address, Listener, Stream
from busnode.world.real_network import RealListener, RealNetwork, RealStream


class Failing(socket.socket):
    """A listening socket that first raises what it is told to."""

    def __init__(self, codes: list[int]) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.codes = codes
        self.setblocking(False)
        self.bind(("127.0.0.1", 0))
        self.listen()

    def accept(self) -> tuple[socket.socket, Any]:
        if self.codes:
            raise OSError(self.codes.pop(0), "told to fail")
        return super().accept()


def close(*ends: Stream | Listener) -> None:
    for end in ends:
        end.close()


async def test_a_listener_outlives_what_befalls_single_connections(
    autojump_clock: trio.testing.MockClock,
) -> None:
    codes = [errno.ECONNABORTED, errno.EPROTO, errno.EMFILE, errno.ENFILE, errno.ENOBUFS]
    failing = Failing(codes)
    listener = RealListener(failing)
    near = await RealNetwork().dial(listener.address)
    far = await listener.accept()
    assert not failing.codes
    close(listener, near, far)


async def test_a_stream_knows_its_own_end_as_the_other_sees_it() -> None:
    network = RealNetwork()
    listener = await network.listen(Address("127.0.0.1", 0))
    near, far = await network.dial(listener.address), await listener.accept()
    assert isinstance(near, RealStream)
    assert isinstance(far, RealStream)
    assert (near.local, far.local) == (far.peer, near.peer)
    close(listener, near, far)


async def test_a_listener_that_is_broken_says_so() -> None:
    listener = RealListener(Failing([errno.EINVAL]))
    with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
        await listener.accept()
    listener.close()


async def test_a_listener_waits_until_there_are_descriptors_again() -> None:
    network = RealNetwork()
    listener = await network.listen(Address("127.0.0.1", 0))
    near = await network.dial(listener.address)
    accepted: list[Stream] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, before[1])
        )
        with pytest.raises(OSError, match=f"Errno {errno.EMFILE}"):
            taken.extend(os.open("/dev/null", os.O_RDONLY) for _ in count())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await trio.testing.wait_all_tasks_blocked()
            assert not accepted
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
    close(listener, near, *accepted)


async def test_a_connection_that_is_reset_before_it_is_accepted_harms_nobody() -> None:
    network = RealNetwork()
    listener = await network.listen(Address("127.0.0.1", 0))
    with socket.create_connection(listener.address) as rude:
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near = await network.dial(listener.address)
    near.send(b"x")
    with trio.fail_after(60):
        while True:
            far = await listener.accept()
            try:
                await far.wait_readable()
                assert far.receive_into(memoryview(bytearray(1))) == 1
                break
            except ConnectionResetError:
                far.close()
    close(listener, near, far)


async def test_small_frames_do_not_wait_and_large_ones_use_the_whole_buffer() -> None:
    network = RealNetwork()
    listener = await network.listen(Address("127.0.0.1", 0))
    ends = [await network.dial(listener.address), await listener.accept()]
    for end in ends:
        assert isinstance(end, RealStream)
        with socket.socket(fileno=os.dup(end._fd)) as same:
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 0
    close(listener, *ends)


@pytest.mark.parametrize(
    ("listening", "dialled"), [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")]
)
async def test_the_newer_protocol_is_spoken_and_the_older_one_with_it(
    listening: str, dialled: str
) -> None:
    network = RealNetwork()
    try:
        listener = await network.listen(Address(listening, 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    near = await network.dial(Address(dialled, listener.address.port))
    far = await listener.accept()
    assert (near.peer.host, far.peer.host) == (dialled, dialled)
    close(listener, near, far)


async def test_a_name_that_nobody_knows_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"known|resolution|resolve"):
        await RealNetwork().dial(Address("no-such-host.invalid", 1))


async def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    network = RealNetwork()
    listener = await network.listen(Address("127.0.0.1", 0))
    port = listener.address.port
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")

    async def two(*_: object, **__: object) -> list[object]:
        return [(*stream, ("127.0.0.2", port)), (*stream, ("127.0.0.1", port))]

    monkeypatch.setattr("trio._highlevel_open_tcp_stream.getaddrinfo", two)
    near = await network.dial(Address("somewhere", port))
    assert near.peer == listener.address
    listener.close()
    near.close()
    with pytest.raises(ConnectionRefusedError):
        await network.dial(Address("somewhere", port))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no.such.host.invalid"])
async def test_who_cannot_be_dialled_leaves_nothing_for_the_garbage_collector(host: str) -> None:
    async def fail() -> None:
        with pytest.raises(OSError, match=r"."):
            await RealNetwork().dial(Address(host, 1))

    await fail()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await fail()
        assert gc.collect() < 10
    finally:
        gc.enable()
