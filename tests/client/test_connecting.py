"""Finding a home, keeping it, losing it."""

from collections.abc import Sequence
from functools import partial

import anyio
import pytest
import trio

from busnode.client import Bus, connect
from busnode.testing.sim import SimClock, SimDisk, SimEntropy, SimNetwork, simulate
from busnode.wire import control
from busnode.wire.errors import (
    BadControl,
    BadVersion,
    Disconnected,
    Draining,
    Forbidden,
    LimitReached,
    Refused,
)
from busnode.wire.frames import FrameType
from busnode.world.network import Address
from tests.client.scripted_node import (
    BROKER,
    Peer,
    ScriptedNode,
    chunk,
    eventually,
    on_both_loops,
    record,
    scripted_node,
    simulated_node,
    visit,
)


class SimulatedWorld:
    """What a client has in the simulator."""

    def __init__(self, network: SimNetwork, host: str = "client", seed: int = 0) -> None:
        self.clock = SimClock()
        self.entropy = SimEntropy(seed)
        self.files = SimDisk(seed)
        self.network = network.host(host)


async def refuse(node: ScriptedNode, code: str) -> None:
    peer = await node.accept(greet=False)
    await peer.expect(control.Hello)
    await peer.send(control.Error(code, "no", None, None, None))


@on_both_loops
async def test_a_client_says_who_it_is_and_is_let_in() -> None:
    async with visit(name="billing") as (bus, peer, node):
        assert peer.hello is not None
        assert (peer.hello.protocol, peer.hello.name) == (1, "billing")
        assert bus.statistics().home == str(node.address)


@on_both_loops
async def test_a_refusal_raises_at_once_and_as_itself() -> None:
    for code, kind in (("FORBIDDEN", Forbidden), ("BAD_VERSION", BadVersion)):
        async with scripted_node() as node, anyio.create_task_group() as tasks:
            tasks.start_soon(refuse, node, code)
            with pytest.raises(kind) as caught:
                async with connect(node.url):
                    pytest.fail("it was let in")
            assert caught.value.code == code


@on_both_loops
async def test_a_node_that_is_leaving_or_full_is_passed_over() -> None:
    for code in (Draining.code, LimitReached.code):
        async with scripted_node() as node, anyio.create_task_group() as tasks:

            async def serve(node: ScriptedNode = node, code: str = code) -> None:
                await refuse(node, code)
                (await node.accept()).close()

            tasks.start_soon(serve)
            async with connect(node.url) as bus:
                assert bus.statistics().connections == 1


@on_both_loops
async def test_nobody_there_is_an_error_after_the_deadline_that_says_who_was_tried() -> None:
    async with scripted_node() as node:
        address = node.address
    with pytest.raises(Disconnected) as caught:
        async with connect(f"bus://{address}", deadline_s=0.2):
            pytest.fail("it was let in")
    assert str(address) in caught.value.text
    assert "ECONNREFUSED" in caught.value.text


@on_both_loops
async def test_the_next_node_is_tried_when_one_is_down() -> None:
    async with scripted_node() as dead:
        pass
    async with scripted_node() as node, anyio.create_task_group() as tasks:
        tasks.start_soon(node.be_polite)
        async with connect(f"bus://{dead.address},{node.address}") as bus:
            assert bus.statistics().home == str(node.address)


@on_both_loops
async def test_a_lost_connection_is_replaced_at_a_node_that_the_first_one_named() -> None:
    async with (
        scripted_node() as first,
        scripted_node() as second,
        anyio.create_task_group() as tasks,
    ):

        async def be_first() -> None:
            peer = await first.accept(nodes=[str(second.address)])
            await peer.expect(control.Subscribe)
            peer.close()

        async def be_second() -> None:
            peer = await second.accept()
            await peer.subscribed({})
            await peer.expect(control.Goodbye)
            peer.close()

        tasks.start_soon(be_first)
        tasks.start_soon(be_second)
        async with connect(first.url) as bus, bus.subscribe("/t"):
            assert bus.statistics().home == str(second.address)
            assert bus.statistics().connections == 2


@on_both_loops
async def test_a_node_that_leaves_may_settle_what_it_owes_and_then_we_go_where_it_says() -> None:
    async with (
        scripted_node() as first,
        scripted_node() as second,
        anyio.create_task_group() as tasks,
    ):
        left: list[Sequence[bytes]] = []

        async def be_first() -> None:
            peer = await first.accept()
            batches = [await peer.batch(), await peer.batch()]
            await peer.send(control.Goodbye("maintenance", [str(second.address)]))
            await anyio.wait_all_tasks_blocked()
            await peer.ack(batches[0], 1)
            assert (await peer.expect(control.Goodbye)).reason == "moving on"
            left.append(batches[1].columns.payloads)
            peer.close()

        async def be_second() -> None:
            peer = await second.accept()
            again = await peer.batch()
            assert left == [again.columns.payloads]
            await peer.ack(again, 1)
            await peer.expect(control.Goodbye)
            peer.close()

        tasks.start_soon(be_first)
        tasks.start_soon(be_second)
        async with connect(first.url) as bus, anyio.create_task_group() as publishing:
            publishing.start_soon(partial(bus.publish, "/a", b"one", persistent=True))
            publishing.start_soon(partial(bus.publish, "/b", b"two", persistent=True))


@on_both_loops
async def test_a_ping_is_answered() -> None:
    async with visit() as (_, peer, _):
        await peer.send(control.Ping(42))
        assert (await peer.expect(control.Pong)).token == 42


def test_a_silent_node_is_asked_for_a_sign_of_life_and_then_left() -> None:
    async def main() -> None:
        network = SimNetwork()
        listener = await network.host("node").listen(Address("", 4250))
        node = simulated_node(listener)
        async with trio.open_nursery() as nursery:
            heard: list[float] = []

            async def be_node() -> None:
                peer = Peer(await listener.accept())
                await peer.welcome(heartbeat_s=10)
                for _ in range(2):
                    await peer.expect(control.Ping)
                    heard.append(trio.current_time())
                await node.accept()
                heard.append(trio.current_time())

            nursery.start_soon(be_node)
            async with connect("bus://node", world=SimulatedWorld(network)) as bus:
                while bus.statistics().connections < 2:
                    await trio.sleep(1)
                nursery.cancel_scope.cancel()
        # The WELCOME was heard in the first ten seconds, and nothing after it.
        assert [round(moment) for moment in heard[:2]] == [20, 30]
        assert 40 <= heard[2] < 41

    simulate(1, main)


def test_a_node_that_is_alive_but_idle_is_kept() -> None:
    async def main() -> None:
        network = SimNetwork()
        listener = await network.host("node").listen(Address("", 4250))

        async def be_node() -> None:
            peer = Peer(await listener.accept())
            await peer.welcome(heartbeat_s=10)
            while True:
                ping = await peer.expect(control.Ping)
                await peer.send(control.Pong(ping.token))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_node)
            async with connect("bus://node", world=SimulatedWorld(network)) as bus:
                await trio.sleep(3600)
                assert bus.statistics().connections == 1
                nursery.cancel_scope.cancel()

    simulate(1, main)


def test_a_cut_network_is_noticed_and_another_node_found() -> None:
    async def main() -> None:
        network = SimNetwork()
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                listener = await network.host(name).listen(Address("", 4250))
                node = simulated_node(listener)
                nursery.start_soon(node.accept)
            async with connect("bus://one,two", world=SimulatedWorld(network)) as bus:
                home = bus.statistics().home
                assert home is not None
                network.partition("client", home.split(":")[0])
                while bus.statistics().connections < 2:
                    await trio.sleep(1)
                assert trio.current_time() < 70
                assert bus.statistics().home not in (None, home)
                nursery.cancel_scope.cancel()

    simulate(1, main)


def has_moved(bus: Bus) -> bool:
    return bus.statistics().connections == 2


@on_both_loops
async def test_a_node_that_breaks_the_protocol_is_told_so_and_left() -> None:
    broken: dict[str, control.Control | bytes] = {
        "a batch that no chunk announced": record(0, [b"x"]),
        "a frame that is for nodes": control.Mirror(BROKER),
        "an ack of what was never sent": control.Ack(BROKER, "local", [(5, 1, 1)]),
        "noise": b"GET / HTTP/1.1\r\n\r\n" * 4,
    }
    for fault, frame in broken.items():
        async with visit() as (bus, peer, node):
            await peer.send(frame)
            complaint = await peer.expect(control.Error)
            assert complaint.refused is None, fault
            with pytest.raises(EOFError):
                await peer.receive()
            again = await node.accept()
            await eventually(partial(has_moved, bus))
            again.close()


@on_both_loops
async def test_damaged_bytes_are_never_delivered_but_asked_for_again() -> None:
    async with visit() as (bus, first, node), anyio.create_task_group() as tasks:
        tasks.start_soon(first.subscribed, {})
        async with bus.subscribe("/t", start="earliest") as messages:
            peer = first
            good = record(1, [b"right"])
            number = 1
            for at in (60, len(good) - 1, 30):  # producer's half, body, the node's stamp
                bad = bytearray(good)
                bad[at] ^= 1
                await peer.send(chunk(number, bytes(bad)))
                assert (await peer.expect(control.Error)).code == "BAD_HASH"
                peer.close()
                peer = await node.accept()
                asked = await peer.subscribed()
                assert (asked.start, asked.position) == (None, {})
                number = asked.subscription
            await peer.send(chunk(number, good))
            assert (await anext(messages)).payload == b"right"
        peer.close()


@on_both_loops
async def test_an_exception_in_the_block_comes_out_as_it_is() -> None:
    async with scripted_node() as node, anyio.create_task_group() as tasks:
        tasks.start_soon(node.be_polite)
        with pytest.raises(ZeroDivisionError):
            async with connect(node.url):
                raise ZeroDivisionError


@on_both_loops
async def test_leaving_sends_what_is_buffered_and_then_says_goodbye() -> None:
    got: list[bytes] = []
    async with scripted_node() as node, anyio.create_task_group() as tasks:

        async def be_node() -> None:
            peer = await node.accept()
            while len(got) < 1000:
                got.extend((await peer.batch()).columns.payloads)
            await peer.expect(control.Goodbye)
            await peer.send(control.Goodbye("bye", []))
            peer.close()

        tasks.start_soon(be_node)
        async with connect(node.url) as bus:
            for i in range(1000):
                await bus.publish("/t", b"%d" % i)
    assert got == [b"%d" % i for i in range(1000)]


@on_both_loops
async def test_a_wrong_url_is_refused_before_anything_is_dialled() -> None:
    for url in ("127.0.0.1:4250", "bus://", "bus://a:b", "bus://a:0", "bus://::1:4250"):
        with pytest.raises(Refused):
            async with connect(url):
                pytest.fail(url)


@on_both_loops
async def test_a_name_that_is_too_long_is_refused_before_anything_is_dialled() -> None:
    with pytest.raises(BadControl):
        async with connect("bus://127.0.0.1:1", name="x" * 200):
            pytest.fail("it was let in")


@on_both_loops
async def test_a_host_that_cannot_be_is_one_that_is_not_there() -> None:
    for host in ("x" * 64, "nowhere.invalid", "a..b"):
        with pytest.raises(Disconnected):
            async with connect(f"bus://{host}:1", deadline_s=0.05):
                pytest.fail("it was let in")


@on_both_loops
async def test_after_a_refusal_every_call_raises_it() -> None:
    async with visit() as (bus, peer, node):
        peer.close()
        await refuse(node, "FORBIDDEN")
        with pytest.raises(Forbidden):
            await bus.publish("/t", b"x", persistent=True)
        with pytest.raises(Forbidden):
            await bus.request("/t", b"x")
        with pytest.raises(Forbidden):
            async with bus.subscribe("/t"):
                pytest.fail("it was let in")


@on_both_loops
async def test_an_error_about_the_session_ends_it() -> None:
    async with visit() as (bus, peer, node):
        await peer.send(control.Error("BAD_CONTROL", "you said nonsense", None, None, None))
        again = await node.accept()
        await eventually(lambda: bus.statistics().connections == 2)
        again.close()


def test_every_frame_that_a_node_may_send_has_a_place() -> None:
    """As the session's table grows, so must the switchboard."""
    from busnode.wire.sessions import CLIENT_TABLE, Side, State

    listener = {kind for side, kind in CLIENT_TABLE[State.OPEN] if side is Side.LISTENER}
    assert listener == {
        FrameType[name]
        for name in (
            "BATCH ACK NODES SUBSCRIBED CHUNK GAP DROPPED ASK REQUEST REPLY PING PONG ERROR GOODBYE"
            " TASKS TASK_SETTLED"
        ).split()
    }
