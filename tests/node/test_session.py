"""A client's session: greeting, heartbeats, farewell, and every frame in every state."""

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from busnode.node import session
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.control import (
    CONTROLS,
    Ack,
    Chunk,
    Control,
    Error,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Subscribe,
    Welcome,
    encode_control,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.sessions import CLIENT_TABLE, Side, State

from ..wire.samples import batch, example
from .raw_client import (
    AMPLE,
    LIVE,
    Bus,
    Closed,
    Event,
    RawClient,
    SimulatedMachine,
    real_bus,
)

KINDS = sorted(FrameType)


def frame(kind: FrameType) -> bytes:
    """A good frame of a kind."""
    if kind is FrameType.BATCH:
        return batch("/plant/north/temp", flags=LIVE)
    message: Control = example(CONTROLS[kind])
    return encode_control(message)


@asynccontextmanager
async def unharmed(bus: Bus) -> AsyncIterator[None]:
    """Another client, for whom nothing must change whatever happens in the block."""
    async with bus.client(99, "neighbour") as neighbour:
        await neighbour.subscribe("/neighbour", number=1)
        yield
        assert [event for event in await neighbour.barrier() if event != Ping(0)] == []
        await neighbour.publish("/neighbour", [b"live"], LIVE)
        assert await neighbour.messages(1) == [(0, b"live")]
        await neighbour.publish("/neighbour", [b"kept"])
        await neighbour.expect(Ack)
        assert [payload for _, payload in await neighbour.messages(1)] == [b"kept"]
        assert await neighbour.barrier() == []


async def refused_and_closed(client: RawClient, code: str) -> Error:
    """The last that comes is an ERROR about the session."""
    events = await client.ended()
    error = events[-1]
    assert isinstance(error, Error)
    assert (error.code, error.refused, error.about) == (code, None, None)
    return error


# Every frame in every state -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_before_hello_only_hello_is_taken(kind: FrameType) -> None:
    machine = SimulatedMachine(kind)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.stranger() as client:
            if kind is FrameType.HELLO:
                await client.send(Hello(PROTOCOL_VERSION, "x", 1))
                await client.expect(Welcome)
                return
            await client.send(frame(kind))
            await refused_and_closed(client, "UNEXPECTED_FRAME")

    machine.run(main)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_open_session_takes_what_its_table_says(kind: FrameType) -> None:
    machine = SimulatedMachine(kind)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.client() as client:
            await client.send(frame(kind))
            if (Side.DIALLER, kind) not in CLIENT_TABLE[State.OPEN]:
                await refused_and_closed(client, "UNEXPECTED_FRAME")
            elif kind is FrameType.GOODBYE:
                assert isinstance((await client.ended())[-1], Goodbye)
            else:
                await client.barrier()

    machine.run(main)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_is_taken_after_goodbye(kind: FrameType) -> None:
    machine = SimulatedMachine(kind)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.client() as client:
            await client.send(encode_control(Goodbye("done", [])) + frame(kind))
            await refused_and_closed(client, "UNEXPECTED_FRAME")

    machine.run(main)


# Greeting -----------------------------------------------------------------------------------------


async def test_welcome_says_who_and_where(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as one, bus.client() as other:
        assert one.welcome is not None
        assert other.welcome is not None
        assert one.welcome.client_no != other.welcome.client_no
        assert one.welcome.broker_id == bus.broker_id
        assert (one.welcome.node, one.welcome.cluster_id) == ("n1", "test")
        assert one.welcome.nodes == [str(bus.node.address)]


async def test_another_version_is_refused(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.stranger() as client:
        await client.send(Hello(PROTOCOL_VERSION + 1, "x", 1))
        error = await refused_and_closed(client, "BAD_VERSION")
        assert str(PROTOCOL_VERSION + 1) in error.text


@pytest.mark.parametrize("sent", [0, 1, 8, 20], ids=lambda sent: f"{sent} bytes of it")
def test_a_hello_that_never_comes_ends_in_a_timeout(sent: int) -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.stranger() as client:
            hello = encode_control(Hello(PROTOCOL_VERSION, "slow", 1))
            began = trio.current_time()
            await client.send(hello[:sent])
            await refused_and_closed(client, "TIMED_OUT")
            assert 4.9 < trio.current_time() - began < 5.1
            await bus.settled(lambda: len(bus.node.sessions) == 1)

    machine.run(main)


def test_a_hello_that_drips_in_is_not_waited_for() -> None:
    machine = SimulatedMachine(2)

    async def main() -> None:
        async with machine.bus() as bus, bus.stranger() as client:
            hello = encode_control(Hello(PROTOCOL_VERSION, "x" * 100, 1))
            began = trio.current_time()
            with suppress(ConnectionError):
                for byte in hello:
                    await client.send(bytes([byte]))
                    await trio.sleep(0.5)
            assert 5 < trio.current_time() - began < 6

    machine.run(main)


async def test_frames_behind_hello_in_the_same_packet_are_taken(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.stranger() as client:
        await client.send(
            Hello(PROTOCOL_VERSION, "x", 1),
            Subscribe(1, "/a", "latest", {}, None, None, AMPLE),
            client.batch("/a", [b"first"]),
            Ping(5),
        )
        await client.expect(Welcome)
        await client.expect(Pong)
        assert await client.acked(1) == {1: 1}
        events = await client.until(lambda e: len(e) == 3)
        assert events[-1].payloads == [b"first"]  # type: ignore[union-attr]


# Heartbeats ---------------------------------------------------------------------------------------


def test_a_silent_client_is_pinged_and_then_let_go() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            assert client.welcome is not None
            heartbeat_s = client.welcome.heartbeat_s
            began = trio.current_time()
            events: list[Event] = []
            with suppress(Closed):
                while True:
                    await client.stream.wait_readable()
                    events.append(await client.receive())
            took = trio.current_time() - began
            assert 3 * heartbeat_s - 1 <= took <= 4 * heartbeat_s + 1
            assert events == [Ping(0)] * len(events)
            assert len(events) == 2

    machine.run(main)


@pytest.mark.parametrize("heartbeat_s", [15.0, 0.1])
def test_a_client_that_answers_pings_stays(heartbeat_s: float) -> None:
    """Also where a greeting may take longer than it takes to be let go."""
    machine = SimulatedMachine(4)

    async def main() -> None:
        async with machine.bus(heartbeat_s=heartbeat_s) as bus, bus.client() as client:
            end = trio.current_time() + 600
            pings = 0
            while trio.current_time() < end:
                await client.stream.wait_readable()
                assert await client.receive() == Ping(0)
                await client.send(Pong(0))
                pings += 1
            assert pings > 15
            assert len(bus.node.sessions) == 1

    machine.run(main)


def test_one_who_falls_silent_right_after_the_greeting_is_let_go_as_soon_as_any_other() -> None:
    machine = SimulatedMachine(6)

    async def main() -> None:
        settings = {"heartbeat_s": 0.2, "hello_timeout_s": 5.0}
        async with machine.bus(**settings) as bus, bus.client():
            machine.network.partition("client", "n1")
            with trio.fail_after(4.5 * 0.2):
                while bus.node.sessions:
                    await trio.sleep(0.01)
            machine.network.heal_all()

    machine.run(main)


def test_a_client_behind_a_cut_cable_is_gone_after_a_minute() -> None:
    machine = SimulatedMachine(5)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await client.subscribe("/a")
            machine.network.partition("client", "n1")
            with trio.fail_after(61):
                while bus.node.sessions:
                    await trio.sleep(1)
            assert len(bus.node.router) == 0
            machine.network.heal_all()

    machine.run(main)


def test_a_disk_that_stalls_is_not_taken_for_a_silent_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads from a client that has too much uncommitted: its pongs wait with the rest."""
    monkeypatch.setattr(session, "UNCOMMITTED_BYTES_MAX", 1000)
    machine = SimulatedMachine(6)

    async def main() -> None:
        async with machine.bus(heartbeat_s=1.0) as bus, bus.client() as client:
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=60.0)
            await client.publish("/a", [bytes(2000)])
            began = trio.current_time()
            await client.stream.wait_readable()
            assert isinstance(await client.receive(), Ack)
            print(f"the sync took {trio.current_time() - began:.0f} s")
            assert trio.current_time() - began > 10

    machine.run(main)


async def test_a_ping_is_answered_with_its_token(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(*(Ping(token) for token in range(100)))
        events = await client.until(lambda e: len(e) == 100)
        assert events == [Pong(token) for token in range(100)]


# Farewell -----------------------------------------------------------------------------------------


async def test_goodbye_is_answered_and_the_stream_ends(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a")
        await client.send(Goodbye("done", []))
        (event,) = await client.ended()
        assert isinstance(event, Goodbye)
        await bus.settled(lambda: not bus.node.sessions)
        assert len(bus.node.router) == 0


def test_what_was_published_before_goodbye_is_still_acked() -> None:
    machine = SimulatedMachine(7)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=2.0)
            frames = [client.batch(f"/a/{n % 3}") for n in range(30)]
            await client.send(*frames, Goodbye("done", []))
            events = await client.ended()
            assert isinstance(events[0], Goodbye)
            receipts = [row for e in events[1:] if isinstance(e, Ack) for row in e.receipts]
            acked = {seq + n for seq, count, _ in receipts for n in range(count)}
            assert acked == set(range(1, 31))

    machine.run(main)


async def test_nothing_but_answers_comes_after_goodbye(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        for _ in range(16):
            await publisher.publish("/a", [bytes(1 << 20)])
        await publisher.barrier()
        await bus.committed()
        await reader.subscribe("/a", "earliest")
        await reader.expect(Chunk)  # there is much more than the sockets hold
        await reader.send(Goodbye("enough", []))
        events = await reader.ended()
        at = next(place for place, e in enumerate(events) if isinstance(e, Goodbye))
        assert events[at + 1 :] == []
        assert len(events) < 32


async def test_a_client_that_just_goes_is_forgotten(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus:
        async with bus.client() as client:
            await client.subscribe("/a")
        await bus.settled(lambda: not bus.node.sessions)
        assert len(bus.node.router) == 0


# Limits -------------------------------------------------------------------------------------------


async def test_more_clients_than_allowed_are_turned_away(tmp_path: Path) -> None:
    async with real_bus(tmp_path, clients_max=3) as bus:
        async with bus.client(), bus.client(), unharmed(bus), bus.stranger() as client:
            (error,) = await client.ended()
            assert isinstance(error, Error)
            assert error.code == "LIMIT_REACHED"
        await bus.settled(lambda: not bus.node.sessions)
        async with bus.client():
            pass


def test_a_client_that_asks_and_never_reads_is_let_go() -> None:
    machine = SimulatedMachine(8)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.client() as client:
            # Each answer repeats the position: 400 KB.
            nobody = BrokerId(bytes(range(16)))
            position = {nobody: {f"/not/matched/{n:0200}": 1 for n in range(2000)}}
            asked = 0
            with suppress(ConnectionError):
                for asked in range(60):
                    await client.send(Subscribe(asked, "/a", None, position, None, None, AMPLE))
            assert 8 < asked < 59
            await bus.settled(lambda: len(bus.node.sessions) == 1)
            assert len(bus.node.router) == 1

    machine.run(main)


async def test_what_a_client_had_is_freed_when_it_leaves(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus:
        gc.collect()
        gc.disable()  # what it would find is there for as long as nobody looks
        try:
            async with bus.client() as client:
                await client.subscribe("/*", "earliest", number=1)
                await client.subscribe("/*", "latest", number=2, queue="group")
                gone = weakref.ref(bus.session(client)), weakref.ref(bus.session(client).outgoing)
            await bus.settled(lambda: all(each() is None for each in gone))
        finally:
            gc.enable()
