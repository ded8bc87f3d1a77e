"""Who a node is: a name that stays, and a brokerId for each start and after a failed write."""

import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import trio

from busnode.node import node as node_module
from busnode.node.identity import find_name
from busnode.node.incarnation import PAUSE_S_MAX
from busnode.node.status import status, unready
from busnode.segments.retention import Expired
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.wire.control import Ack, Error, SavePosition
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, LogId, Topic

from .raw_client import LIVE, Bus, Delivered, Journal, RawClient, SimulatedMachine, real_bus

# The name -----------------------------------------------------------------------------------------


def test_a_name_stays_with_its_directory() -> None:
    disk = SimDisk()
    assert find_name(disk, "/data", None, "host") == "host"
    assert find_name(disk, "/data", None, "other-host") == "host"
    assert find_name(disk, "/data", "chosen", "host") == "chosen"
    assert find_name(disk, "/data", None, "host") == "chosen"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"name": 5}', b'{"name": ""}', b"\xff\x00"])
def test_a_damaged_name_is_replaced_and_stops_nobody(damage: bytes) -> None:
    disk = SimDisk()
    disk.make_directory("/data")
    file = disk.append_to("/data/node.json")
    file.append(damage)
    file.close()
    assert find_name(disk, "/data", None, "host") == "host"
    assert find_name(disk, "/data", None, "other") == "host"


def test_a_name_survives_a_power_loss() -> None:
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    find_name(disk, "/data", "chosen", "host")
    disk.power_loss()
    assert find_name(disk, "/data", None, "host") == "chosen"


async def test_each_start_has_a_broker_id_of_its_own_and_the_old_logs_are_read(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        first = bus.broker_id
        await client.publish("/a", [b"old"])
        await client.acked(1)
    async with real_bus(tmp_path) as bus, bus.client() as client:
        assert bus.broker_id != first
        assert client.welcome is not None
        assert client.welcome.broker_id == bus.broker_id
        assert client.welcome.node == "n1"
        await client.subscribe("/a", "earliest")
        assert await client.messages(1) == [(1, b"old")]


async def test_a_port_that_is_taken_leaves_no_incarnation_behind(tmp_path: Path) -> None:
    async with real_bus(tmp_path / "one") as bus:
        taken = bus.node.address
        for settings in ({"port": taken.port}, {"http_port": taken.port}):
            with pytest.raises(OSError, match=str(taken)) as raised:
                async with real_bus(tmp_path / "two", **settings):
                    pass
            assert raised.value.errno == errno.EADDRINUSE
    assert list((tmp_path / "two" / "logs").iterdir()) == []


# When the disk fails ------------------------------------------------------------------------------


class Failing:
    """A node on a disk whose faults a test can choose, a publisher and a reader of everything."""

    def __init__(self, machine: SimulatedMachine, bus: Bus, client: RawClient, reader: RawClient):
        self.disk = machine.disk
        self.bus = bus
        self.node = bus.node
        self.client = client
        self.reader = reader
        self.journal = Journal()

    async def publish(self, payload: bytes, topic: str = "/a") -> Ack | Error:
        """What one message is answered with."""
        await self.client.publish(topic, [payload])
        return await self.answer()

    async def answer(self) -> Ack | Error:
        while True:
            event = await self.client.receive()
            if isinstance(event, Ack | Error):
                return event

    async def read(self, count: int) -> dict[BrokerId, list[bytes]]:
        """What the reader has got of /a when it has so much of all, by brokerId."""
        while self.journal.count() < count:
            self.journal.take(await self.reader.receive())
        assert not self.journal.gaps
        return {
            log_id.broker_id: payloads
            for log_id, payloads in self.journal.payloads.items()
            if log_id.topic == "/a"
        }


@asynccontextmanager
async def failing(machine: SimulatedMachine) -> AsyncGenerator[Failing, None]:
    # These clients answer no PING, and virtual minutes pass.
    async with (
        machine.bus(heartbeat_s=1e6) as bus,
        bus.client() as client,
        bus.client(2) as reader,
    ):
        await reader.subscribe("/*", "earliest")
        yield Failing(machine, bus, client, reader)


def simulated(main: Callable[[Failing], Awaitable[None]], seed: int = 0) -> None:
    machine = SimulatedMachine(seed)

    async def run() -> None:
        async with failing(machine) as there:
            await main(there)

    machine.run(run)


def is_segment(path: str) -> bool:
    return path.endswith(".seg")


def is_bucket(path: str) -> bool:
    """An incarnation's folder."""
    return path.startswith("/data/logs/") and path.count("/") == 3


def test_after_a_failed_sync_the_node_goes_on_under_a_new_broker_id() -> None:
    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        assert isinstance(await there.publish(b"1"), Ack)
        there.disk.arm(DiskFault.SYNC_EIO, is_segment)
        refused = await there.publish(b"2")
        assert isinstance(refused, Error)
        assert (refused.code, refused.about, refused.retry_after_s) == ("UNAVAILABLE", 2, 0.0)

        await there.client.send(there.client.batch("/a", [b"2"], seq=2))
        again = await there.answer()
        second = there.bus.broker_id
        assert second != first
        assert again == Ack(second, "local", [(2, 1, 1)])
        assert isinstance(await there.publish(b"3"), Ack)
        assert await there.read(3) == {first: [b"1"], second: [b"2", b"3"]}
        assert unready(there.node) is None

        async with there.bus.client(3) as later:
            assert later.welcome is not None
            assert later.welcome.broker_id == second
            subscribed = await later.subscribe("/a", "earliest")
            assert subscribed.position == {first: {"/a": 0}, second: {"/a": 0}}
        found = status(there.node)
        assert found["incarnations"] == 2
        assert found["counters"]["logs_poisoned"] == 1
        poisoned = [log["poisoned"] for log in found["logs"] if log["broker_id"] == first.hex()]
        assert poisoned[0].startswith("sync failed")

    simulated(main)


@pytest.mark.parametrize("fault", [DiskFault.APPEND_EIO, DiskFault.APPEND_ENOSPC])
def test_after_a_failed_append_too(fault: DiskFault) -> None:
    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        assert isinstance(await there.publish(b"1"), Ack)
        there.disk.arm(fault, is_segment)
        refused = await there.publish(b"2")
        assert isinstance(refused, Error)
        assert (refused.code, refused.about, refused.retry_after_s) == ("UNAVAILABLE", 2, 1.0)
        await there.bus.settled(lambda: there.bus.broker_id != first)
        await there.client.send(there.client.batch("/a", [b"2"], seq=2))
        assert await there.answer() == Ack(there.bus.broker_id, "local", [(2, 1, 1)])
        assert await there.read(2) == {first: [b"1"], there.bus.broker_id: [b"2"]}

    simulated(main)


def test_what_waits_for_a_log_that_fails_is_refused_and_what_is_under_way_is_acked() -> None:
    """One batch is being committed, two are appended behind it, and the next cannot be."""

    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        assert isinstance(await there.publish(b"1"), Ack)
        there.disk.arm(DiskFault.SYNC_SLOW, is_segment)
        there.disk.arm(DiskFault.APPEND_EIO, is_segment, skip=3)
        frames = {seq: there.client.batch("/a", [b"%d" % seq], seq=seq) for seq in (2, 3, 4, 5)}
        for frame in frames.values():
            await there.client.send(frame)
            await trio.sleep(0.01)  # so that each is a run of its own
        answers = [await there.answer() for _ in frames]
        assert answers[0] == Error("UNAVAILABLE", ANY, FrameType.BATCH, 5, 1.0)
        assert answers[1] == Ack(first, "local", [(2, 1, 2)])
        assert answers[2] == Error("UNAVAILABLE", ANY, FrameType.BATCH, 3, 0.0)
        assert answers[3] == Error("UNAVAILABLE", ANY, FrameType.BATCH, 4, 0.0)
        second = there.bus.broker_id
        assert second != first
        assert all(each.uncommitted_bytes == 0 for each in there.node.sessions.values())
        await there.client.send(*frames.values())
        assert await there.client.acked(4) == {2: 2, 3: 1, 4: 2, 5: 3}
        assert await there.read(5) == {first: [b"1", b"2"], second: [b"3", b"4", b"5"]}

    for seed in range(20):
        simulated(main, seed)


def test_a_repeat_of_what_was_committed_before_the_failure_is_still_one() -> None:
    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        assert isinstance(await there.publish(b"1"), Ack)
        there.disk.arm(DiskFault.SYNC_EIO, is_segment)
        assert isinstance(await there.publish(b"2"), Error)
        assert there.bus.broker_id != first
        await there.client.send(there.client.batch("/a", [b"1"], seq=1))
        assert await there.answer() == Ack(first, "local", [(1, 1, 1)])
        assert there.node.publishing.repeats == 1

    simulated(main)


def test_all_topics_move_to_the_new_incarnation_and_healthy_logs_are_finished() -> None:
    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        for topic in ("/a", "/b"):
            assert isinstance(await there.publish(b"1", topic), Ack)
        there.disk.arm(DiskFault.SYNC_EIO, is_segment)
        assert isinstance(await there.publish(b"2", "/a"), Error)
        answer = await there.publish(b"2", "/b")
        assert isinstance(answer, Ack)
        assert answer.broker_id == there.bus.broker_id != first
        healthy = there.node.store.get(LogId(first, Topic("/b")))
        assert healthy is not None
        assert (healthy.poisoned, healthy.committed_no) == (None, 1)

    simulated(main)


def test_when_no_incarnation_can_begin_persistent_messages_wait_and_all_else_goes_on() -> None:
    async def main(there: Failing) -> None:
        first = there.bus.broker_id
        assert isinstance(await there.publish(b"1"), Ack)
        there.disk.arm(DiskFault.SYNC_EIO, is_segment)
        there.disk.arm(DiskFault.ENTRY_ENOSPC, is_bucket, count=4)
        assert isinstance(await there.publish(b"2"), Error)
        refused = await there.publish(b"3")
        assert isinstance(refused, Error)
        assert (refused.code, refused.retry_after_s) == ("UNAVAILABLE", 1.0)
        assert "No space left" in refused.text
        reason = unready(there.node)
        assert reason is not None
        assert "No space left" in reason
        assert there.bus.broker_id == first

        await there.client.publish("/live", [b"live"], LIVE)
        found = await there.reader.until(
            lambda found: any(isinstance(e, Delivered) and e.topic == "/live" for e in found)
        )
        assert found
        began = trio.current_time()
        with trio.fail_after(100):
            while there.bus.broker_id == first:
                await trio.sleep(0.1)
        assert 10 < trio.current_time() - began < 20  # 1 + 2 + 4 + 8 s
        assert unready(there.node) is None
        await there.client.send(there.client.batch("/a", [b"2"], seq=2))
        assert (await there.client.acked(1)) == {2: 1}

    simulated(main)


def test_a_disk_that_fails_again_and_again_is_left_alone_longer_each_time() -> None:
    async def main(there: Failing) -> None:
        there.disk.odds = DiskFaults(append_eio=1.0)
        end = trio.current_time() + 600
        while trio.current_time() < end:
            assert isinstance(await there.publish(b"x"), Error)
            await trio.sleep(0.5)
        tries = len(there.disk.names("/data/logs"))  # each leaves a folder
        assert 5 < tries < 20
        assert status(there.node)["incarnations"] == 1, "none could be made durable"
        there.disk.odds = DiskFaults()
        await trio.sleep(PAUSE_S_MAX + 1)
        assert unready(there.node) is None
        assert isinstance(await there.publish(b"x"), Ack)

    simulated(main)


def test_positions_of_durable_subscriptions_move_to_the_new_incarnation() -> None:
    machine = SimulatedMachine()

    async def main() -> None:
        async with failing(machine) as there:
            assert isinstance(await there.publish(b"1"), Ack)
            first = there.bus.broker_id
            await there.reader.subscribe("/a", "earliest", number=2, durable="me")
            machine.disk.arm(DiskFault.SYNC_EIO, is_segment)
            await there.reader.send(SavePosition(2, {first: {"/a": 1}}))
            await there.bus.settled(lambda: there.bus.broker_id != first)
            await there.bus.settled(lambda: not there.node.store.dirty())
        machine.disk.power_loss()
        async with machine.bus() as bus, bus.client() as client:
            subscribed = await client.subscribe("/a", None, durable="me")
            assert subscribed.position[first] == {"/a": 1}

    machine.run(main)


@pytest.mark.parametrize("seed", range(30))
def test_all_that_was_acked_survives_the_failure_and_a_power_loss(seed: int) -> None:
    machine = SimulatedMachine(seed)

    async def publish() -> set[bytes]:
        acked: set[bytes] = set()
        async with machine.bus() as bus, bus.client() as client:
            machine.disk.odds = DiskFaults(sync_eio=0.05, append_enospc=0.05)
            for seq in range(1, 60):
                await client.send(client.batch("/a", [b"%d" % seq], seq=seq))
                await trio.sleep(0.2)
                for event in await client.barrier():
                    if isinstance(event, Ack):
                        acked |= {b"%d" % first_seq for first_seq, _, _ in event.receipts}
            machine.disk.odds = DiskFaults()
            machine.disk.power_loss()
        return acked

    async def main() -> None:
        acked = await publish()
        assert acked
        async with machine.bus() as bus, bus.client() as client:
            await client.subscribe("/a", "earliest")
            journal = Journal()
            while not acked <= {each for log in journal.payloads.values() for each in log}:
                journal.take(await client.receive())

    machine.run(main)


# Housekeeping -------------------------------------------------------------------------------------


def test_many_logs_that_come_of_age_together_expire_in_steps_and_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_module, "EXPIRED_BEFORE_YIELD", 5)
    machine = SimulatedMachine()

    async def main() -> None:
        async with machine.bus(retain_s=30.0) as bus, bus.client() as client:
            await client.send(*(client.batch(f"/{n}") for n in range(12)))
            await client.acked(12)
            steps: list[int] = []
            expire = bus.node.store.expire

            def counted(*given: Any) -> list[Expired]:
                dropped = expire(*given)
                steps.append(len(dropped))
                return dropped

            monkeypatch.setattr(bus.node.store, "expire", counted)
            await trio.sleep(1.5 * bus.node.config.retain_s)
            assert [dropped for dropped in steps if dropped] == [5, 5, 2]
            logs = [bus.node.store.get(LogId(bus.broker_id, Topic(f"/{n}"))) for n in range(12)]
            assert [log and log.first_no for log in logs] == [2] * 12

    machine.run(main)


def test_retention_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    machine = SimulatedMachine()

    async def main() -> None:
        async with machine.bus(retain_s=30.0) as bus, bus.client() as client:
            await client.publish("/a", [b"x"])
            await client.acked(1)
            machine.disk.arm(DiskFault.ENTRY_ENOSPC, is_segment)
            retain_s = bus.node.config.retain_s
            await trio.sleep(retain_s * 1.3)  # it is looked for four times in that time
            assert machine.disk.faults[DiskFault.ENTRY_ENOSPC] == 1
            log = bus.node.store.get(LogId(bus.broker_id, Topic("/a")))
            assert log is not None
            assert log.first_no == 1
            await trio.sleep(retain_s / 4)
            assert log.first_no == 2

    with caplog.at_level(logging.ERROR):
        machine.run(main)
    assert "housekeeping failed" in caplog.messages
