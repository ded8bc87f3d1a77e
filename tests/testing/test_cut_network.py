"""Cables between nodes of one process: what a cut holds up, and what a death closes."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from busnode.testing.cut_network import Cables, CutNetwork
from busnode.world.network import Address, Listener, Network, Stream
from busnode.world.real_network import RealNetwork

ANY = Address("127.0.0.1", 0)


class Ground:
    """Three nodes with a listener each."""

    def __init__(self) -> None:
        self.cables = Cables()
        self.a, self.b, self.c = (CutNetwork(name, self.cables) for name in "abc")
        self.listeners: dict[str, Listener] = {}

    async def connect(self, near: Network, far: CutNetwork) -> tuple[Stream, Stream]:
        if far.name not in self.listeners:
            self.listeners[far.name] = await far.listen(ANY)
        listener = self.listeners[far.name]
        stream = await near.dial(listener.address)
        return stream, await listener.accept()


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    ground = Ground()
    yield ground
    for network in (ground.a, ground.b, ground.c):
        network.die()


async def receive(stream: Stream) -> bytes:
    view = memoryview(bytearray(1000))
    with trio.fail_after(2):
        while (count := stream.receive_into(view)) is None:
            await stream.wait_readable()
    return bytes(view[:count])


async def stays(wait: Callable[[], Awaitable[object]]) -> bool:
    """Whether it still waits when all has happened that could."""
    with trio.move_on_after(0.05):
        await wait()
        return False
    return True


async def test_a_cut_silences_both_ends_and_heals_without_a_loss(ground: Ground) -> None:
    near, far = await ground.connect(ground.a, ground.b)
    near.send(b"on the way")
    await far.wait_readable()
    ground.cables.cut("a", "b")
    for end in (near, far):
        assert end.send(b"x") == 0
        assert end.send_both(b"x", b"y") == 0
        assert end.receive_into(memoryview(bytearray(1))) is None
        assert await stays(end.wait_readable)
        assert await stays(end.wait_writable)
    ground.cables.heal()
    assert await receive(far) == b"on the way"
    assert far.send(b"back") == 4
    assert await receive(near) == b"back"


async def test_who_waits_when_it_heals_goes_on(ground: Ground) -> None:
    near, far = await ground.connect(ground.a, ground.b)
    ground.cables.cut("b", "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        nursery.start_soon(far.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        ground.cables.heal()
        near.send(b"x")
    assert await receive(far) == b"x"


async def test_who_waits_for_bytes_when_it_is_cut_is_not_woken_by_an_end(ground: Ground) -> None:
    near, far = await ground.connect(ground.a, ground.b)
    heard: list[bytes] = []

    async def listen() -> None:
        heard.append(await receive(far))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        ground.cables.cut("a", "b")
        near.close()
        await trio.sleep(0.05)
        assert heard == []
        ground.cables.heal()
    assert heard == [b""]


async def test_a_dial_hangs_until_it_heals(ground: Ground) -> None:
    (await ground.connect(ground.c, ground.b))[0].close()
    address = ground.listeners["b"].address
    ground.cables.cut("a", "b")
    assert await stays(lambda: ground.a.dial(address))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.a.dial, address)
        await trio.testing.wait_all_tasks_blocked()
        ground.cables.heal()


async def test_others_and_clients_are_not_cut(ground: Ground) -> None:
    pairs = [
        await ground.connect(ground.a, ground.c),
        await ground.connect(ground.c, ground.b),
        await ground.connect(RealNetwork(), ground.a),
        await ground.connect(RealNetwork(), ground.b),
    ]
    ground.cables.cut("a", "b")
    pairs.append(await ground.connect(RealNetwork(), ground.b))
    for near, far in pairs:
        near.send(b"there")
        assert await receive(far) == b"there"
        far.send(b"and back")
        assert await receive(near) == b"and back"
        near.close()


async def test_closing_wakes_who_waits_behind_a_cut(ground: Ground) -> None:
    near, _ = await ground.connect(ground.a, ground.b)
    ground.cables.cut("a", "b")

    async def wait(how: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(OSError, match="closed on this side"):
            await how()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, near.wait_readable)
        nursery.start_soon(wait, near.wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        near.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        near.send(b"x")


async def test_a_death_closes_all_sockets_and_its_listeners_wait_for_ever(ground: Ground) -> None:
    near, far = await ground.connect(ground.a, ground.b)
    client, home = await ground.connect(RealNetwork(), ground.b)
    address = ground.listeners["b"].address
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.listeners["b"].accept)
        await trio.testing.wait_all_tasks_blocked()
        ground.b.die()
        assert await receive(near) == await receive(client) == b""
        with pytest.raises(ConnectionRefusedError):
            await ground.a.dial(address)
        for dead in (far, home):
            with pytest.raises(OSError, match="Bad file descriptor"):
                dead.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()  # it was still waiting, and nothing was raised
    client.close()


async def test_word_of_a_death_does_not_pass_a_cut(ground: Ground) -> None:
    near, _ = await ground.connect(ground.a, ground.b)
    ground.cables.cut("a", "b")
    ground.b.die()
    assert near.receive_into(memoryview(bytearray(1))) is None
    assert await stays(near.wait_readable)
    ground.cables.heal()
    assert await receive(near) == b""


async def test_a_connection_made_in_the_moment_of_the_cut_is_silent(ground: Ground) -> None:
    listener = await ground.b.listen(ANY)
    near = await ground.a.dial(listener.address)
    near.send(b"x")
    ground.cables.cut("a", "b")
    far = await listener.accept()
    assert await stays(lambda: receive(far))
    near.close()
    assert await stays(lambda: receive(far))
