"""Subscribing: where it starts, what it matches, how much it may send, what it says of holes."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from busnode.node.subscription import LIVE_BYTES_MAX, PIECE_BYTES
from busnode.segments.retention import RetentionRules
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.wire.control import (
    Ack,
    Chunk,
    Credit,
    Gap,
    SavePosition,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.world.network import Address
from busnode.world.real_world import real_world

from .raw_client import (
    AMPLE,
    LIVE,
    Bus,
    Delivered,
    Event,
    Journal,
    LoopWatch,
    RawClient,
    SimulatedMachine,
    dialled,
    real_bus,
)

NOBODY = BrokerId(bytes(range(16)))


async def publish(client: RawClient, topic: str, *batches: list[bytes], utc_us: int = 0) -> None:
    """Publish batches and wait until they are acked."""
    frames = [client.batch(topic, payloads, utc_us=utc_us) for payloads in batches]
    await client.send(*frames)
    acked = 0
    while acked < len(frames):
        acked += sum(count for _, count, _ in (await client.expect(Ack)).receipts)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def taken(client: RawClient, journal: Journal, messages: int) -> Journal:
    """Let the journal take events until it has so many messages."""
    while journal.count() < messages:
        journal.take(await client.receive())
    return journal


# Where it starts ----------------------------------------------------------------------------------


async def test_latest_begins_behind_what_is_there(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await publish(publisher, "/a", numbered(1, 5), numbered(6, 10))
        answer = await reader.subscribe("/a", "latest")
        assert answer.position == {bus.broker_id: {"/a": 10}}
        await publish(publisher, "/a", [b"11"])
        assert await reader.messages(1) == [(11, b"11")]


async def test_earliest_begins_with_the_first(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await publish(publisher, "/a", numbered(1, 5), numbered(6, 10))
        answer = await reader.subscribe("/a", "earliest")
        assert answer.position == {bus.broker_id: {"/a": 0}}
        assert await reader.messages(10) == list(enumerate(numbered(1, 10), 1))


async def test_a_moment_begins_with_the_first_that_is_not_older(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        for second in range(1, 11):
            await publish(publisher, "/a", [b"%d" % second], utc_us=second * 1_000_000)
        for moment_us, first in ((0, 1), (4_000_000, 4), (4_000_001, 5), (99_000_000, 11)):
            async with bus.client(2) as reader:
                answer = await reader.subscribe("/a", moment_us)
                assert answer.position == {bus.broker_id: {"/a": first - 1}}
                if first <= 10:
                    assert (await reader.messages(11 - first))[0] == (first, b"%d" % first)


async def test_a_position_in_the_middle_of_a_batch_goes_on_behind_it(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        await publish(publisher, "/a", numbered(1, 4), numbered(5, 8), numbered(9, 12))
        for after_no in range(13):
            async with bus.client(2) as reader:
                position = {bus.broker_id: {"/a": after_no}}
                assert (await reader.subscribe("/a", None, position)).position == position
                journal = Journal({LogId(bus.broker_id, Topic("/a")): after_no + 1})
                await taken(reader, journal, 12 - after_no)
                found = journal.payloads.get(LogId(bus.broker_id, Topic("/a")), [])
                assert found == numbered(after_no + 1, 12)
                assert not journal.gaps


async def test_a_log_that_a_position_does_not_name_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await publish(publisher, "/p/a", numbered(1, 3))
        await publish(publisher, "/p/b", numbered(1, 3))
        answer = await reader.subscribe("/p/+", None, {bus.broker_id: {"/p/a": 2}})
        assert answer.position == {bus.broker_id: {"/p/a": 2, "/p/b": 0}}
        journal = Journal({LogId(bus.broker_id, Topic("/p/a")): 3})
        await taken(reader, journal, 4)


async def test_logs_of_earlier_incarnations_are_read_after_a_restart(tmp_path: Path) -> None:
    brokers: list[BrokerId] = []
    for start in range(3):
        async with real_bus(tmp_path) as bus, bus.client(start) as publisher:
            brokers.append(bus.broker_id)
            await publish(publisher, "/a", [b"%d" % start] * 3)
    async with real_bus(tmp_path) as bus, bus.client(9) as reader:
        await reader.subscribe("/a", "earliest")
        journal = await taken(reader, Journal(), 9)
        found = {log_id.broker_id: payloads for log_id, payloads in journal.payloads.items()}
        assert found == {b: [b"%d" % start] * 3 for start, b in enumerate(brokers)}
        latest = await reader.subscribe("/a", "latest", number=2)
        assert latest.position == {broker_id: {"/a": 3} for broker_id in brokers}


async def test_a_log_that_appears_while_subscribed_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        assert (await reader.subscribe("/p/*", "latest")).position == {}
        for topic in ("/p/a", "/p/b/c", "/p/d"):
            await publish(publisher, topic, numbered(1, 2), numbered(3, 4))
        journal = await taken(reader, Journal(), 12)
        assert {log_id.topic for log_id in journal.payloads} == {"/p/a", "/p/b/c", "/p/d"}


# What it matches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["persistent", "live"])
async def test_patterns_match_levels(tmp_path: Path, flags: str) -> None:
    wanted = {
        1: ("/plant/north/temp", ["/plant/north/temp"]),
        2: ("/plant/+/temp", ["/plant/north/temp", "/plant/south/temp"]),
        3: (
            "/plant/*",
            ["/plant/north/temp", "/plant/south/temp", "/plant/x", "/plant/north/temp/raw"],
        ),
        4: ("/other", []),
    }
    topics = ["/plant/north/temp", "/plant/south/temp", "/plant/x", "/plant/north/temp/raw", "/z"]
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        for number, (pattern, _) in wanted.items():
            await reader.subscribe(pattern, number=number)
        for topic in topics:
            if flags == "persistent":
                await publish(publisher, topic, [topic.encode()])
            else:
                await publisher.publish(topic, [topic.encode()], LIVE)
        got: dict[int, list[str]] = {number: [] for number in wanted}
        while sum(map(len, got.values())) < sum(len(found) for _, found in wanted.values()):
            event = await reader.receive()
            if isinstance(event, Delivered):
                assert event.payloads == [event.topic.encode()]
                got[event.chunk.subscription].append(event.topic)
        assert got == {number: found for number, (_, found) in wanted.items()}
        await publisher.barrier()
        assert [e for e in await reader.barrier() if not isinstance(e, Chunk)] == []


async def test_a_wildcard_never_shows_topics_of_the_system(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as client:
        await client.subscribe("/a", number=1, durable="me")
        await client.send(SavePosition(1, {bus.broker_id: {"/a": 0}}))
        await bus.committed()
        assert (await client.subscribe("/*", "earliest", number=2)).position == {}
        named = await client.subscribe("/$sys/*", "earliest", number=3)
        assert list(named.position[bus.broker_id]) == ["/$sys/durable/me"]


async def test_a_bad_pattern_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        for number, pattern in enumerate(["/a/*/b", "/a+", "a", "/..", "", "/a\u2215*"], 1):
            await client.send(Subscribe(number, pattern, "latest", {}, None, None, AMPLE))
            error = await client.refused()
            assert (error.code, error.about) == ("BAD_PATTERN", number)
        await client.send(Subscribe(9, "/a", "latest", {}, "no/slash", None, AMPLE))
        error = await client.refused()
        assert (error.code, error.about) == ("REFUSED", 9)
        assert len(bus.node.router) == 0
        await client.subscribe("/a", number=1)


async def test_a_number_in_use_is_refused_and_its_subscription_stays_whole(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus:
        async with bus.client(1) as client:
            await client.subscribe("/a", number=5)
            await client.send(Subscribe(5, "/b", "latest", {}, None, None, AMPLE))
            error = await client.refused()
            assert (error.code, error.about) == ("REFUSED", 5)
            await client.publish("/a", [b"still"], LIVE)
            assert await client.messages(1, number=5) == [(0, b"still")]
            await client.send(Unsubscribe(5))
            await client.publish("/a", [b"no more"], LIVE)
            assert await client.barrier() == []
            await client.subscribe("/a", number=5)
        await bus.settled(lambda: not bus.node.sessions)
        assert len(bus.node.router) == 0, "it is left in the router after its client has gone"


# Ending -------------------------------------------------------------------------------------------


async def test_unsubscribing_in_the_middle_ends_between_two_batches(tmp_path: Path) -> None:
    """What is on its way still comes whole; then other subscriptions go on on the same stream."""
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        for _ in range(24):
            await publish(publisher, "/a", [bytes(1 << 20)])
        await publish(publisher, "/b", numbered(1, 3))
        await reader.subscribe("/a", "earliest", number=1)
        await reader.expect(Chunk)  # it is under way, and more than the sockets take
        await reader.send(Unsubscribe(1), Unsubscribe(1), Unsubscribe(77))
        await reader.subscribe("/b", "earliest", number=2)
        events = await reader.until(lambda e: sum(len(numbers_of(e, "/b", i)) for i in (2,)) == 3)
        assert numbers_of(events, "/b", 2) == [1, 2, 3]
        big = numbers_of(events, "/a", 1)
        assert big == list(range(1, len(big) + 1))
        assert len(big) < 24
        assert await reader.barrier() == []


def numbers_of(events: list[Event], topic: str, subscription: int) -> list[int]:
    return [
        number
        for event in events
        if isinstance(event, Delivered)
        and (event.topic, event.chunk.subscription) == (topic, subscription)
        for number in event.numbers
    ]


async def test_clients_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        await publish(publisher, "/a", numbered(1, 10))
        for _ in range(20):
            async with bus.client(2) as reader:
                await reader.send(
                    Subscribe(1, "/a", "earliest", {}, None, None, AMPLE),
                    Subscribe(2, "/+", "earliest", {}, None, "workers", AMPLE),
                    Subscribe(3, "/*", "latest", {}, None, None, 0),
                )
        await bus.settled(lambda: len(bus.node.sessions) == 1)
        assert len(bus.node.router) == 0
        assert bus.node.subscriptions.groups == []


# Credit -------------------------------------------------------------------------------------------


async def test_never_more_is_sent_than_credit_and_one_piece(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        for _ in range(40):
            await publish(publisher, "/a", *[[bytes(1000)] * 8] * 8)  # 64 KB each time
        await reader.subscribe("/a", "earliest", credit_bytes=0)
        assert await reader.barrier() == []
        journal = Journal()
        granted = received = 0
        chance = random.Random(5)
        while journal.count() < 40 * 64:
            more = chance.choice([1, 1000, 100_000, 300_000])
            granted += more
            await reader.credit(more)
            for event in await reader.barrier():
                journal.take(event)
                if isinstance(event, Chunk):
                    received += event.length
            assert received <= granted + PIECE_BYTES + 70_000
            if received > granted:  # it owes us: nothing comes before that is made good
                granted = max(granted, received)
                await reader.credit(granted - received)
        assert not journal.gaps


async def test_live_messages_wait_for_credit_too(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", credit_bytes=0)
        await client.publish("/a", [b"1"], LIVE)
        assert await client.barrier() == []
        await client.credit(1)
        assert await client.messages(1) == [(0, b"1")]
        await client.publish("/a", [b"2"], LIVE)
        assert await client.barrier() == [], "it went into debt with the one before"
        await client.credit(LIVE_BYTES_MAX)
        assert await client.messages(1) == [(0, b"2")]


async def test_one_subscription_without_credit_does_not_hold_up_another(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", credit_bytes=0, number=1)
        await client.subscribe("/a", number=2)
        await publish(client, "/a", numbered(1, 3))
        assert len(await client.messages(3, number=2)) == 3
        await client.send(Credit(1, AMPLE), Credit(99, 5))
        assert len(await client.messages(3, number=1)) == 3


# Holes --------------------------------------------------------------------------------------------


async def test_an_expired_range_is_a_gap(tmp_path: Path) -> None:
    async with real_bus(tmp_path, segment_bytes_max=20_000) as bus, bus.client(1) as publisher:
        for at in range(1, 101):
            await publish(publisher, "/a", [b"%04d" % at + bytes(1000)])
        log_id = LogId(bus.broker_id, Topic("/a"))
        bus.node.store.expire(RetentionRules(1e9, None, 50_000))
        log = bus.node.store.get(log_id)
        assert log is not None
        assert 1 < log.first_no < 100
        async with bus.client(2) as reader:
            await reader.subscribe("/a", None, {bus.broker_id: {"/a": 3}})
            journal = await taken(reader, Journal({log_id: 4}), 101 - log.first_no)
            (gap,) = journal.gaps
            assert (gap.first_no, gap.last_no) == (4, log.first_no - 1)
            assert gap.reason.startswith("expired")
        async with bus.client(2) as reader:  # a log that the position does not name
            await reader.subscribe("/a", None, {})
            journal = await taken(reader, Journal(), 101 - log.first_no)
            assert [(gap.first_no, gap.last_no) for gap in journal.gaps] == [(1, log.first_no - 1)]
        async with bus.client(2) as reader:
            answer = await reader.subscribe("/a", "earliest")
            assert answer.position == {bus.broker_id: {"/a": log.first_no - 1}}
            journal = await taken(reader, Journal({log_id: log.first_no}), 101 - log.first_no)
            assert not journal.gaps


async def test_unknown_cursors_are_gaps_without_an_end(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await publish(client, "/a", numbered(1, 3))
        position = {
            NOBODY: {"/a": 7, "/not/matched": 9},
            bus.broker_id: {"/a": 3, "/never": 5},
        }
        answer = await client.subscribe("/+", None, position)
        assert answer.position == position
        gaps = [await client.expect(Gap) for _ in range(2)]
        assert {(gap.broker_id, gap.topic, gap.first_no, gap.last_no) for gap in gaps} == {
            (NOBODY, "/a", 8, 0),
            (bus.broker_id, "/never", 6, 0),
        }
        assert all(gap.reason.startswith("unknown") for gap in gaps)
        await publish(client, "/a", [b"4"])
        assert await client.messages(1) == [(4, b"4")]


@pytest.mark.parametrize("cursor", [11, 2**63, 2**64 - 1])
async def test_a_cursor_behind_the_end_of_a_log_is_a_gap(tmp_path: Path, cursor: int) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await publish(client, "/a", numbered(1, 3))
        await client.subscribe("/a", None, {bus.broker_id: {"/a": cursor}})
        gap = await client.expect(Gap)
        assert (gap.topic, gap.last_no) == ("/a", 0)
        assert gap.first_no == min(cursor + 1, 2**64 - 1)
        assert await client.barrier() == []


async def test_forty_thousand_unknown_cursors_do_not_stop_the_node(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        position = {NOBODY: {f"/lost/{number}": 1 for number in range(40_000)}}
        with LoopWatch.over("40,000 unknown cursors"):
            await client.send(Subscribe(1, "/lost/*", None, position, None, None, AMPLE))
            await client.expect(Subscribed)
            await client.until(lambda e: len(e) == 40_000)


def test_a_log_that_cannot_be_read_is_no_reason_to_end_the_session() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await publish(client, "/a", numbered(1, 3), utc_us=1_000_000)
            machine.disk.arm(DiskFault.READ_EIO, lambda path: path.endswith(".seg"))
            await client.send(Subscribe(1, "/a", 500_000, {}, None, None, AMPLE))
            error = await client.refused()
            assert (error.code, error.about) == ("UNAVAILABLE", 1)
            assert len(bus.node.router) == 0
            await client.subscribe("/a", 500_000, number=1)
            assert len(await client.messages(3)) == 3

    machine.run(main)


# Many logs ----------------------------------------------------------------------------------------


async def test_logs_that_grow_while_a_subscription_is_made_are_read_once(tmp_path: Path) -> None:
    """It lets others run while it takes up many logs: some of these grow, some are made, of new
    topics and of topics that had a log of the incarnation before."""
    topics = [f"/p/{number}" for number in range(800)]
    for start in range(2):
        async with real_bus(tmp_path) as bus, bus.client(1 + start) as publisher:
            some = topics if not start else topics[::2]
            await publisher.send(*(publisher.batch(topic, [b"old"]) for topic in some))
            await publisher.acked(len(some))
            if not start:
                continue
            async with bus.client(3) as reader:
                await reader.send(Subscribe(1, "/p/*", "earliest", {}, None, None, AMPLE))
                more = [*reversed(topics), *(f"/p/new/{number}" for number in range(100))]
                await publisher.send(*(publisher.batch(topic, [b"new"]) for topic in more))
                journal = await taken(reader, Journal(), 800 + 400 + 900)
                assert len(journal.payloads) == 800 + 800 + 100
                assert [e for e in await bus.all_sent(reader) if isinstance(e, Delivered)] == []


async def test_memory_storage_sends_large_ranges_too(tmp_path: Path) -> None:
    async with real_bus(tmp_path, storage="memory") as bus, bus.client() as client:
        await client.subscribe("/a", "latest")
        await publish(client, "/a", [bytes(1_000_000)], [bytes(500_000)] * 3)
        assert len(await client.messages(4)) == 4


# The hand-over ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "position"])
async def test_a_subscriber_that_joins_a_running_publish_misses_and_repeats_nothing(
    tmp_path: Path, start: str
) -> None:
    """200 times at a random moment, on a real disk and real sockets."""
    seed = 20_260
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        for round_number in range(50):
            await join_while_publishing(bus, publisher, f"/a/{round_number}", start, chance)


async def join_while_publishing(
    bus: Bus, publisher: RawClient, topic: str, start: str, chance: random.Random
) -> None:
    """Four join somewhere in the middle of thirty batches."""
    log_id = LogId(bus.broker_id, Topic(topic))
    published: list[bytes] = []

    async def publish_some(batches: int) -> None:
        for _ in range(batches):
            count = chance.randint(1, 5)
            payloads = numbered(len(published) + 1, len(published) + count)
            published.extend(payloads)
            await publisher.publish(topic, payloads)
            for _ in range(chance.randint(0, 4)):
                await trio.lowlevel.checkpoint()

    async def join(after_no: int, wait: int) -> None:
        async with bus.client(chance.getrandbits(63)) as reader:
            while len(published) < wait:
                await trio.lowlevel.checkpoint()
            if start == "earliest":
                await reader.subscribe(topic, "earliest")
            else:
                await reader.subscribe(topic, None, {bus.broker_id: {topic: after_no}})
            journal = Journal({log_id: after_no + 1})
            while journal.payloads.get(log_id, [b""])[-1] != b"end":
                journal.take(await reader.receive())
            assert journal.payloads[log_id] == published[after_no:]
            assert not journal.gaps

    await publish_some(chance.randint(0, 5))
    await publisher.barrier()
    await bus.committed()  # only what is committed can be in somebody's position
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            after_no = 0 if start == "earliest" else chance.randint(0, len(published))
            nursery.start_soon(join, after_no, len(published) + chance.randint(0, 60))
        await publish_some(30)
        published.append(b"end")
        await publisher.publish(topic, [b"end"])


@pytest.mark.parametrize("seed", range(6))
def test_joining_in_virtual_time_with_a_slow_disk_misses_and_repeats_nothing(seed: int) -> None:
    machine = SimulatedMachine(seed)
    machine.disk.odds = DiskFaults(sync_slow=0.5, sync_slow_s_max=0.01)

    async def main() -> None:
        chance = random.Random(seed)
        async with machine.bus(segment_bytes_max=2000) as bus, bus.client(1) as publisher:
            for round_number in range(4):
                topic = f"/a/{round_number}"
                await join_while_publishing(bus, publisher, topic, "position", chance)

    machine.run(main)


# Memory -------------------------------------------------------------------------------------------

NODE = """
import sys, trio
from busnode.node.config import NodeConfig
from busnode.node.node import start_node
from busnode.world.real_world import real_world

async def main():
    config = NodeConfig("test", data=sys.argv[1], port=0, peer_port=None, http_port=None)
    async with start_node(real_world(), config) as node:
        print(node.address.port, flush=True)
        with trio.open_signal_receiver(2) as signals:
            async for _ in signals:
                return

trio.run(main)
"""


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.scenario
async def test_a_stopped_reader_far_behind_costs_a_node_next_to_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NODE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = Address("127.0.0.1", int(process.stdout.readline()))
            network = real_world().network
            async with (
                dialled(network, address, 1) as publisher,
                dialled(network, address, 2) as stuck,
            ):
                await publisher.hello()
                await stuck.hello()
                await publish_mib(publisher, 32)
                await stuck.subscribe("/a")  # and never reads again
                before = resident_bytes(process.pid)
                await publish_mib(publisher, 256)
                more = resident_bytes(process.pid) - before
                print(f"256 MiB behind: {before / 1e6:.1f} MB, {more / 1e6:+.1f} MB")
                assert more <= 16e6
        finally:
            process.send_signal(2)


async def publish_mib(publisher: RawClient, count: int) -> None:
    for _ in range(count):
        await publish(publisher, "/a", *[[bytes(1024)] * 64] * 16)
