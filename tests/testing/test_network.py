"""What only the simulated network can do: delays, cuts and the death of hosts."""

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from busnode.testing.sim import SimNetwork
from busnode.world.network import Address, Stream


@pytest.fixture
def network() -> SimNetwork:
    net = SimNetwork(1)
    for name in "abc":
        net.host(name)
    return net


async def connect(net: SimNetwork, one: str = "a", other: str = "b") -> tuple[Stream, Stream]:
    listener = await net.host(other).listen(Address(other, 0))
    near = await net.host(one).dial(listener.address)
    far = await listener.accept()
    listener.close()
    return near, far


async def receive(stream: Stream) -> bytes:
    view = memoryview(bytearray(1000))
    await stream.wait_readable()
    count = stream.receive_into(view)
    assert count is not None
    return bytes(view[:count])


async def receive_to_the_end(stream: Stream) -> None:
    while await receive(stream):
        pass


async def is_silent(wait: Callable[[], Awaitable[object]]) -> bool:
    with trio.move_on_after(1000):
        await wait()
        return False
    return True


async def test_bytes_take_as_long_as_the_way_is(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    network.latency_s = (2.0, 3.0)
    near, far = await connect(network)
    for _ in range(10):
        begun = trio.current_time()
        near.send(b"x")
        near.send(b"y")
        assert far.receive_into(memoryview(bytearray(1))) is None
        assert await receive(far) in (b"x", b"xy")
        assert 2.0 <= trio.current_time() - begun <= 3.0
        await trio.sleep(3)
        far.receive_into(memoryview(bytearray(1)))


async def test_nothing_overtakes(network: SimNetwork, autojump_clock: MockClock) -> None:
    network.latency_s = (0.0, 10.0)
    near, far = await connect(network)
    for number in range(100):
        near.send(bytes([number]))
        await trio.sleep(0.1)
    received = b""
    while len(received) < 100:
        received += await receive(far)
    assert received == bytes(range(100))


async def test_the_buffer_counts_what_is_on_the_way(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    network.buffer_bytes = 10
    near, far = await connect(network)
    assert near.send(bytes(8)) == 8
    assert near.send(bytes(8)) == 2
    assert near.send(bytes(8)) == 0
    assert await is_silent(near.wait_writable)
    assert far.receive_into(memoryview(bytearray(3))) == 3
    await near.wait_writable()
    assert near.send(bytes(8)) == 3
    assert far.send(bytes(20)) == 10, "each direction has its own"


async def test_a_cut_holds_up_bytes_and_loses_none(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    near, far = await connect(network)
    near.send(b"on the way ")
    network.partition("b", "a")
    near.send(b"sent into the cut")
    far.send(b"and back")
    assert await is_silent(far.wait_readable)
    assert await is_silent(near.wait_readable)
    network.heal("a", "b")
    assert await receive(far) == b"on the way sent into the cut"
    assert await receive(near) == b"and back"


async def test_a_cut_concerns_two_hosts_only(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    network.partition("a", "b")
    near, far = await connect(network, "a", "c")
    near.send(b"x")
    assert await receive(far) == b"x"
    near, far = await connect(network, "c", "b")
    near.send(b"x")
    assert await receive(far) == b"x"


async def test_what_had_arrived_before_the_cut_can_be_read(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    near, far = await connect(network)
    near.send(b"x")
    await far.wait_readable()
    network.partition("a", "b")
    assert await receive(far) == b"x"


async def test_the_end_of_a_stream_does_not_cross_a_cut(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    near, far = await connect(network)
    network.partition("a", "b")
    near.close()
    assert await is_silent(far.wait_readable)
    network.heal_all()
    assert await receive(far) == b""


async def test_dialling_across_a_cut_gets_through_when_it_heals_in_time(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    listener = await network.host("b").listen(Address("b", 7))
    network.partition("a", "b")
    with pytest.raises(TimeoutError):
        await network.host("a").dial(listener.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.host("a").dial, listener.address)
        await trio.sleep(10)
        network.heal("a", "b")
    await listener.accept()


async def test_a_cut_during_the_handshake_is_a_cut(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    network.latency_s = (5.0, 5.0)
    listener = await network.host("b").listen(Address("b", 7))

    async def dial() -> None:
        with pytest.raises(TimeoutError):
            await network.host("a").dial(listener.address)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dial)
        await trio.sleep(1)
        network.partition("a", "b")


async def test_the_death_of_a_host_resets_its_connections_and_ends_its_listeners(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    listener = await network.host("b").listen(Address("b", 7))
    near = await network.host("a").dial(listener.address)
    far = await listener.accept()
    bystanders = await connect(network, "a", "c")
    never_accepted = await network.host("c").dial(listener.address)
    far.send(b"last words")
    network.reset("b")
    for stream in (near, never_accepted):
        with pytest.raises(ConnectionResetError):
            await receive_to_the_end(stream)
        with pytest.raises(ConnectionResetError):
            stream.send(b"x")
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        far.send(b"x")
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        await listener.accept()
    with pytest.raises(ConnectionRefusedError):
        await network.host("a").dial(listener.address)
    bystanders[0].send(b"x")
    assert await receive(bystanders[1]) == b"x"
    await network.host("b").listen(Address("b", 7))


async def test_a_machine_without_power_falls_silent_until_it_is_back(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    near, _ = await connect(network)
    network.partition("a", "b")
    network.reset("b")
    assert await is_silent(near.wait_readable)
    network.heal("a", "b")
    with pytest.raises(ConnectionResetError):
        await receive(near)


async def test_a_host_that_nobody_knows_cannot_be_reached(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    with pytest.raises(OSError, match=f"Errno {errno.EHOSTUNREACH}"):
        await network.host("a").dial(Address("nobody", 1))


async def test_too_many_who_wait_to_be_accepted_make_others_wait(
    network: SimNetwork, autojump_clock: MockClock
) -> None:
    listener = await network.host("b").listen(Address("b", 7))
    for _ in range(128):
        await network.host("a").dial(listener.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.host("c").dial, listener.address)
        await trio.sleep(1)
        assert len(nursery.child_tasks) == 1
        await listener.accept()
