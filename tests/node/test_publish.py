"""Publishing: numbers without holes, acks after the commit, repeats stored once, refusals that
name the batch."""

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
import trio

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.wire.batches import decode_columns
from busnode.wire.control import Ack, Dropped, Error
from busnode.wire.frames import Flags, FrameType
from busnode.wire.ids import LogId, Topic

from .raw_client import (
    AMPLE,
    LIVE,
    PERSISTENT,
    Bus,
    Delivered,
    Event,
    Journal,
    RawClient,
    SimulatedMachine,
    real_bus,
)


def stored(bus: Bus, topic: str) -> list[bytes]:
    """All payloads in this incarnation's log of a topic."""
    log = bus.node.store.get(LogId(bus.broker_id, Topic(topic)))
    assert log is not None
    found: list[bytes] = []
    for batch in read_batches(log):
        assert not isinstance(batch, Hole)
        header, body = batch
        found += decode_columns(body, header.count).payloads
    return found


# Numbers and acks ---------------------------------------------------------------------------------


async def test_numbers_of_several_publishers_have_no_hole_and_no_repeat(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus:
        numbers: list[int] = []

        async def publish(producer_id: int) -> None:
            async with bus.client(producer_id) as client:
                for _ in range(20):
                    await client.send(*(client.batch("/a") for _ in range(5)))
                numbers.extend((await client.acked(100)).values())

        async with trio.open_nursery() as nursery:
            for producer_id in range(1, 6):
                nursery.start_soon(publish, producer_id)
        assert sorted(numbers) == list(range(1, 501))


async def test_receipts_name_the_right_numbers_for_interleaved_topics(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        topics = random.Random(7).choices(["/a", "/b", "/c"], k=300)
        await client.send(*(client.batch(t, [b"%d" % n]) for n, t in enumerate(topics, 1)))
        acked = await client.acked(300)
        for topic in ("/a", "/b", "/c"):
            sent = [seq for seq, t in enumerate(topics, 1) if t == topic]
            assert [acked[seq] for seq in sent] == list(range(1, len(sent) + 1))
            assert stored(bus, topic) == [b"%d" % seq for seq in sent]


async def test_a_receipt_of_a_run_names_its_first_number(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(*(client.batch("/a", [b"x"] * count) for count in (3, 1, 4)))
        receipts: list[tuple[int, int, int]] = []
        while sum(batches for _, batches, _ in receipts) < 3:
            ack = await client.expect(Ack)
            assert ack.broker_id == bus.broker_id
            receipts += ack.receipts
        starts = {1: 1, 2: 4, 3: 5}
        assert all(starts[first_seq] == first_no for first_seq, _, first_no in receipts)


def test_nothing_is_acked_or_delivered_before_the_sync_has_ended() -> None:
    machine = SimulatedMachine(11)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as publisher, bus.client(2) as reader:
            await reader.subscribe("/a")
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=5.0)
            began = trio.current_time()
            await publisher.publish("/a")
            await bus.settled(lambda: bus.node.committer.committing)
            log = bus.node.store.get(LogId(bus.broker_id, Topic("/a")))
            assert log is not None
            assert log.next_no == 2
            for client in (publisher, reader):  # it was appended; nobody hears of it
                assert await client.barrier() == []
            assert log.committed_no == 0
            assert await publisher.acked(1) == {1: 1}
            assert await reader.messages(1) == [(1, b"x")]
            assert trio.current_time() - began > 0.1
            assert machine.disk.faults[DiskFault.SYNC_SLOW] == 1

    machine.run(main)


async def test_a_publisher_is_acked_before_others_hear_of_its_message(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a")
        for _ in range(20):
            await client.publish("/a")
            events = await client.until(lambda e: bool(e) and isinstance(e[-1], Delivered))
            assert isinstance(events[0], Ack)


async def test_a_publisher_that_goes_before_its_ack_leaves_its_messages(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(2) as reader:
        await reader.subscribe("/a")
        async with bus.client(1) as publisher:
            await publisher.send(*(publisher.batch("/a") for _ in range(50)))
            await bus.settled(lambda: bus.node.publishing.messages_persistent == 50)
        assert [number for number, _ in await reader.messages(50)] == list(range(1, 51))
        await bus.settled(lambda: len(bus.node.sessions) == 1)
        assert not bus.node.receipts._waiting


# Repeats ------------------------------------------------------------------------------------------


async def test_repeats_are_acked_with_their_first_numbers_and_stored_once(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        frames = [client.batch("/a", [b"%d" % n]) for n in range(1, 11)]
        await client.send(*frames)
        first = await client.acked(10)
        await client.send(*frames)
        assert await client.acked(10) == first
        assert stored(bus, "/a") == [b"%d" % n for n in range(1, 11)]
        assert bus.node.publishing.repeats == 10


async def test_repeats_after_a_reconnect_are_known(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus:
        async with bus.client(77) as before:
            frames = [before.batch("/a", [b"%d" % n]) for n in range(1, 11)]
            await before.send(*frames)
            first = await before.acked(10)
        async with bus.client(77) as after:
            await after.send(*frames)
            assert await after.acked(10) == first
        assert len(stored(bus, "/a")) == 10


async def test_repeats_after_a_restart_are_known(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(77) as before:
        frames = [before.batch("/a", [b"%d" % n]) for n in range(1, 11)]
        await before.send(*frames)
        first = await before.acked(10)
        broker_id = bus.broker_id
    async with real_bus(tmp_path) as bus, bus.client(77) as after:
        await after.send(*frames, after.batch("/a", [b"new"], seq=11))
        acks = [await after.expect(Ack) for _ in range(2)]
        by_broker = {ack.broker_id: ack.receipts for ack in acks}
        assert {seq: no for seq, _, no in by_broker[broker_id]} == first
        assert by_broker[bus.broker_id] == [(11, 1, 1)]
        assert stored(bus, "/a") == [b"new"]


async def test_repeats_between_new_ones_are_told_apart(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(*(client.batch("/a", [b"%d" % n], seq=n) for n in (1, 2, 4, 7)))
        first = await client.acked(4)
        await client.send(*(client.batch("/a", [b"%d" % n], seq=n) for n in range(1, 9)))
        acked = await client.acked(8)
        assert {seq: acked[seq] for seq in first} == first
        assert [acked[seq] for seq in (3, 5, 6, 8)] == [5, 6, 7, 8]
        assert stored(bus, "/a") == [b"%d" % n for n in (1, 2, 4, 7, 3, 5, 6, 8)]


async def test_a_repeat_of_what_is_not_committed_yet_is_acked_with_it(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        frame = client.batch("/a", [b"once"])
        await client.send(frame, frame, frame)
        receipts: list[tuple[int, int, int]] = []
        while len(receipts) < 3:
            receipts += (await client.expect(Ack)).receipts
        assert receipts == [(1, 1, 1)] * 3
        assert stored(bus, "/a") == [b"once"]


@pytest.mark.parametrize("seed", range(20))
async def test_numbers_in_any_order_are_never_taken_for_others(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    numbers = list(range(1, 41))
    sent = numbers + chance.choices(numbers, k=20)
    chance.shuffle(sent)
    async with real_bus(tmp_path) as bus, bus.client() as client:
        at = 0
        while at < len(sent):
            # Several at once, so that they come as one run.
            part = sent[at : at + chance.randint(1, 8)]
            await client.send(*(client.batch("/a", [b"%d" % seq], seq=seq) for seq in part))
            at += len(part)
        acked: dict[int, set[int]] = {}
        while sum(map(len, acked.values())) < 40 or len(acked) < 40:
            for first_seq, count, first_no in (await client.expect(Ack)).receipts:
                for offset in range(count):
                    acked.setdefault(first_seq + offset, set()).add(first_no + offset)
        payloads = stored(bus, "/a")
        assert sorted(map(int, payloads)) == numbers, "each exactly once"
        assert acked == {int(payload): {no} for no, payload in enumerate(payloads, 1)}


async def test_numbers_whose_ends_look_consecutive_are_looked_at_one_by_one(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(*(client.batch("/a", [b"%d" % seq], seq=seq) for seq in (2, 1, 4)))
        await client.acked(3)
        await client.send(client.batch("/b", [b"3"], seq=3))
        assert await client.acked(1) == {3: 1}
        assert stored(bus, "/b") == [b"3"], "taken for a repeat of a number that was never sent"


async def test_producers_on_one_connection_are_not_mixed_up(tmp_path: Path) -> None:
    """A relay publishes for others: their numbers have nothing to do with each other."""
    async with real_bus(tmp_path) as bus, bus.client() as client:
        frames = [
            client.batch("/a", [b"%d/%d" % (producer_id, seq)], seq=seq, producer_id=producer_id)
            for seq in (1, 2, 3)
            for producer_id in (100, 200)
        ]
        await client.send(*frames)
        await bus.settled(lambda: bus.node.publishing.messages_persistent == 6)
        await client.send(*frames)
        await bus.settled(lambda: bus.node.publishing.repeats == 6)
        await bus.committed()
        assert len(stored(bus, "/a")) == 6


async def test_batches_without_a_number_are_never_repeats(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        frames = [client.batch("/a", [b"%d" % seq], seq=seq) for seq in (0, 1, 2, 0)]
        await client.send(*frames, *frames)
        await bus.settled(lambda: bus.node.publishing.repeats == 2)
        await bus.committed()
        assert stored(bus, "/a") == [b"0", b"1", b"2", b"0", b"0", b"0"]


# Refusals -----------------------------------------------------------------------------------------


BAD_TOPICS: list[str | bytes] = [
    "/a/../b",
    "/a\0b",
    "/a//b",
    "no-slash",
    "/a/+",
    "/a/*",
    "/a\u2215b",
    "/\uff04sys/x",
    "/e\u0301",
    "/a\u202eb",
    b"/\xff\xfe",
    "/" + "/".join("abcdefghijklmnopqrstuvwxyz0123456789"),
    "/$sys/durable/x",
    "/$other",
]


@pytest.mark.parametrize("flags", [PERSISTENT, LIVE], ids=["persistent", "live"])
async def test_bad_topics_are_refused_one_by_one_and_their_neighbours_taken(
    tmp_path: Path, flags: int
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/good")
        frames: list[bytes] = []
        for number, topic in enumerate(BAD_TOPICS):
            frames.append(client.batch("/good", [b"%d" % number], flags))
            frames.append(client.batch(topic, flags=flags))
        await client.send(*frames)
        errors = [await client.refused() for _ in BAD_TOPICS]
        assert {error.code for error in errors} == {"BAD_TOPIC"}
        assert [error.about for error in errors] == list(range(2, 2 * len(BAD_TOPICS) + 1, 2))
        assert {error.refused for error in errors} == {FrameType.BATCH}
        good = [payload for _, payload in await messages(client, len(BAD_TOPICS))]
        assert good == [b"%d" % number for number in range(len(BAD_TOPICS))]
        assert await client.barrier() == []


async def messages(client: RawClient, count: int) -> list[tuple[int, bytes]]:
    """Like `RawClient.messages`, with acks between them."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        event = await client.receive()
        if isinstance(event, Delivered):
            found += zip(event.numbers, event.payloads, strict=True)
    return found


async def test_every_batch_of_a_refused_run_is_named(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(*(client.batch("/a/../b") for _ in range(2000)))
        assert [(await client.refused()).about for _ in range(2000)] == list(range(1, 2001))
        await client.publish("/a")
        assert await client.acked(1) == {2001: 1}


def test_a_failed_sync_refuses_what_waited_and_the_session_goes_on() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as client, bus.client(2) as other:
            await client.publish("/a", [b"safe"])
            assert await client.acked(1) == {1: 1}
            before = bus.broker_id
            machine.disk.arm(DiskFault.SYNC_EIO, lambda path: path.endswith(".seg"))
            lost = client.batch("/a", [b"lost"])
            await client.send(lost)
            error = await client.refused()
            assert (error.code, error.refused, error.about) == ("UNAVAILABLE", FrameType.BATCH, 2)
            await bus.settled(lambda: bus.broker_id != before)
            await client.send(lost)  # a repeat of what was never committed is none
            ack = await client.expect(Ack)
            assert (ack.broker_id, ack.receipts) == (bus.broker_id, [(2, 1, 1)])
            await other.subscribe("/a", "earliest")
            journal = Journal()
            while journal.count() < 2:
                journal.take(await other.receive())
            assert sorted(journal.payloads.values()) == [[b"lost"], [b"safe"]]
            assert client.next_seq == 3
            assert not bus.node.receipts._waiting
            assert all(not each.uncommitted_bytes for each in bus.node.sessions.values())

    machine.run(main)


def test_a_failed_append_refuses_all_that_the_log_had_not_committed() -> None:
    machine = SimulatedMachine(4)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await client.publish("/a", [b"safe"])
            assert await client.acked(1) == {1: 1}
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.0)
            await client.publish("/a", [b"covered by the commit under way"])
            await bus.settled(lambda: bus.node.committer.committing)
            await client.publish("/a", [b"waits for the next"])
            await client.barrier()
            machine.disk.arm(DiskFault.APPEND_ENOSPC, lambda path: path.endswith(".seg"))
            await client.publish("/a", [b"fails"])
            events = await client.until(lambda e: len(e) == 3)
            outcomes = sorted(
                (event.about, event.code)
                if isinstance(event, Error)
                else (event.receipts[0][0], "acked")
                for event in events
                if isinstance(event, Error | Ack)
            )
            assert outcomes == [(2, "acked"), (3, "UNAVAILABLE"), (4, "UNAVAILABLE")]
            assert all(not each.uncommitted_bytes for each in bus.node.sessions.values())

    machine.run(main)


@pytest.mark.parametrize("crash", ["power_loss", "kill"])
@pytest.mark.parametrize("seed", range(8))
def test_what_was_acked_is_there_after_a_crash_and_nothing_is_there_twice(
    seed: int, crash: str
) -> None:
    """The publisher sends again what was not acked, as its library does."""
    machine = SimulatedMachine(seed)
    machine.disk.odds = DiskFaults(sync_slow=0.3, sync_slow_s_max=0.01)

    async def main() -> None:
        chance = random.Random(seed)
        unacked: dict[int, bytes] = {}
        acked: set[int] = set()
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                bus = await nursery.start(keep_running, machine)
                async with bus.client(7) as client:
                    client.next_seq = len(acked) + len(unacked) + 1
                    nursery.start_soon(note_acks, client, unacked, acked)
                    await client.send(*unacked.values())
                    for _ in range(chance.randint(1, 40)):
                        seq = client.next_seq
                        frame = client.batch(f"/a/{seq % 3}", [b"%d" % seq])
                        unacked[seq] = frame
                        await client.send(frame)
                        if chance.random() < 0.3:
                            await trio.sleep(chance.random() * 0.01)
                    machine.crash(power_loss=crash == "power_loss")
                    nursery.cancel_scope.cancel()
        async with machine.bus() as bus, bus.client(8) as client:
            await client.send(*unacked.values())
            sent = acked | set(unacked)
            answer = await client.subscribe("/a/*", "earliest")
            journal = Journal()
            while journal.count() < len(sent):
                journal.take(await client.receive())
            found = [int(each) for payloads in journal.payloads.values() for each in payloads]
            assert sorted(found) == sorted(sent)
            assert len(answer.position) <= 5
            assert [e for e in await bus.all_sent(client) if isinstance(e, Delivered)] == []
            print(f"{len(sent)} messages, {len(acked)} acked before the last crash")

    machine.run(main)


async def keep_running(machine: SimulatedMachine, task_status: trio.TaskStatus[Bus]) -> None:
    try:
        async with machine.bus(drain_timeout_s=0.0) as bus:
            task_status.started(bus)
            await trio.sleep_forever()
    except* OSError:
        assert machine.crashed


async def note_acks(client: RawClient, unacked: dict[int, bytes], acked: set[int]) -> None:
    while True:
        try:
            event = await client.receive()
        except OSError:
            return
        if isinstance(event, Ack):
            for first_seq, count, _ in event.receipts:
                for seq in range(first_seq, first_seq + count):
                    unacked.pop(seq, None)
                    acked.add(seq)


# Not persistent -----------------------------------------------------------------------------------


async def test_messages_that_are_not_persistent_come_in_order(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await reader.subscribe("/a/*")
        sent = [b"%d" % n for n in range(500)]
        for at in range(0, 500, 50):
            await publisher.send(*(publisher.batch("/a/b", [p], LIVE) for p in sent[at : at + 50]))
        assert [payload for _, payload in await reader.messages(500)] == sent
        assert await publisher.barrier() == [], "they are not acked"


@pytest.mark.parametrize(
    ("scope", "arrives"), [(Flags.LOCAL, True), (Flags.GLOBAL, True), (Flags.REMOTE, False)]
)
async def test_the_scope_decides_whether_clients_of_this_node_get_it(
    tmp_path: Path, scope: Flags, arrives: bool
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a")
        await client.publish("/a", [b"scoped"], int(scope))
        await client.publish("/a", [b"end"], LIVE)
        expected = [b"scoped", b"end"] if arrives else [b"end"]
        assert [payload for _, payload in await client.messages(len(expected))] == expected


async def test_a_slow_reader_loses_the_oldest_and_is_told_exactly_how_many(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await reader.subscribe("/a", credit_bytes=0)
        count, size = 600, 16 * 1024
        for number in range(count):
            await publisher.publish("/a", [b"%06d" % number + bytes(size)], LIVE)
        await publisher.barrier()
        await reader.credit(AMPLE)
        events = await reader.until(lambda e: last_number(e) == count - 1)
        dropped = [event for event in events if isinstance(event, Dropped)]
        got = live_numbers(events)
        assert len(dropped) == 1
        assert events.index(dropped[0]) == 0, "told before what comes after the hole"
        assert got == list(range(count - len(got), count))
        assert dropped[0].count == count - len(got)
        assert 0 < len(got) * size <= 4 * 1024 * 1024 + size


def live_numbers(events: Iterable[Event]) -> list[int]:
    return [
        int(payload[:6])
        for event in events
        if isinstance(event, Delivered)
        for payload in event.payloads
    ]


def last_number(events: list[Event]) -> int:
    return max(live_numbers(events[-1:]), default=-1)


def caught_up(got: list[int], number: int) -> bool:
    return bool(got) and got[-1] == number


async def test_a_reader_that_does_not_read_slows_nobody(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as stuck,
        bus.client(3) as reader,
    ):
        await stuck.subscribe("/a")
        await reader.subscribe("/a")
        count = 2000
        got: list[int] = []

        async def read() -> None:
            while not got or got[-1] < count - 1:
                got.extend(live_numbers([await reader.receive()]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for number in range(count):
                await publisher.publish("/a", [b"%06d" % number + bytes(8192)], LIVE)
                if number % 100 == 99:  # no faster than the one who reads
                    await bus.settled(partial(caught_up, got, number))
        assert got == list(range(count))
        # Who did not read gets what its socket held, then the news, then the newest.
        events = await stuck.until(lambda e: last_number(e) == count - 1)
        lost = sum(event.count for event in events if isinstance(event, Dropped))
        assert lost > 0
        assert len(live_numbers(events)) + lost == count


@pytest.mark.parametrize("queue", [None, "group"])
async def test_live_messages_before_a_frame_that_ends_the_session_arrive(
    tmp_path: Path, queue: str | None
) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as reader:
        await reader.subscribe("/a", queue=queue)
        await publisher.send(publisher.batch("/a", [b"last words"], LIVE), b"\xff" * 64)
        assert [payload for _, payload in await reader.messages(1)] == [b"last words"]
