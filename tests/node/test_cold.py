"""Logs that lie on the disk alone, and disks that cannot read: nobody else waits, nothing is
missing in silence."""

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from busnode.client import Gap as LostRange
from busnode.client import connect
from busnode.node.outgoing import FETCHES_MAX
from busnode.node.subscription import PIECE_BYTES
from busnode.segments.segment import RECORDS_AT
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.testing.sim.platter import Platter
from busnode.wire.control import (
    Ack,
    Gap,
    Hello,
    Ping,
    Pong,
    Subscribe,
    Unsubscribe,
    encode_control,
)
from busnode.wire.ids import LogId, Topic
from busnode.wire.limits import PROTOCOL_VERSION

from .raw_client import (
    AMPLE,
    LIVE,
    Bus,
    Closed,
    Delivered,
    Journal,
    RawClient,
    SimulatedMachine,
    real_bus,
)

SLOW = DiskFaults(read_cold=1.0, read_cold_s_max=15.0)
"""A disk that takes seconds, so that whoever waits for it is seen."""


def is_segment(path: str) -> bool:
    return path.endswith(".seg")


async def publish(client: RawClient, topic: str, *batches: list[bytes]) -> None:
    for payloads in batches:
        await client.publish(topic, payloads)
        await client.expect(Ack)


async def taken(client: RawClient, messages: int, journal: Journal | None = None) -> Journal:
    """So many messages that came, or were said to be missing."""
    journal = journal or Journal()
    while journal.count() + sum(gap.last_no - gap.first_no + 1 for gap in journal.gaps) < messages:
        journal.take(await client.receive())
    return journal


def log_of(bus: Bus, topic: str = "/a") -> LogId:
    return LogId(bus.broker_id, Topic(topic))


def segment_paths(bus: Bus) -> list[str]:
    log = bus.node.store.get(log_of(bus))
    segments = getattr(log, "segments", [])
    return [segment.path for segment in segments]


# What cannot be read ------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [10, 100_000], ids=["small", "large"])
def test_what_cannot_be_read_is_a_gap_and_what_is_behind_it_follows(size_bytes: int) -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus(segment_bytes_max=4 * size_bytes) as bus, bus.client(1) as client:
            await publish(client, "/a", *[[bytes(size_bytes)]] * 20)
            await publish(client, "/b", [b"other"])
            bad = segment_paths(bus)[1]
            machine.disk.arm(DiskFault.READ_COLD, lambda path: path == bad, count=1000)
            machine.disk.arm(DiskFault.READ_EIO, lambda path: path == bad, count=1000)
            await client.subscribe("/a", "earliest", number=1)
            journal = await taken(client, 20)
            assert {gap.subscription for gap in journal.gaps} == {1}
            assert 0 < journal.count() < 20
            for gap in journal.gaps:
                assert gap.reason.startswith(f"{bad.rpartition('/')[2]} at byte ")
                assert ": cannot be read: " in gap.reason
                assert "Input/output error" in gap.reason
            await client.subscribe("/b", "earliest", number=2)
            assert await client.messages(1, number=2) == [(1, b"other")]
            await publish(client, "/a", [b"new"])
            assert await client.messages(1, number=1) == [(21, b"new")]

    machine.run(main)


@pytest.mark.parametrize("seed", range(5))
def test_on_a_bad_disk_every_number_comes_or_is_said_to_be_missing(seed: int) -> None:
    machine = SimulatedMachine(seed)

    async def main() -> None:
        chance = random.Random(seed)
        async with machine.bus(segment_bytes_max=300_000) as bus, bus.client(1) as publisher:
            for _ in range(60):
                size_bytes = chance.choice([10, 1000, 100_000])
                await publish(publisher, "/a", [bytes(size_bytes)] * chance.randint(1, 3))
            log = bus.node.store.get(log_of(bus))
            assert log is not None
            machine.disk.odds = DiskFaults(read_cold=0.5, read_eio=0.1, read_cold_s_max=0.1)
            after_no = 0
            while after_no < log.committed_no:
                async with bus.client(2) as reader:
                    await reader.subscribe("/a", None, {bus.broker_id: {"/a": after_no}})
                    journal = Journal({log_of(bus): after_no + 1})
                    with suppress(Closed, ConnectionError):  # in the middle of a range
                        await taken(reader, log.committed_no - after_no, journal)
                after_no = journal.next_no[log_of(bus)] - 1
            assert machine.disk.faults[DiskFault.READ_EIO] > 3, "it was bad"

    machine.run(main)


@pytest.mark.parametrize("seed", range(5))
def test_of_a_bad_disk_just_what_is_damaged_is_said_to_be_missing(seed: int) -> None:
    """It hesitates, too: what it cannot read for a moment is no gap, what it has lost is one."""
    machine = SimulatedMachine(seed)

    async def main() -> None:
        chance = random.Random(seed)
        async with machine.bus(segment_bytes_max=300_000) as bus, bus.client(1) as publisher:
            for _ in range(60):
                size_bytes = chance.choice([10, 1000, 100_000])
                await publish(publisher, "/a", [bytes(size_bytes)] * chance.randint(1, 3))
            platter = Platter(machine.disk)
            records = [
                (path, record)
                for broker_id, path, file in platter.segments()
                for record in platter.records(file, broker_id)
                if record.topic == "/a"
            ]
            damaged = chance.sample(records, 8)
            for path, record in damaged:
                offset = record.offset + chance.randrange(record.length)
                machine.disk.flip_bit(path, offset, chance.randrange(8))
            lost = {no for _, record in damaged for no in record.numbers}
            everything = {no for _, record in records for no in record.numbers}
            machine.disk.odds = DiskFaults(read_cold=0.5, read_cold_s_max=0.1)
            machine.disk.arm(DiskFault.READ_EIO, is_segment, skip=chance.randrange(10))
            got: list[int | None] = []
            told: list[LostRange] = []
            missing: list[int] = []
            async with (
                connect(f"bus://{bus.node.address}", world=machine.of_client("reader")) as reader,
                reader.subscribe("/a", start="earliest", on_gap=told.append) as messages,
            ):
                while len(got) + len(missing) < len(everything):
                    with trio.move_on_after(1.0):
                        got.append((await anext(messages)).msg_no)
                    missing = [no for gap in told for no in range(gap.first, gap.last + 1)]
            assert sorted(missing) == sorted(lost)
            assert sorted(no or 0 for no in got) == sorted(everything - lost)
            where = {f"{path.rpartition('/')[2]} at byte {r.offset}" for path, r in damaged}
            assert {gap.reason.partition(":")[0] for gap in told} <= where
            assert machine.disk.faults[DiskFault.READ_EIO] == 1, "it hesitated"

    machine.run(main)


async def test_a_file_that_was_cut_is_a_gap(tmp_path: Path) -> None:
    async with real_bus(tmp_path, segment_bytes_max=400_000) as bus, bus.client(1) as client:
        await publish(client, "/a", *[[bytes(20_000)]] * 60)
        first, second, *_ = segment_paths(bus)
        os.truncate(first, 300_000)
        await client.subscribe("/a", "earliest")
        journal = await taken(client, 60)
        (gap,) = journal.gaps
        assert gap.first_no > 10, "what is before the cut is there"
        record_bytes = (Path(second).stat().st_size - RECORDS_AT) // 19
        cut_at = RECORDS_AT + record_bytes * (gap.first_no - 1)
        assert cut_at <= 300_000 < cut_at + record_bytes, "what is before the cut is there"
        name = first.rpartition("/")[2]
        assert gap.reason.startswith(f"{name} at byte {cut_at}: "), "the record that it was cut in"
        assert gap.last_no == int(second[-24:-4]) - 1
        assert "of which" in gap.reason, "it was looked at before it was told"
        assert (await client.barrier()) == []


async def test_a_range_that_is_cut_while_it_is_sent_is_a_gap_for_who_comes_again(
    tmp_path: Path,
) -> None:
    """What was announced cannot be taken back: that connection ends, and no other."""
    async with real_bus(tmp_path, segment_bytes_max=24_000_000) as bus, bus.client(1) as other:
        for _ in range(30):
            await publish(other, "/a", [bytes(1_000_000)])
        path = segment_paths(bus)[0]
        async with bus.client(2) as reader:
            await reader.subscribe("/a", "earliest")
            outgoing = bus.session(reader).outgoing
            await bus.settled(lambda: outgoing.blocked and outgoing._range is not None)
            sending, sent = outgoing._range, outgoing._range_sent
            assert sending is not None
            assert sending.file.path == path
            # How much fits into a socket is the machine's affair: in the middle of what is left.
            os.truncate(path, sending.offset + (sent + sending.length) // 2)
            journal = Journal()
            for event in await reader.ended():
                journal.take(event)
            assert not journal.gaps
        seen = journal.count()
        async with bus.client(2) as reader:
            await reader.subscribe("/a", None, {bus.broker_id: {"/a": seen}})
            event = await reader.receive()
            assert isinstance(event, Gap), "it must not be promised again"
            assert event.first_no == seen + 1
            journal.take(event)
            await taken(reader, 30, journal)
        assert journal.next_no[log_of(bus)] == 31
        assert await other.barrier() == []


def test_a_range_that_cannot_be_sent_is_not_promised_again() -> None:
    """The disk says that it is there and cannot read it: for ever, or until somebody looks."""
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus(segment_bytes_max=500_000) as bus, bus.client(1) as other:
            await publish(other, "/a", *[[bytes(100_000)]] * 12)
            bad = segment_paths(bus)[1]
            last_no = int(segment_paths(bus)[2][-24:-4]) - 1
            async with bus.client(2) as reader:
                before = Journal()
                await reader.subscribe("/a", "earliest", credit_bytes=1)
                await taken(reader, 1, before)
                machine.disk.arm(DiskFault.READ_EIO, lambda path: path == bad, count=1000, skip=1)
                await reader.credit(AMPLE)
                for event in await reader.ended():
                    before.take(event)
                assert not before.gaps
            seen = before.next_no[log_of(bus)] - 1
            async with bus.client(2) as reader:
                await reader.subscribe("/a", None, {bus.broker_id: {"/a": seen}})
                journal = await taken(reader, 12 - seen, Journal({log_of(bus): seen + 1}))
                assert journal.gaps[0].first_no == seen + 1
                assert journal.gaps[-1].last_no == last_no
            assert await other.barrier() == []

    machine.run(main)


# Nobody waits for a disk --------------------------------------------------------------------------


def test_nobody_waits_for_a_disk_but_who_wants_what_is_on_it() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as other, bus.client(2) as reader:
            await publish(other, "/old", [b"old"])
            machine.disk.odds = SLOW
            await reader.subscribe("/old", "earliest", number=1)
            began = trio.current_time()
            machine.disk.odds = DiskFaults()  # all else is in memory
            await reader.subscribe("/new", number=2)
            await publish(other, "/new", [b"new"])
            assert await reader.messages(1, number=2) == [(1, b"new")]
            await other.publish("/new", [b"live"], LIVE)
            assert await reader.messages(1, number=2) == [(0, b"live")]
            assert await reader.barrier() == []
            subscription = bus.node.subscriptions.of(bus.session(reader))[1]
            assert subscription.waiting
            assert subscription.behind == 1
            assert trio.current_time() < began + 1
            assert await reader.messages(1, number=1) == [(1, b"old")]
            assert trio.current_time() > began + 1
            assert not subscription.waiting

    machine.run(main)


def test_a_log_that_is_cold_does_not_hold_up_another_of_the_same_subscription() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as client:
            await publish(client, "/p/old", [b"old"])
            machine.disk.arm(DiskFault.READ_COLD)
            machine.disk.odds = DiskFaults(read_cold_s_max=SLOW.read_cold_s_max)
            began = trio.current_time()
            await client.subscribe("/p/*", "earliest")
            await publish(client, "/p/new", [b"new"])
            assert await client.messages(1) == [(1, b"new")]
            assert trio.current_time() < began + 1
            assert await client.messages(1) == [(1, b"old")]
            assert trio.current_time() > began + 1

    machine.run(main)


def test_what_is_asked_for_with_the_first_bytes_is_fetched_too() -> None:
    """Before the session's own tasks have had a turn."""
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as client:
            await publish(client, "/a", [b"old"])
            machine.disk.odds = DiskFaults(read_cold=1.0, read_cold_s_max=0.1)
            async with bus.stranger(2) as reader:
                hello = encode_control(Hello(PROTOCOL_VERSION, "raw", 2))
                await reader.send(hello, Subscribe(1, "/a", "earliest", {}, None, None, AMPLE))
                await reader.until(lambda events: any(isinstance(e, Delivered) for e in events))

    machine.run(main)


def test_who_leaves_while_something_is_fetched_gets_nothing_and_harms_nobody() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as client:
            await publish(client, "/a", *[[bytes(PIECE_BYTES)]] * 5)
            machine.disk.odds = SLOW
            async with bus.client(2) as gone:
                await gone.subscribe("/a", "earliest")
            await client.subscribe("/a", "earliest")
            await client.send(Unsubscribe(1))
            await publish(client, "/a", [b"more"])
            await trio.sleep(30)
            assert [e for e in await client.barrier() if not isinstance(e, Ping)] == []
            assert len(bus.node.sessions) == 1

    machine.run(main)


def test_many_cold_logs_come_a_few_at_a_time() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        topics = [f"/p/{number}" for number in range(200)]
        async with machine.bus() as bus, bus.client(1) as client:
            await client.send(*(client.batch(topic, [b"1", b"2"]) for topic in topics))
            await client.expect(Ack)
            await bus.committed()
            machine.disk.odds = DiskFaults(read_cold=0.9, read_cold_s_max=0.01)
            await client.subscribe("/p/*", None, {bus.broker_id: dict.fromkeys(topics, 1)})
            journal = Journal({log_of(bus, topic): 2 for topic in topics})
            out = bus.session(client).outgoing
            while journal.count() < len(topics):
                journal.take(await client.receive())
                assert len(out._cold) + out._fetching <= 2 * FETCHES_MAX
            assert all(payloads == [b"2"] for payloads in journal.payloads.values())
            await client.send(Ping(5))
            await client.expect(Pong)

    machine.run(main)


async def test_a_cold_log_is_replayed_whole(tmp_path: Path) -> None:
    """On a real disk, from which the kernel was asked to forget what it has read and written."""
    count = 40
    async with real_bus(tmp_path, segment_bytes_max=1_000_000) as bus, bus.client(1) as publisher:
        await publish(publisher, "/a", *[[bytes(1000)] * 100] * count)
        for path in segment_paths(bus):
            with Path(path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        async with bus.client(2) as reader:
            await reader.subscribe("/a", "earliest")
            journal = await taken(reader, count * 100)
            assert not journal.gaps
