"""Hostile and broken clients: each is told why, and nobody else notices."""

import os
import random
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from busnode.node import conversation, router, subscriptions
from busnode.node import outgoing as outgoing_module
from busnode.wire import limits
from busnode.wire.control import (
    Dropped,
    Hello,
    Ping,
    Provide,
    Request,
    Subscribe,
    Unsubscribe,
    encode_control,
)
from busnode.wire.frames import (
    CONTROL_PREFIX_BYTES,
    HASHED_HEADER_AT,
    PREFIX,
    PREFIX_BYTES,
    FrameType,
)
from busnode.wire.ids import BrokerId

from ..wire.samples import batch, control_frame, control_values, flipped, opening, patched
from .raw_client import (
    AMPLE,
    LIVE,
    Bus,
    Closed,
    Delivered,
    LoopWatch,
    RawClient,
    SimulatedMachine,
    real_bus,
)
from .test_session import refused_and_closed, unharmed
from .test_subscribe import resident_bytes

HUGE = 0xFFFF_FFFF


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


HELLO = encode_control(Hello(limits.PROTOCOL_VERSION, "x", 1))
GOOD = batch("/a", flags=LIVE)

BAD: dict[str, tuple[bytes, str]] = {
    "a length of 4 GiB": (opening(FrameType.PING, HUGE), "FRAME_TOO_LARGE"),
    "a batch of 4 GiB": (opening(FrameType.BATCH, HUGE), "FRAME_TOO_LARGE"),
    "a batch over the limit": (
        opening(FrameType.BATCH, limits.FRAME_BYTES_MAX + 1),
        "FRAME_TOO_LARGE",
    ),
    "a length that is too short": (opening(FrameType.PING, 3), "BAD_FRAME"),
    "a type that nobody knows": (struct.pack("<IBBBB", 64, 200, 1, 0, 0), "BAD_FRAME"),
    "another version": (struct.pack("<IBBBB", 64, 20, 9, 0, 0), "BAD_VERSION"),
    "text": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_FRAME"),
    "a body whose hash is wrong": (flipped(GOOD, 8 * (len(GOOD) - 1)), "BAD_HASH"),
    "a header whose hash is wrong": (patched(GOOD, HASHED_HEADER_AT, bytes(8)), "BAD_HASH"),
    "a control message whose hash is wrong": (flipped(encode_control(Ping(1)), 140), "BAD_HASH"),
    "no messages": (batch("/a", count=0), "BAD_BATCH"),
    "more messages than allowed": (batch("/a", count=4097), "BAD_BATCH"),
    "flags that nobody knows": (batch("/a", flags=0x80), "BAD_BATCH"),
    "nested arrays": (control_frame(FrameType.PING, nested(1000)), "BAD_CONTROL"),
    "deeply nested arrays": (control_frame(FrameType.REQUEST, nested(500_000)), "BAD_CONTROL"),
    "an array of four billion": (
        control_frame(FrameType.PING, b"\xdd\xff\xff\xff\xff"),
        "BAD_CONTROL",
    ),
    "arrays in arrays, each announced as long": (
        control_frame(FrameType.SUBSCRIBE, b"\xdc\x04\x00" * 1000),
        "BAD_CONTROL",
    ),
    "too few fields": (control_values(FrameType.SUBSCRIBE, [1]), "BAD_CONTROL"),
    "fields of other types": (control_values(FrameType.PING, ["x"]), "BAD_CONTROL"),
    "a negative number": (control_values(FrameType.CREDIT, [1, -5]), "BAD_CONTROL"),
    "seconds that are not a number": (
        control_values(FrameType.REQUEST, [1, 0, "/a", {}, b"", False, float("nan")]),
        "BAD_CONTROL",
    ),
    "a map in place of a message": (control_values(FrameType.PING, {"token": 1}), "BAD_CONTROL"),
    "a topic of 300 bytes": (
        control_values(FrameType.SUBSCRIBE, [1, "/" + "x" * 299, "latest", {}, None, None, 0]),
        "BAD_CONTROL",
    ),
    "a start that is no start": (
        control_values(FrameType.SUBSCRIBE, [1, "/a", "tomorrow", {}, None, None, 0]),
        "BAD_CONTROL",
    ),
    "half a surrogate pair": (
        control_frame(FrameType.PROVIDE, b"\x92\x01\xa4/\xed\xa0\x80"),
        "BAD_CONTROL",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_the_protocol_is_named_and_ends_only_its_session(name: str) -> None:
    bad, code = BAD[name]
    machine = SimulatedMachine(len(name))

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.client() as client:
            await client.publish("/a")
            assert await client.acked(1) == {1: 1}
            await client.send(bad)
            await refused_and_closed(client, code)

    machine.run(main)


@pytest.mark.parametrize("name", ["a length of 4 GiB", "a batch of 4 GiB", "text"])
def test_a_stranger_is_turned_away_at_its_first_bytes(name: str) -> None:
    bad, code = BAD[name]
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.stranger() as client:
            await client.send(bad[:8])
            await refused_and_closed(client, code)

    machine.run(main)


def test_a_batch_of_eight_mib_before_hello_is_refused_at_its_first_bytes() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus() as bus, unharmed(bus), bus.stranger() as client:
            await client.send(opening(FrameType.BATCH, limits.FRAME_BYTES_MAX))
            await refused_and_closed(client, "UNEXPECTED_FRAME")

    machine.run(main)


async def test_a_thousand_connections_that_announce_four_gib_cost_next_to_nothing(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, unharmed(bus):
        before = resident_bytes(os.getpid())
        refused = 0
        most = 0

        async def attack(number: int) -> None:
            nonlocal refused, most
            async with bus.stranger() as client:
                first = FrameType.HELLO if number % 2 else FrameType.BATCH
                await client.send(opening(first, HUGE))
                error = await client.refused()
                assert error.code == "FRAME_TOO_LARGE"
                refused += 1
                most = max(most, resident_bytes(os.getpid()))
                if refused == 1000:
                    all_refused.set()
                await all_refused.wait()

        all_refused = trio.Event()
        with LoopWatch.over("1,000 who announce 4 GiB"):
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(attack, number)
        assert refused == 1000
        print(f"1,000 connections, both ends in this process: {(most - before) / 1e6:+.1f} MB")
        assert most - before < 80e6
        await bus.settled(lambda: len(bus.node.sessions) == 1)


async def test_announced_batches_take_memory_only_as_their_bytes_come(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, unharmed(bus):
        before = resident_bytes(os.getpid())
        announced = trio.Event()
        count = 0

        async def announce() -> None:
            nonlocal count
            async with bus.client() as client:
                await client.send(opening(FrameType.BATCH, limits.FRAME_BYTES_MAX) + bytes(100))
                count += 1
                if count == 200:
                    announced.set()
                await announced.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(announce)
        more = resident_bytes(os.getpid()) - before
        print(f"200 unfinished batches of 8 MiB: {more / 1e6:+.1f} MB")
        assert more < 40e6


async def test_subscriptions_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """100,000 from one client: 10,000 stand, each other one is named, nobody waits."""
    async with real_bus(tmp_path) as bus, unharmed(bus):
        async with bus.client(5) as client:
            frames = [
                encode_control(Subscribe(n, f"/s/{n % 100}/{n}", "latest", {}, None, None, 0))
                for n in range(100_000)
            ]
            with LoopWatch.over("100,000 subscriptions"):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.send, b"".join(frames))
                    answers = await quickly_read(client, 100_000)
            stand = [values[0] for kind, values in answers if kind == FrameType.SUBSCRIBED]
            assert stand == list(range(10_000))
            errors = [values for kind, values in answers if kind == FrameType.ERROR]
            assert {code for code, *_ in errors} == {"LIMIT_REACHED"}
            assert [about for _, _, _, about, _ in errors] == list(range(10_000, 100_000))
            assert len(bus.node.router) == 10_001
        with LoopWatch.over("their client leaves"):
            await bus.settled(lambda: len(bus.node.sessions) == 1)
        assert len(bus.node.router) == 1


async def quickly_read(client: RawClient, count: int) -> list[tuple[int, list[Any]]]:
    """So many control frames as their types and values, unchecked: the checks take longer than what
    is tested."""
    found: list[tuple[int, list[Any]]] = []
    buffer = bytearray()
    view = memoryview(bytearray(1 << 20))
    with trio.fail_after(60):
        while len(found) < count:
            received = client.stream.receive_into(view)
            if not received:
                await client.stream.wait_readable()
                continue
            buffer += view[:received]
            at = 0
            while len(buffer) - at >= PREFIX_BYTES:
                length, kind, *_ = PREFIX.unpack_from(buffer, at)
                if len(buffer) - at < length:
                    break
                array = bytes(buffer[at + CONTROL_PREFIX_BYTES : at + length])
                found.append((kind, msgpack.unpackb(array)))
                at += length
            del buffer[:at]
    return found


async def test_ten_thousand_subscriptions_to_one_topic_get_one_message_each(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as client:
        frames = [
            encode_control(Subscribe(n, "/a", "latest", {}, None, None, AMPLE))
            for n in range(10_000)
        ]
        await client.send(*frames)
        await client.until(lambda e: len(e) == 10_000)
        for flags, what in ((LIVE, "live"), (LIVE | 1, "persistent")):
            with LoopWatch.over(f"one {what} message to 10,000 subscriptions"):
                await publisher.publish("/a", [b"x"], flags)
                events = await client.until(lambda e: len(e) == 20_000)
            numbers = {event.chunk.subscription for event in events[1::2]}  # type: ignore[union-attr]
            assert len(numbers) == 10_000


async def test_what_one_client_subscribes_to_takes_bounded_memory_in_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thousands of subscriptions to everything stand in the route of every topic."""
    monkeypatch.setattr(router, "ROUTED_MAX", 500)
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as client:
        for number in range(100):
            await client.subscribe("/+", number=number)
        for topic in [*(f"/{n}" for n in range(20)), *(f"/{n}" for n in range(20))]:
            await publisher.publish(topic, [topic.encode()], LIVE)
            events = await client.until(lambda e: len(e) == 200)
            assert {event.topic for event in events[1::2]} == {topic}  # type: ignore[union-attr]
        routes = bus.node.router._routes.values()
        assert bus.node.router._routed == sum(len(route) for route in routes)
        assert bus.node.router._routed <= 500


async def test_places_in_logs_are_limited_for_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PLACES_MAX", 1000)
    async with real_bus(tmp_path, storage="memory") as bus, bus.client() as client:
        await client.send(*(client.batch(f"/{n}") for n in range(600)))
        await client.acked(600)
        await client.subscribe("/+", number=1, credit_bytes=0)
        await client.send(Subscribe(2, "/+", "latest", {}, None, None, 0))
        error = await client.refused()
        assert (error.code, error.about) == ("LIMIT_REACHED", 2)
        assert len(bus.node.router) == 1
        await client.send(Unsubscribe(1))
        await client.subscribe("/+", number=2, credit_bytes=0)


async def test_places_in_logs_that_are_nowhere_are_limited_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client says of where it is takes memory, whether there is such a log or not."""
    monkeypatch.setattr(subscriptions, "PLACES_MAX", 1000)
    async with real_bus(tmp_path, storage="memory") as bus, bus.client() as client:
        nowhere = {BrokerId(b"n" * 16): {f"/{n}": 1 for n in range(600)}}
        await client.subscribe("/a", None, nowhere, number=1)
        await client.send(Subscribe(2, "/a", None, nowhere, None, None, 0))
        error = await client.refused()
        assert (error.code, error.about) == ("LIMIT_REACHED", 2)
        assert len(bus.node.router) == 1
        await client.send(Unsubscribe(1))
        await client.send(*(client.batch(f"/{n}") for n in range(600)))
        await client.acked(600)
        there = {bus.broker_id: {f"/{n}": 1 for n in range(600)}}
        await client.subscribe("/+", None, there, number=2)  # each is counted once


async def test_live_messages_that_wait_are_limited_for_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_module, "QUEUED_BYTES_MAX", 100_000)
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as client:
        for number in range(10):
            await client.subscribe(f"/{number}", number=number, credit_bytes=0)
        for _ in range(50):
            for number in range(10):
                await publisher.publish(f"/{number}", [bytes(1000)], LIVE)
        await publisher.barrier()
        outgoing = bus.session(client).outgoing
        assert 90_000 < outgoing.queued_bytes <= 100_000
        for number in range(10):
            await client.credit(AMPLE, number)
        events = await bus.all_sent(client)
        got = sum(len(e.payloads) for e in events if isinstance(e, Delivered))
        lost = sum(e.count for e in events if isinstance(e, Dropped))
        assert got + lost == 500
        assert got > 80
        assert outgoing.queued_bytes == 0
        await client.subscribe("/x", number=99, credit_bytes=0)
        await publisher.publish("/x", [bytes(1000)], LIVE)
        await publisher.barrier()
        await client.send(Unsubscribe(99))
        await client.barrier()
        assert outgoing.queued_bytes == 0


async def test_what_queue_groups_hand_to_one_client_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_module, "QUEUED_BYTES_MAX", 100_000)
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as client:
        await publisher.send(*(publisher.batch("/a", [bytes(5000)]) for _ in range(100)))
        # Its socket is full of something else, and it does not read.
        await client.subscribe("/noise", number=999)
        noise = [publisher.batch("/noise", [bytes(1 << 20)], LIVE) for _ in range(8)]
        await publisher.send(*noise)
        await publisher.barrier()
        assert bus.session(client).outgoing.blocked
        for number in range(50):
            await client.send(Subscribe(number, "/a", "earliest", {}, None, f"g{number}", AMPLE))
        await bus.settled(lambda: len(bus.node.subscriptions.groups) == 50)
        live_bytes = bus.node.subscriptions.of(bus.session(client))[999]._live_bytes
        assert bus.session(client).outgoing.queued_bytes - live_bytes <= 110_000
        held = sum(len(r.data) for group in bus.node.subscriptions.groups for r in group._held)
        assert held < 1_000_000


async def test_thousands_of_small_messages_in_one_packet_let_others_run(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, unharmed(bus), bus.client() as client:
        with LoopWatch.over("30,000 pings"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, encode_control(Ping(1)) * 30_000)
                await client.until(lambda e: len(e) == 30_000)
        with LoopWatch.over("3,000 new topics"):
            await client.send(*(client.batch(f"/new/{n}") for n in range(3000)))
            await client.acked(3000)
        with LoopWatch.over("5,000 bad topics"):
            await client.send(*(client.batch("/a/..") for n in range(5000)))
            await client.until(lambda e: len(e) == 5000)


class _Turns(trio.abc.Instrument):
    """How often sessions of clients were given a turn."""

    def __init__(self) -> None:
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("_serve_client")


@pytest.mark.parametrize(("step_s_max", "least", "most"), [(-1.0, 20, 60), (3600.0, 1, 10)])
async def test_what_takes_long_lets_others_run_however_few_messages_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s_max: float, least: int, most: int
) -> None:
    """With a limit that each message exceeds, and with one that none does."""
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.barrier()
        monkeypatch.setattr(conversation, "STEP_S_MAX", step_s_max)
        turns = _Turns()
        trio.lowlevel.add_instrument(turns)
        await client.send(encode_control(Ping(1)) * 20)
        await client.until(lambda events: len(events) == 20)
        trio.lowlevel.remove_instrument(turns)
        assert least <= turns.count <= most


async def test_a_request_without_a_provider_and_with_a_bad_topic_is_answered(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, unharmed(bus), bus.client() as client:
        for number, topic in enumerate(["/a/+", "a", "/..", "/a\0"], 1):
            await client.send(Request(number, 0, topic, {}, b"", False, 1.0))
            error = await client.refused()
            assert (error.code, error.refused) == ("BAD_TOPIC", FrameType.REQUEST)
            assert error.about == number
        await client.send(Provide(4, "/a/*/b"))
        error = await client.refused()
        assert (error.code, error.about) == ("BAD_PATTERN", 4)
        await client.send(Provide(5, "/a"), Provide(5, "/b"))
        error = await client.refused()
        assert (error.code, error.about) == ("REFUSED", 5)


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_and_mutated_frames_harm_only_their_sender(seed: int) -> None:
    machine = SimulatedMachine(seed)

    async def main() -> None:
        chance = random.Random(seed)
        async with machine.bus() as bus, unharmed(bus):
            for _ in range(10):
                await attack(bus, chance)

    machine.run(main)


async def attack(bus: Bus, chance: random.Random) -> None:
    async with bus.stranger(chance.getrandbits(60)) as client:
        if chance.random() < 0.9:
            await client.hello()
        for _ in range(chance.randint(1, 10)):
            frame = bytearray(a_frame(client, chance))
            for _ in range(chance.choice([0, 0, 1, 3])):
                frame[chance.randrange(len(frame))] = chance.getrandbits(8)
            try:
                await client.send(bytes(frame))
                if chance.random() < 0.2:
                    await client.barrier()
            except (Closed, ConnectionError, trio.TooSlowError):
                return


def a_frame(client: RawClient, chance: random.Random) -> bytes:
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randint(1, 200))
        case 1:
            return client.batch(f"/r/{chance.randrange(3)}")
        case 2:
            pattern = chance.choice(["/r/*", "/+/1", "/r/2", "/neighbour/x"])
            queue = chance.choice([None, "q"])
            start = chance.choice(["earliest", "latest", 0, None])
            number = chance.randrange(4)
            return encode_control(Subscribe(number, pattern, start, {}, None, queue, AMPLE))
        case 3:
            array = msgpack.packb([chance.getrandbits(64), chance.random(), "x", {}, b"", True])
            assert isinstance(array, bytes)
            return control_frame(chance.choice(list(FrameType)), array)
        case 4:
            return encode_control(Provide(chance.randrange(3), "/r/1"))
        case _:
            return encode_control(Request(1, 0, "/r/1", {}, b"x", chance.random() < 0.5, 0.1))
