"""Leaving: clients are told, what is pending is committed and acked, the store is whole."""

from pathlib import Path

import pytest
import trio

from busnode.segments import recovery
from busnode.segments.index import Point
from busnode.segments.records import LogKey, Scanned
from busnode.segments.survey import Survey, survey
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.control import (
    Ack,
    Bid,
    Chunk,
    Control,
    Credit,
    Error,
    Goodbye,
    Ping,
    Pong,
    Provide,
    Reply,
    Request,
    SavePosition,
    Subscribe,
    Unprovide,
    Unsubscribe,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import LogId, Topic
from busnode.wire.sessions import CLIENT_TABLE, Side, State
from busnode.world.files import ReadFile

from .raw_client import AMPLE, CONFIG, LIVE, Bus, Event, RawClient, SimulatedMachine, real_bus
from .test_subscribe import numbered, publish


class Leaver:
    """A node that drains when it is told to."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.leave = trio.Event()
        self.gone = trio.Event()

    async def run(self, task_status: trio.TaskStatus[Bus]) -> None:
        async with self.machine.bus() as bus:
            task_status.started(bus)
            await self.leave.wait()
        self.gone.set()


async def goodbye(client: RawClient) -> None:
    """Read up to the node's GOODBYE."""
    await client.until(lambda events: bool(events) and isinstance(events[-1], Goodbye))


async def stay_until_goodbye(bus: Bus, task_status: trio.TaskStatus[None]) -> None:
    async with bus.client() as client:
        await client.subscribe("/a")
        task_status.started()
        await goodbye(client)
        await client.send(Goodbye("bye", []))
        assert await client.ended() == []


async def test_clients_are_told_and_it_ends_when_the_last_has_left(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with real_bus(tmp_path) as bus:
            for _ in range(5):
                await nursery.start(stay_until_goodbye, bus)
            began = trio.current_time()
        assert trio.current_time() - began < CONFIG.drain_timeout_s, "it waits for its deadline"


def test_what_was_appended_is_committed_and_acked_before_the_end() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        leaver = Leaver(machine)
        async with trio.open_nursery() as nursery:
            bus = await nursery.start(leaver.run)
            async with bus.client() as client:
                machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.0)
                await client.send(*(client.batch(f"/a/{n % 3}") for n in range(30)))
                await client.barrier()
                leaver.leave.set()
                await goodbye(client)
                await client.publish("/b", [b"crossed on the way"])
                await client.send(Goodbye("bye", []))
                events = await client.ended()
            receipts = [row for e in events if isinstance(e, Ack) for row in e.receipts]
            acked = {seq + n for seq, count, _ in receipts for n in range(count)}
            assert acked == set(range(1, 32))
            await leaver.gone.wait()
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/*", "latest")
            (position,) = answer.position.values()
            assert position == {"/a/0": 10, "/a/1": 10, "/a/2": 10, "/b": 1}

    machine.run(main)


def test_a_commit_that_is_under_way_is_waited_for() -> None:
    """What it has taken is not dirty any more, and nobody is connected."""
    machine = SimulatedMachine(2)

    async def main() -> None:
        async with machine.bus() as bus:
            machine.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.5)
            async with bus.client() as client:
                await client.publish("/a")
                await bus.settled(lambda: bus.node.committer.committing)
            await bus.settled(lambda: not bus.node.sessions)
            assert bus.node.committer.commits == 0
            assert not bus.node.store.dirty()
        log = bus.node.store.get(LogId(bus.broker_id, Topic("/a")))
        assert log is not None
        assert log.committed_no == 1
        machine.disk.power_loss()
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/a", "latest")
            assert [topics["/a"] for topics in answer.position.values()] == [1]

    machine.run(main)


async def test_a_store_that_was_closed_cleanly_is_opened_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        for _ in range(20):
            await publish(client, "/a", [bytes(100_000)] * 2)
        await client.subscribe("/a", durable="me")
    surveyed: list[int] = []

    def noted(
        file: ReadFile, size_bytes: int, key: LogKey, start: Scanned, durable: Point
    ) -> Survey:
        surveyed.append(size_bytes - start.at)
        return survey(file, size_bytes, key, start, durable)

    monkeypatch.setattr(recovery, "survey", noted)
    async with real_bus(tmp_path) as bus:
        assert bus.node.store.flaws() == []
        assert surveyed
        assert sum(surveyed) == 0, "bytes behind the last point that is known to be durable"


def test_who_does_not_answer_is_waited_for_only_so_long() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        leaver = Leaver(machine)
        async with trio.open_nursery() as nursery:
            bus = await nursery.start(leaver.run)
            async with bus.client() as client, bus.stranger() as stranger:
                await bus.settled(lambda: bus.node.doors.clients.half_open == 1)
                began = trio.current_time()
                leaver.leave.set()
                (error,) = await stranger.ended()
                assert isinstance(error, Error)
                assert error.code == "DRAINING"
                assert trio.current_time() - began < 0.1, "who is not in yet is not waited for"
                await leaver.gone.wait()
                took = trio.current_time() - began
                assert took == pytest.approx(CONFIG.drain_timeout_s, abs=0.1)
                assert isinstance((await client.ended())[0], Goodbye)

    machine.run(main)


def test_nobody_new_is_taken_while_it_leaves() -> None:
    machine = SimulatedMachine(4)

    async def main() -> None:
        leaver = Leaver(machine)
        async with trio.open_nursery() as nursery:
            bus = await nursery.start(leaver.run)
            async with bus.client() as client:
                leaver.leave.set()
                await goodbye(client)
                with pytest.raises(OSError, match="nobody listens"):
                    await bus.network.dial(bus.node.address)

    machine.run(main)


def test_after_its_goodbye_a_node_sends_answers_only() -> None:
    """As its own table says, whatever this client still asks and whatever others publish."""
    machine = SimulatedMachine(5)

    async def main() -> None:
        leaver = Leaver(machine)
        async with trio.open_nursery() as nursery:
            bus = await nursery.start(leaver.run)
            async with bus.client(1) as client, bus.client(2) as other:
                await publish(client, "/a", *[[bytes(1000)] * 100] * 3)
                await client.send(Provide(1, "/dtc"))
                await client.subscribe("/a", "earliest", number=1, durable="me", credit_bytes=1)
                await client.subscribe("/live", number=2)
                await client.expect(Chunk)
                leaver.leave.set()
                await goodbye(client)
                await goodbye(other)
                await client.send(
                    Credit(1, AMPLE),
                    Subscribe(3, "/a", "earliest", {}, None, None, AMPLE),
                    Provide(2, "/more"),
                    Request(9, 0, "/dtc", {}, b"", False, 1.0),
                    Unprovide(1),
                    Unprovide(99),
                    Bid(1, True),
                    Reply(1, None, {}, b"", True),
                    SavePosition(1, {bus.broker_id: {"/a": 200}}),
                    Unsubscribe(2),
                    Ping(77),
                    client.batch("/a", [b"still taken"]),
                )
                await other.send(other.batch("/live", [b"x"], LIVE), other.batch("/a", [b"y"]))
                events = await other.barrier() + await client.barrier()
                for each in (client, other):
                    await each.send(Goodbye("bye", []))
                    events += await each.ended()
            await leaver.gone.wait()
        check_answers(events)
        async with machine.bus() as bus, bus.client() as client:
            answer = await client.subscribe("/a", durable="me")
            assert 200 in [topics["/a"] for topics in answer.position.values()]

    machine.run(main)


def check_answers(events: list[Event]) -> None:
    for event in events:
        assert isinstance(event, Control), event
        assert (Side.LISTENER, event.TYPE) in CLIENT_TABLE[State.LISTENER_LEFT], event
    refused = {(e.code, e.refused, e.about) for e in events if isinstance(e, Error)}
    assert refused == {
        ("DRAINING", FrameType.SUBSCRIBE, 3),
        ("DRAINING", FrameType.PROVIDE, 2),
        ("DRAINING", FrameType.REQUEST, 9),
    }
    assert Pong(77) in events
    assert len([e for e in events if isinstance(e, Ack)]) == 2


async def test_a_node_can_be_started_again_and_again_on_its_data(tmp_path: Path) -> None:
    for start in range(5):
        async with real_bus(tmp_path) as bus, bus.client(start) as client:
            await publish(client, "/a", numbered(1, 3))
            answer = await client.subscribe("/a", "latest")
            assert [topics["/a"] for topics in answer.position.values()] == [3] * (start + 1)
