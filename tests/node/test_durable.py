"""Durable subscriptions: a place that is kept under a name, over reconnects and restarts."""

from pathlib import Path

import pytest

from busnode.node.durable_positions import (
    REGISTRATION_BYTES_MAX,
    DurablePositions,
    Registration,
    encode_registration,
    topic_of,
)
from busnode.segments.memory_store import MemoryStore
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.faults import DiskFault
from busnode.wire.control import SavePosition, Subscribe
from busnode.wire.errors import Refused
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic

from ..segments.samples import record
from .raw_client import AMPLE, SimulatedMachine, real_bus
from .test_subscribe import numbered, publish

NAME = "billing"


async def test_a_saved_position_is_where_the_next_connection_goes_on(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        await publish(publisher, "/a", numbered(1, 10))
        async with bus.client(2) as reader:
            await reader.subscribe("/a", "earliest", durable=NAME)
            await reader.messages(10)
            await reader.send(SavePosition(1, {bus.broker_id: {"/a": 6}}))
            await reader.barrier()
        async with bus.client(2) as reader:
            answer = await reader.subscribe("/a", "latest", durable=NAME)
            assert answer.position == {bus.broker_id: {"/a": 6}}
            assert [number for number, _ in await reader.messages(10)] == list(range(1, 11)), (
                "the batch in whose middle it stands comes whole"
            )


async def test_a_saved_position_is_kept_over_restarts(tmp_path: Path) -> None:
    saved: dict[BrokerId, dict[str, int]] = {}
    for start in range(4):
        async with real_bus(tmp_path) as bus, bus.client(start) as client:
            answer = await client.subscribe("/p/*", "earliest", durable=NAME)
            assert answer.position == {b: p | ({"/p/x": 2} if p else {}) for b, p in saved.items()}
            await publish(client, "/p/x", [b"1"], [b"2"])
            saved[bus.broker_id] = {"/p/x": 2}
            await client.send(SavePosition(1, {bus.broker_id: {"/p/x": 2}}))
            await client.barrier()
    async with real_bus(tmp_path) as bus, bus.client(9) as client:
        assert (await client.subscribe("/p/*", durable=NAME)).position == saved
        assert len(bus.node.durable) == 1


async def test_cursors_that_move_leave_the_others_where_they_are(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as client:
        for topic in ("/p/a", "/p/b"):
            await publish(client, topic, numbered(1, 5))
        await client.subscribe("/p/*", "earliest", durable=NAME)
        await client.send(SavePosition(1, {bus.broker_id: {"/p/a": 3, "/p/b": 1}}))
        await client.send(SavePosition(1, {bus.broker_id: {"/p/b": 4}}))
        await client.barrier()
        async with bus.client(2) as other:
            answer = await other.subscribe("/p/*", durable=NAME)
            assert answer.position == {bus.broker_id: {"/p/a": 3, "/p/b": 4}}


async def test_a_name_has_a_place_from_its_first_subscription_on(tmp_path: Path) -> None:
    """Also when its client goes before it has saved one: what is published meanwhile is its."""
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher:
        await publish(publisher, "/a", numbered(1, 3))
        async with bus.client(2) as reader:
            answer = await reader.subscribe("/a", "latest", durable=NAME)
            assert answer.position == {bus.broker_id: {"/a": 3}}
        await publish(publisher, "/a", numbered(4, 6))
        async with bus.client(2) as reader:
            await reader.subscribe("/a", "latest", durable=NAME)
            assert [number for number, _ in await reader.messages(3)] == [4, 5, 6]
    async with real_bus(tmp_path) as bus, bus.client(2) as reader:
        await reader.subscribe("/a", "latest", durable=NAME)
        assert [number for number, _ in await reader.messages(3)] == [4, 5, 6]


@pytest.mark.parametrize("name", ["a/b", "/", "..", "", "a\0b", "+", "*", "\u2215"])
async def test_a_name_that_cannot_be_part_of_a_topic_is_refused(tmp_path: Path, name: str) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(Subscribe(3, "/a", "latest", {}, name, None, AMPLE))
        error = await client.refused()
        assert (error.code, error.about) == ("REFUSED", 3)
        assert len(bus.node.router) == 0
        assert len(bus.node.durable) == 0
    with pytest.raises(Refused):
        topic_of(name)


async def test_saving_for_what_is_not_durable_does_nothing(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", number=1)
        for number in (1, 2):
            await client.send(SavePosition(number, {bus.broker_id: {"/a": 6}}))
        assert await client.barrier() == []
        assert len(bus.node.durable) == 0


async def test_a_position_that_grows_too_large_is_refused_and_the_last_good_one_stays(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", durable=NAME)
        refused = 0
        for part in range(12):
            topics = {f"/{part}/{n}/" + "x" * 200: 1 for n in range(4000)}  # 0.9 MB
            await client.send(SavePosition(1, {bus.broker_id: topics}))
            events = await client.barrier()
            refused += len(events)
            if events:
                assert events[0].code == "LIMIT_REACHED"  # type: ignore[union-attr]
        assert refused >= 2
        kept = bus.node.durable.registration(NAME)
        assert kept is not None
        assert len(kept.position) == 8000
        assert len(encode_registration(kept)) <= REGISTRATION_BYTES_MAX
        bus.node.keep_positions()  # what housekeeping does must not fail for it


def test_a_position_saved_before_a_power_loss_is_there_after_it() -> None:
    machine = SimulatedMachine(5)

    async def main() -> None:
        async with machine.bus() as bus:
            broker_id = bus.broker_id
            async with bus.client() as client:
                await publish(client, "/a", numbered(1, 5))
                await client.subscribe("/a", "earliest", durable=NAME)
                await client.send(SavePosition(1, {broker_id: {"/a": 4}}))
                await client.barrier()
                await bus.committed()
            machine.disk.power_loss()
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/a", "latest", durable=NAME)
            assert answer.position == {broker_id: {"/a": 4}}

    machine.run(main)


def test_saving_on_a_broken_disk_is_refused_and_the_next_incarnation_has_it() -> None:
    machine = SimulatedMachine(6)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await publish(client, "/a", numbered(1, 5))
            await client.subscribe("/a", "earliest", durable=NAME)
            await client.messages(5)
            await bus.committed()
            machine.disk.arm(DiskFault.APPEND_ENOSPC, lambda path: path.endswith(".seg"))
            before = bus.broker_id
            await client.send(SavePosition(1, {before: {"/a": 5}}))
            error = await client.refused()
            assert (error.code, error.about) == ("UNAVAILABLE", 1)
            await bus.settled(lambda: bus.broker_id != before)
            await client.send(SavePosition(1, {before: {"/a": 5}}))
            assert await client.barrier() == []
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/a", "latest", durable=NAME)
            assert answer.position[before] == {"/a": 5}

    machine.run(main)


def test_who_subscribes_while_nothing_can_be_written_is_kept_by_the_next_incarnation() -> None:
    machine = SimulatedMachine(7)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await publish(client, "/a", numbered(1, 5))
            await bus.committed()
            before = bus.broker_id
            machine.disk.arm(DiskFault.APPEND_ENOSPC, lambda path: path.endswith(".seg"))
            machine.disk.arm(DiskFault.ENTRY_ENOSPC, count=1_000)
            await client.subscribe("/a", "earliest", durable=NAME)
            await client.messages(5)
            await client.send(SavePosition(1, {before: {"/a": 5}}))
            error = await client.refused()
            assert (error.code, error.about) == ("UNAVAILABLE", 1)
            machine.disk.disarm()
            await bus.settled(lambda: bus.broker_id != before)
            await bus.committed()
            machine.disk.power_loss()
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/a", "latest", durable=NAME)
            assert answer.position == {before: {"/a": 5}}

    machine.run(main)


def test_the_newest_of_several_logs_counts_even_when_the_calendar_went_back() -> None:
    machine = SimulatedMachine(7)

    async def main() -> None:
        broker_id = BrokerId(bytes(range(16)))
        for start in range(3):
            async with machine.bus() as bus, bus.client() as client:
                answer = await client.subscribe("/a", "earliest", durable=NAME)
                expected = {} if not start else {broker_id: {"/a": 10 * start}}
                assert answer.position == expected
                await client.send(SavePosition(1, {broker_id: {"/a": 10 * start + 10}}))
                await client.barrier()
            machine.clock.jump(-3600)

    machine.run(main)


def test_what_is_not_a_position_is_passed_over() -> None:
    store = MemoryStore(SimDisk(), SimClock())
    log_id = LogId(BrokerId(bytes(16)), topic_of(NAME))
    log = store.create(log_id)
    positions = DurablePositions()
    for number, payload in enumerate([b"\xc1", b"\x01", b"\x81\x01\x02", b"\x80" * 5], 1):
        log.append(record(log_id, number, [payload]), 1, 0)
        log.committed_no = MsgNo(number)
        positions.load(log)
        assert positions.get(NAME) is None
    good = {LogId(BrokerId(bytes(range(16))), Topic("/a")): MsgNo(9)}
    kept = encode_registration(Registration(0, "/a", "me", good))
    log.append(record(log_id, 5, [kept]), 1, 0)
    log.committed_no = MsgNo(5)
    positions.load(log)
    assert positions.get(NAME) == good
