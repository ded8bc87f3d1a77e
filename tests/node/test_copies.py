"""What a mirror is sent over the wire, good and bad: a clear error, and nothing else harmed."""

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from busnode.node import committer as committer_module
from busnode.node import copies as copies_module
from busnode.node import ownership as ownership_module
from busnode.node.committer import PATIENCE_S
from busnode.node.copies import OLD_US
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.store import Log
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.wire.control import (
    Chunk,
    Error,
    Gap,
    MembersSeen,
    Mirror,
    Mirrored,
    PeerHello,
    PeerWelcome,
    Ping,
    Pong,
    encode_control,
)
from busnode.wire.frames import STAMP_AT, FrameType
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.limits import PROTOCOL_VERSION

from ..segments.samples import StoppedClock, by_number, numbered, read_ranges, record
from .raw_client import Bus, Delivered, Journal, RawClient, SimulatedMachine, dialled, real_bus
from .simulated_cluster import SimulatedCluster, on_cluster

ORIGIN, OTHER = (BrokerId(bytes([n]) * 16) for n in (0xAA, 0xBB))
T: Final = LogId(ORIGIN, Topic("/t"))
OF_OTHER: Final = LogId(OTHER, Topic("/t"))


def records(log_id: LogId, first_no: int, *counts: int) -> list[bytes]:
    """Records as their origin sends them, a batch for each count."""
    made: list[bytes] = []
    for count in counts:
        made.append(record(log_id, first_no, numbered(first_no, count)))
        first_no += count
    return made


def chunk(
    made: list[bytes],
    log_id: LogId = T,
    first_no: int = 1,
    last_no: int | None = None,
    age_us: int = 0,
) -> bytes:
    data = b"".join(made)
    end_no = first_no if last_no is None else last_no
    broker_id, topic = log_id
    head = Chunk(0, 0, broker_id, topic, first_no, end_no, len(data), False, True, age_us)
    return encode_control(head) + data


@asynccontextmanager
async def greeted(bus: Bus, broker_id: BrokerId = ORIGIN) -> AsyncIterator[RawClient]:
    """A node that has dialled, in the protocol's own words, and told nothing yet."""
    assert bus.node.listeners.peer is not None
    async with dialled(bus.network, bus.node.listeners.peer.address) as client:
        hello = PeerHello(PROTOCOL_VERSION, "test", broker_id, broker_id.hex()[:2], [], [])
        await client.send(hello)
        await client.expect(PeerWelcome)
        yield client


@asynccontextmanager
async def peer(bus: Bus, broker_id: BrokerId = ORIGIN) -> AsyncIterator[RawClient]:
    async with greeted(bus, broker_id) as client:
        await client.send(MembersSeen([]))
        yield client


async def announce(client: RawClient, broker_id: BrokerId = ORIGIN) -> dict[str, int]:
    """Ask for a mirror; what it has."""
    await client.send(Mirror(broker_id))
    found: dict[str, int] = {}
    while True:
        answer = await client.expect(Mirrored)
        assert answer.broker_id == broker_id
        if not answer.safe:
            return found
        found |= dict(answer.safe)


async def synced(client: RawClient, log_id: LogId, safe_no: int) -> None:
    await client.expect(
        Mirrored,
        lambda answer: (
            answer.broker_id == log_id.broker_id and (log_id.topic, safe_no) in answer.safe
        ),
    )


async def ends_with(client: RawClient, code: str, *words: str) -> None:
    """The node says what is wrong, and closes."""
    errors = [event for event in await client.ended() if isinstance(event, Error)]
    assert [error.code for error in errors] == [code]
    for word in words:
        assert word in errors[0].text, errors[0].text


def copy_of(bus: Bus, log_id: LogId = T) -> Log:
    log = bus.node.store.get(log_id)
    assert log is not None
    return log


def lose_power(machine: SimulatedMachine, bus: Bus) -> None:
    bus.node.draining = bus.node.peers._leaving = True  # a listener that is gone ends nothing now
    machine.crash(power_loss=True)


Scene = Callable[[Bus, RawClient], Awaitable[None]]

HEADER_HASH_AT: Final = STAMP_AT + 24
"""Behind brokerId and msgNo."""

BEFORE: Final = records(T, 1, 2, 3)
"""What the copy holds, and has vouched for, before each scene."""


def at_a_mirror(scene: Scene) -> None:
    """Play a scene between a mirror and an origin that has sent numbers 1 to 5. Whatever comes,
    another origin and the mirror's own clients go on, and what was safe is still there after a
    power loss."""
    machine = SimulatedMachine()

    async def main() -> None:
        async with (
            machine.bus(peer_port=4251, link_heartbeat_s=60.0) as bus,
            peer(bus, OTHER) as other,
            peer(bus) as origin,
            bus.client(99) as client,
        ):
            assert await announce(other, OTHER) == {}
            await other.send(chunk(records(OF_OTHER, 1, 2), OF_OTHER))
            await synced(other, OF_OTHER, 2)
            assert await announce(origin) == {}
            await origin.send(chunk(BEFORE))
            await synced(origin, T, 5)
            await client.publish("/own")
            assert await client.acked(1) == {1: 1}
            await scene(bus, origin)
            await other.send(chunk(records(OF_OTHER, 3, 4), OF_OTHER, 3))
            await synced(other, OF_OTHER, 6)
            await client.publish("/own")
            assert await client.acked(1) == {2: 2}
            await client.subscribe("/own", "earliest")
            assert [number for number, _ in await client.messages(2)] == [1, 2]
            own = LogId(bus.broker_id, Topic("/own"))
            lose_power(machine, bus)
        store = FileStore(machine.disk, StoppedClock(), "/data")
        copies = {log.log_id: read_ranges(log).records for log in store.logs()}
        assert by_number(BEFORE).items() <= copies[T].items()
        assert copies[OF_OTHER] == by_number(records(OF_OTHER, 1, 2, 4))
        assert len(copies[own]) == 2
        store.close()

    machine.run(main)


async def _dialled_again(bus: Bus, safe_no: int = 5) -> None:
    """The origin dials again, and goes on where the copy is."""
    async with peer(bus) as again:
        assert await announce(again) == {"/t": safe_no}
        await again.send(chunk(records(T, safe_no + 1, 2), first_no=safe_no + 1))
        await synced(again, T, safe_no + 2)
        await again.send(Ping(1))
        assert await again.expect(Pong) == Pong(1)


# Who may write ------------------------------------------------------------------------------------


def test_records_of_a_node_that_has_not_announced_them_are_refused() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        third = LogId(BrokerId(bytes(16)), Topic("/t"))
        await origin.send(chunk(records(third, 1, 1), third))
        await ends_with(origin, "BAD_FRAME", third.broker_id.hex(), "may not write")
        assert bus.node.store.get(third) is None
        await _dialled_again(bus)


def test_records_that_another_session_has_announced_are_refused() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        await origin.send(chunk(records(OF_OTHER, 3, 1), OF_OTHER, 3))
        await ends_with(origin, "BAD_FRAME", OTHER.hex())
        assert copy_of(bus, OF_OTHER).next_no == 3


def test_a_second_writer_is_refused_and_the_first_goes_on() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        async with peer(bus, BrokerId(bytes(16))) as second:
            await second.send(Mirror(ORIGIN))
            error = await second.refused()
            assert (error.code, error.refused) == ("SECOND_WRITER", FrameType.MIRROR)
            assert ORIGIN.hex() in error.text
            await second.send(Ping(7))
            assert await second.expect(Pong) == Pong(7), "its session goes on"
            await origin.send(chunk(records(T, 6, 1), first_no=6))
            await synced(origin, T, 6)
        await origin.send(chunk(records(T, 7, 1), first_no=7))
        await synced(origin, T, 7)


def test_a_second_writer_that_writes_all_the_same_loses_its_session() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        async with peer(bus, BrokerId(bytes(16))) as second:
            await second.send(Mirror(ORIGIN), chunk(records(T, 6, 1), first_no=6))
            errors = [event for event in await second.ended() if isinstance(event, Error)]
            assert [error.code for error in errors] == ["SECOND_WRITER", "BAD_FRAME"]
        assert copy_of(bus).next_no == 6
        await origin.send(chunk(records(T, 6, 1), first_no=6))
        await synced(origin, T, 6)


def test_a_node_that_has_dialled_again_goes_on_though_its_old_session_is_not_gone_yet() -> None:
    """A mirror may not see for long that a connection is broken."""

    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        async with greeted(bus) as again:
            assert await announce(again) == {"/t": 5}
            await again.send(MembersSeen([]), chunk(records(T, 6, 2), first_no=6))
            await synced(again, T, 7)
            await origin.ended()
            await again.send(chunk(records(T, 8, 1), first_no=8))
            await synced(again, T, 8)


def test_a_writer_that_has_gone_leaves_room_for_another_session() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        origin.stream.close()
        await bus.settled(lambda: ORIGIN not in bus.node.copies.origins)
        async with peer(bus, BrokerId(bytes(16))) as heir:
            assert await announce(heir) == {"/t": 5}


def test_of_two_that_repair_the_same_the_second_goes_on_and_the_first_keeps_its_session() -> None:
    """They knew different things; each would end the other's session again and again."""

    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        dead = LogId(BrokerId(bytes([0xCC]) * 16), Topic("/t"))
        made = records(dead, 1, 2, 3)
        async with peer(bus, BrokerId(bytes([0xDD]) * 16)) as second:
            await announce(origin, dead.broker_id)
            await announce(second, dead.broker_id)
            await origin.send(chunk(made, dead), Ping(7))
            assert await origin.expect(Pong) == Pong(7), "its session goes on"
            assert bus.node.store.get(dead) is None
            await second.send(chunk(made, dead))
            await synced(second, dead, 5)


def test_nobody_writes_the_mirrors_own_logs() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        await origin.send(Mirror(bus.broker_id))
        error = await origin.refused()
        assert error.code == "SECOND_WRITER"
        own = LogId(bus.broker_id, Topic("/own"))
        await origin.send(chunk(records(own, 2, 1), own, 2))
        await ends_with(origin, "BAD_FRAME", bus.broker_id.hex())
        assert copy_of(bus, own).next_no == 2
        await _dialled_again(bus)


def test_a_batch_without_a_chunk_is_refused() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        await origin.send(*records(T, 6, 1))
        await ends_with(origin, "BAD_FRAME", "CHUNK")
        await _dialled_again(bus)


# When it is synced --------------------------------------------------------------------------------


async def _sync_took_s(origin: RawClient, safe_no: int, *frames: bytes) -> float:
    since = trio.current_time()
    await origin.send(*frames)
    await synced(origin, T, safe_no)
    return trio.current_time() - since


def test_old_messages_are_synced_in_time_and_new_ones_at_once() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        old = chunk(records(T, 6, 1), first_no=6, age_us=OLD_US)
        assert PATIENCE_S <= await _sync_took_s(origin, 6, old) < 1.2 * PATIENCE_S
        for number, age_us in ((7, 0), (8, OLD_US - 1)):
            new = chunk(records(T, number, 1), first_no=number, age_us=age_us)
            assert await _sync_took_s(origin, number, new) < PATIENCE_S / 2


def test_old_messages_come_with_the_next_sync_that_somebody_waits_for() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        old = chunk(records(T, 6, 1), first_no=6, age_us=OLD_US)
        await origin.send(old)
        await bus.settled(lambda: copy_of(bus).next_no == 7)
        since = trio.current_time()
        async with bus.client(97) as client:
            await client.publish("/own/too")
            await client.acked(1)
        await synced(origin, T, 6)
        assert trio.current_time() - since < PATIENCE_S / 2


def test_live_messages_of_others_do_not_wait_for_one_that_catches_up() -> None:
    third = LogId(BrokerId(bytes([0xCC]) * 16), Topic("/t"))

    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        many = [record(T, number, [bytes(10_000)]) for number in range(6, 306)]
        whole = chunk(many, first_no=6, last_no=305, age_us=OLD_US)
        half = len(whole) // 2
        await origin.send(whole[:half])
        await bus.settled(lambda: copy_of(bus).next_no > 100)
        async with peer(bus, third.broker_id) as live:
            assert await announce(live, third.broker_id) == {}
            for number in range(1, 6):
                since = trio.current_time()
                await live.send(chunk(records(third, number, 1), third, number))
                await synced(live, third, number)
                assert trio.current_time() - since < PATIENCE_S / 2
                await origin.send(whole[half : half + 1000])
                half += 1000
        await origin.send(whole[half:])
        await synced(origin, T, 305)
        assert read_ranges(copy_of(bus)).records == by_number(BEFORE + many)


def test_old_messages_are_synced_when_there_are_enough_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enough = [record(T, number, [bytes(1000)]) for number in range(6, 16)]
    monkeypatch.setattr(committer_module, "PATIENT_BYTES_MAX", len(b"".join(enough)))

    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        commits = bus.node.committer.commits
        old = [chunk([each], first_no=6 + n, age_us=OLD_US) for n, each in enumerate(enough)]
        assert await _sync_took_s(origin, 15, *old) < PATIENCE_S / 2
        assert bus.node.committer.commits == commits + 1


# What may be written ------------------------------------------------------------------------------


def _flipped(made: bytes, at: int) -> bytes:
    return made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :]


BAD: Final = {
    "a wrong header hash": [_flipped(records(T, 6, 1)[0], HEADER_HASH_AT)],
    "a wrong body hash": [_flipped(records(T, 6, 1)[0], -1 + len(records(T, 6, 1)[0]))],
    "a hole between two records": records(T, 6, 1) + records(T, 8, 1),
    "a hole between two topics' worth": records(T, 6, 2) + records(T, 9, 1),
    "a number twice": records(T, 6, 1) + records(T, 6, 1),
    "a number that goes back": records(T, 6, 1) + records(T, 5, 1),
    "another brokerId than its chunk": records(OF_OTHER, 6, 1),
    "another brokerId behind a good one": records(T, 6, 1) + records(OF_OTHER, 7, 1),
    "another topic than its chunk": records(LogId(ORIGIN, Topic("/u")), 6, 1),
    "another topic behind a good one": records(T, 6, 1)
    + records(T._replace(topic=Topic("/u")), 1, 1),
    "a record that begins before the end": records(T, 4, 4),
    "one of which the first is had, and the next overlaps": records(T, 3, 3, 1)[:1]
    + records(T, 5, 4),
    "a number behind what its chunk says": records(T, 8, 1),
}


@pytest.mark.parametrize("what", BAD)
def test_what_the_origin_cannot_have_written_ends_its_session_and_is_not_stored(what: str) -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        await origin.send(chunk(BAD[what], first_no=6, last_no=9))
        errors = [event for event in await origin.ended() if isinstance(event, Error)]
        assert len(errors) == 1, what
        assert errors[0].code in ("BAD_FRAME", "BAD_HASH")
        await bus.committed()
        log = copy_of(bus)
        stored = read_ranges(log)
        assert stored.holes == []
        good = by_number(BEFORE + records(T, 6, 2))
        good |= by_number(BEFORE + records(T, 6, 1))
        assert all(good[number] == data for number, data in stored.records.items()), "only good"
        logs = {each.log_id for each in bus.node.store.logs()}
        # That a node sends what it must not is told to who runs the cluster.
        logs.discard(LogId(bus.broker_id, Topic("/$sys/audit/n1")))
        assert logs == {T, OF_OTHER, LogId(bus.broker_id, Topic("/own"))}, "no log was made for it"
        await _dialled_again(bus, log.committed_no)


@pytest.mark.parametrize("what", ["header hash", "body", "number"])
def test_one_bad_record_in_the_middle_of_a_large_chunk_is_never_vouched_for(what: str) -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        many = [record(T, number, [bytes(10_000)]) for number in range(6, 306)]
        bad = many[150]
        match what:
            case "header hash":
                many[150] = _flipped(bad, HEADER_HASH_AT)
            case "body":
                many[150] = _flipped(bad, len(bad) // 2)
            case _:
                many[150] = many[151]
        await origin.send(chunk(many, first_no=6, last_no=305))
        events = await origin.ended()
        told = [no for e in events if isinstance(e, Mirrored) for _, no in e.safe]
        assert [e.code for e in events if isinstance(e, Error)] in (["BAD_HASH"], ["BAD_FRAME"])
        await bus.committed()
        log = copy_of(bus)
        assert max(told, default=5) <= log.committed_no == log.next_no - 1 < 156
        stored = read_ranges(log)
        assert stored.holes == []
        assert stored.records == by_number(BEFORE + many[: log.committed_no - 5])
        await _dialled_again(bus, log.committed_no)


def test_a_first_record_that_is_none_makes_no_log() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        new = LogId(ORIGIN, Topic("/new"))
        await origin.send(chunk([_flipped(records(new, 1, 1)[0], HEADER_HASH_AT)], new))
        await ends_with(origin, "BAD_HASH")
        assert bus.node.store.get(new) is None


def test_a_topic_that_is_none_ends_the_session_that_brings_it_and_makes_no_log() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        bad = LogId(ORIGIN, Topic("no/path"))
        await origin.send(chunk(records(bad, 1, 1), bad))
        await ends_with(origin, "BAD_FRAME", "no/path")
        assert bus.node.store.get(bad) is None
        await _dialled_again(bus)


def test_a_log_begins_where_its_first_chunk_says() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        new = LogId(ORIGIN, Topic("/new"))
        await origin.send(chunk(records(new, 4, 1), new, 1))
        await ends_with(origin, "BAD_FRAME", "record 4 where 1 comes next")
        assert copy_of(bus, new).next_no == 1


def test_a_range_that_comes_again_is_taken_once() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        await origin.send(chunk(BEFORE), chunk(BEFORE), chunk(BEFORE[1:], first_no=3))
        await origin.send(chunk(records(T, 6, 1), first_no=6))
        await synced(origin, T, 6)
        assert read_ranges(copy_of(bus)).records == by_number(BEFORE + records(T, 6, 1))


def test_of_a_range_that_overlaps_the_new_part_is_taken() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        more = records(T, 6, 2, 1)
        await origin.send(chunk([*BEFORE, *more], last_no=8))
        await synced(origin, T, 8)
        assert read_ranges(copy_of(bus)).records == by_number([*BEFORE, *more])


def test_a_range_may_begin_in_the_middle_of_a_batch() -> None:
    """A CHUNK names the number that was asked for, and its first record may begin before it."""

    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        more = records(T, 6, 2)
        await origin.send(chunk([BEFORE[1], *more], first_no=4, last_no=7))
        await synced(origin, T, 7)
        assert read_ranges(copy_of(bus)).records == by_number([*BEFORE, *more])


def test_a_copy_of_what_begins_late_begins_late_and_its_readers_are_told() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        late = LogId(ORIGIN, Topic("/late"))
        await origin.send(chunk(records(late, 10, 2), late, 10))
        await synced(origin, late, 11)
        assert copy_of(bus, late).first_no == 10
        async with bus.client(98) as reader:
            await reader.subscribe("/late", None, {})
            journal = Journal()
            while journal.count() < 2:
                journal.take(await reader.receive())
        assert [(gap.first_no, gap.last_no) for gap in journal.gaps] == [(1, 9)]
        assert journal.next_no == {late: 12}


def test_what_the_origin_has_lost_between_is_a_hole_in_the_copy_and_its_readers_are_told() -> None:
    @at_a_mirror
    async def _(bus: Bus, origin: RawClient) -> None:
        more = records(T, 10, 2)
        await origin.send(chunk(more, first_no=10, last_no=11))
        await synced(origin, T, 11)
        async with bus.client(98) as reader:
            await reader.subscribe("/t", None, {})
            journals = {ORIGIN: Journal(), OTHER: Journal()}
            while journals[ORIGIN].count() < 7:
                event = await reader.receive()
                if isinstance(event, Delivered):
                    journals[event.header.broker_id].take(event)
                elif isinstance(event, Gap):
                    journals[event.broker_id].take(event)
        gaps = journals[ORIGIN].gaps
        assert [(gap.first_no, gap.last_no) for gap in gaps] == [(6, 9)]
        assert read_ranges(copy_of(bus)).spans == [(6, 9)]


def test_everybody_who_is_told_what_is_safe_is_told_the_truth() -> None:
    """Nothing is said to be safe before it is synced, also not what a broken session has left."""
    machine = SimulatedMachine()

    async def main() -> None:
        async with (
            machine.bus(peer_port=4251, link_heartbeat_s=60.0) as bus,
            peer(bus) as origin,
        ):
            await announce(origin)
            await origin.send(chunk(records(T, 1, 3)))
            await synced(origin, T, 3)
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.0)
            await origin.send(chunk(records(T, 4, 3), first_no=4))
            await bus.settled(lambda: copy_of(bus).next_no == 7)
            async with peer(bus) as again:
                assert await announce(again) == {"/t": 3}, "the rest is written, not synced"
                await again.send(chunk(records(T, 4, 3), first_no=4))
                await synced(again, T, 6)
                lose_power(machine, bus)
        store = FileStore(machine.disk, StoppedClock(), "/data")
        (log,) = (log for log in store.logs() if log.log_id == T)
        assert read_ranges(log).records == by_number(records(T, 1, 3, 3))
        store.close()

    machine.run(main)


# The mirror's disk --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [DiskFault.APPEND_EIO, DiskFault.APPEND_ENOSPC, DiskFault.SYNC_EIO]
)
def test_a_copy_that_cannot_be_written_harms_neither_its_origin_nor_the_mirrors_clients(
    fault: DiskFault,
) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        a, b = cluster["a"].node, cluster["b"].node
        for node in (a, b):
            await cluster.until(lambda node=node: node.mirroring.in_force, "a mirror")  # type: ignore[misc]
        async with (
            cluster.client("a", name="at a") as at_a,
            cluster.client("b", name="at b") as at_b,
        ):
            for number in range(3):
                receipt = await at_a.publish("/t", b"%d" % number, persistent=True)
                assert receipt.level == "mirrored"
            copy = b.store.get(LogId(a.broker_id, Topic("/t")))
            assert copy is not None
            cluster["b"].disk.arm(
                fault, lambda path: a.broker_id.hex() in path and "idx" not in path
            )
            began = trio.current_time()
            for number in range(3, 20):
                # Other logs go on meanwhile, and do not hide that this one is silent.
                receipt = await at_a.publish("/t", b"%d" % number, persistent=True)
                if number == 3:
                    assert receipt.level == "local"
                assert trio.current_time() - began < 3.0, "no longer than a mirror may be silent"
            assert copy.poisoned is not None
            assert copy.committed_no == 3
            assert b.incarnations.count == 1, "its own logs are not touched"
            lost = a.peers.links_lost
            await trio.sleep(40)
            assert a.peers.links_lost - lost <= 1, "what takes no more is not tried for ever"
            receipt = await at_b.publish("/b", b"0", persistent=True)
            assert receipt.level == "mirrored", "a mirrors b as before"
            async with at_b.subscribe("/t", start="earliest", on_gap="raise") as messages:
                got = [int((await anext(messages)).payload) for _ in range(20)]
            assert got == list(range(20))


def test_one_copy_that_is_lost_to_writing_makes_nobody_wait_while_others_go_on() -> None:
    """Its log is never answered any more, but all others are, many times a second."""

    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        a = cluster["a"].node
        await cluster.until(lambda: a.mirroring.in_force, "a mirror")
        async with cluster.client("a", name="at a") as at_a, cluster.client("a") as busy:

            async def publish_on() -> None:
                while True:
                    await busy.publish("/busy", b"x", persistent=True)
                    await trio.sleep(0.05)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish_on)
                assert (await at_a.publish("/t", b"0", persistent=True)).level == "mirrored"
                copy = cluster["b"].node.store.get(LogId(a.broker_id, Topic("/t")))
                assert isinstance(copy, FileLog)
                path = copy.segments[-1].path
                cluster["b"].disk.arm(DiskFault.SYNC_EIO, lambda each: each == path)
                with trio.fail_after(4):
                    assert (await at_a.publish("/t", b"1", persistent=True)).level == "local"
                nursery.cancel_scope.cancel()


def test_a_node_that_announces_ever_new_incarnations_is_refused_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How long copies are kept stands in a file, which is written anew for each: it stays small."""
    monkeypatch.setattr(copies_module, "ORIGINS_MAX", 5)
    monkeypatch.setattr(ownership_module, "REMEMBERED_MAX", 5)
    machine = SimulatedMachine()
    brokers = [BrokerId(bytes([n]) * 16) for n in range(1, 8)]

    async def main() -> None:
        async with machine.bus(peer_port=0) as bus:
            ownership = bus.node.ownership
            async with peer(bus) as client:
                for broker_id in brokers[:5]:
                    await client.send(Mirror(broker_id, 60.0))
                    await client.expect(Mirrored)
                for broker_id in brokers[5:]:
                    await client.send(Mirror(broker_id, 60.0))
                    assert (await client.refused()).code == "LIMIT_REACHED"
                await client.send(Mirror(brokers[0], 70.0))
                await client.expect(Mirrored)
                assert ownership.retain_s == dict.fromkeys(brokers[:5], 60.0), "said once"
                held = LogId(brokers[0], Topic("/t"))
                await client.send(chunk(records(held, 1, 1), held))
                await synced(client, held, 1)
            await bus.settled(lambda: not bus.node.copies.origins)
            async with peer(bus, OTHER) as client:
                await client.send(Mirror(OTHER, 80.0))
                await client.expect(Mirrored)
                assert ownership.retain_s == {brokers[0]: 60.0, OTHER: 80.0}, "what is held"

    machine.run(main)


async def test_what_a_node_had_is_freed_when_it_leaves(tmp_path: Path) -> None:
    async with real_bus(tmp_path, peer_port=0) as bus:
        gc.collect()
        gc.disable()  # what it would find is there for as long as nobody looks
        try:
            async with peer(bus) as client:
                assert await announce(client) == {}
                (session,) = bus.node.peers.sessions.values()
                gone = weakref.ref(session)
                del session
            await bus.settled(lambda: gone() is None)
        finally:
            gc.enable()
