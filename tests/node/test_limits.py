"""Limits by address, by identity and of memory, in the protocol's own words."""

from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from busnode.node.memory_budget import MemoryBudget
from busnode.node.node import RunningNode
from busnode.node.session import ClientSession
from busnode.wire.control import Dropped, Error, Hello, Subscribe
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.producer_tag import tagged

from .raw_client import AMPLE, LIVE, Bus, SimulatedMachine, dialled, real_bus


def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes a client's name for its identity, as if it had proved it."""
    welcome = RunningNode.welcome

    def welcome_known(node: RunningNode, session: ClientSession, hello: Hello) -> bytes:
        session.identity = hello.name
        return welcome(node, session, hello)

    monkeypatch.setattr(RunningNode, "welcome", welcome_known)


async def refusal(bus: Bus) -> Error:
    async with bus.stranger() as client:
        (error,) = await client.ended()
        assert isinstance(error, Error)
        return error


# By address -----------------------------------------------------------------------------------


async def test_one_address_has_no_more_connections_than_it_may(tmp_path: Path) -> None:
    async with real_bus(tmp_path, limit_loopback=True, connections_per_address=2) as bus:
        async with bus.client(), bus.client():
            error = await refusal(bus)
            assert error.code == "LIMIT_REACHED"
            assert "--connections-per-address" in error.text
            assert bus.node.doors.clients.refused == 1
        await bus.settled(lambda: not bus.node.sessions)
        async with bus.client():
            pass


async def test_this_machine_is_not_counted_unless_it_is_said(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path, connections_per_address=1, handshake_burst=1) as bus,
        bus.client(), bus.client(), bus.client(),
    ):  # fmt: skip
        assert bus.node.doors.clients.refused == 0


def test_who_comes_too_often_is_refused_until_some_time_has_passed() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus(handshakes_per_address=2, handshake_burst=3) as bus:
            for _ in range(3):
                async with bus.client():
                    pass
            error = await refusal(bus)
            assert "--handshakes-per-address" in error.text
            assert error.retry_after_s == 1.0
            await trio.sleep(0.6)
            async with bus.client():
                pass
            assert (await refusal(bus)).code == "LIMIT_REACHED"

    machine.run(main)


async def test_who_does_not_greet_makes_way_for_who_comes_later(tmp_path: Path) -> None:
    async with real_bus(tmp_path, half_open_max=10) as bus, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(bus.stranger()) for _ in range(30)]
        for client in silent:
            await client.send(b"\0")  # a byte now and then does not help
        await bus.settled(lambda: bus.node.doors.clients.pushed_out == 20)
        assert bus.node.doors.clients.half_open == 10
        assert not bus.node.sessions
        async with bus.client() as good:
            await good.publish("/a")
            await good.acked(1)
        assert await silent[0].ended() == []


async def test_who_does_not_greet_takes_no_client_s_place(tmp_path: Path) -> None:
    async with real_bus(tmp_path, clients_max=2) as bus, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(bus.stranger()) for _ in range(5)]
        await bus.settled(lambda: bus.node.doors.clients.half_open == 5)
        async with bus.client(), bus.client():
            await strangers[0].send(Hello(PROTOCOL_VERSION, "late", 1))
            (error,) = await strangers[0].ended()
            assert isinstance(error, Error)
            assert "--clients-max" in error.text


async def test_the_door_for_nodes_has_its_own_crowd(tmp_path: Path) -> None:
    async with real_bus(tmp_path, half_open_max=5, peer_port=0, mdns=False) as bus:
        assert bus.node.listeners.peer is not None
        address = bus.node.listeners.peer.address
        async with AsyncExitStack() as stack:
            for _ in range(20):
                await stack.enter_async_context(dialled(bus.network, address))
            await bus.settled(lambda: bus.node.doors.peers.pushed_out == 15)
            assert bus.node.doors.peers.half_open == 5
            async with bus.client():
                assert bus.node.doors.clients.pushed_out == 0
        await bus.settled(lambda: bus.node.doors.peers.half_open == 0)


# By identity ----------------------------------------------------------------------------------


async def test_an_identity_has_no_more_connections_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)
    async with real_bus(tmp_path, connections_per_identity=2) as bus:
        async with (
            bus.client(name="anna"), bus.client(name="anna"), bus.client(name="bert"),
            bus.stranger() as client,
        ):  # fmt: skip
            await client.send(Hello(PROTOCOL_VERSION, "anna", 1))
            (error,) = await client.ended()
            assert isinstance(error, Error)
            assert error.code == "LIMIT_REACHED"
            assert "--connections-per-identity" in error.text
        await bus.settled(lambda: not bus.node.sessions)
        async with bus.client(name="anna"):
            pass


async def test_subscriptions_of_an_identity_are_counted_over_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)
    async with (
        real_bus(tmp_path, subscriptions_per_identity=3) as bus,
        bus.client(name="anna") as first,
        bus.client(name="bert") as other,
    ):
        async with bus.client(name="anna") as second:
            await first.subscribe("/a", number=1)
            await first.subscribe("/b", number=2)
            await second.subscribe("/c", number=1)
            await second.send(Subscribe(2, "/d", None, {}, None, None, AMPLE))
            error = await second.refused()
            assert error.code == "LIMIT_REACHED"
            assert "--subscriptions-per-identity" in error.text
            await other.subscribe("/a")
        await bus.settled(lambda: len(bus.node.sessions) == 2)
        await first.subscribe("/d", number=3)  # the other has left, and its own with it


def timed(
    monkeypatch: pytest.MonkeyPatch, amount: Callable[[Any], bytes], **settings: Any
) -> float:
    """How long ten publishes take, in virtual time."""
    known(monkeypatch)
    machine = SimulatedMachine(2)
    took_s = 0.0

    async def main() -> None:
        nonlocal took_s
        async with machine.bus(**settings) as bus, bus.client(tagged(1, "anna"), "anna") as client:
            began = trio.current_time()
            for _ in range(10):
                await client.send(amount(client))
                with trio.fail_after(1000):
                    await client.acked(1)
            with trio.fail_after(1000):
                await client.barrier()
            took_s = trio.current_time() - began
            assert len(bus.node.sessions) == 1

    machine.run(main)
    return took_s


def test_who_publishes_more_than_it_may_is_read_from_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hundred(client: Any) -> bytes:
        return bytes(client.batch("/a", [b"x"] * 100))

    assert timed(monkeypatch, hundred) < 1
    took_s = timed(monkeypatch, hundred, publish_rate=100)
    assert 8.5 < took_s < 10.5  # a thousand, of which a hundred at once


def test_the_same_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(client: Any) -> bytes:
        return bytes(client.batch("/a", [bytes(10_000)]))

    assert timed(monkeypatch, large) < 1
    assert 8.5 < timed(monkeypatch, large, publish_size_rate=10_000) < 10.5


def test_a_client_that_is_read_from_later_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def many(client: Any) -> bytes:
        return bytes(client.batch("/a", [b"x"] * 1000))

    assert timed(monkeypatch, many, publish_rate=10, heartbeat_s=1.0) > 300


def test_bytes_in_flight_are_counted_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)

    async def main() -> None:
        async with real_bus(tmp_path, in_flight_per_identity=1000) as bus:
            async with bus.client(tagged(1, "anna"), "anna") as client:
                session = bus.session(client)
                account = session.account
                assert account is not None
                for _ in range(20):
                    await client.publish("/a", [bytes(900)])
                await client.acked(20)
                assert account.in_flight_bytes == 0
                await client.publish("/a", [bytes(900)] * 10)
            await bus.settled(lambda: not bus.node.sessions)
            assert account.in_flight_bytes == 0

    trio.run(main)


# Memory ---------------------------------------------------------------------------------------


async def test_a_budget_is_full_until_there_is_some_room_again() -> None:
    budget = MemoryBudget(100)
    found: list[bool] = []
    for change_bytes in (100, 1, -5, -6):
        budget.add(change_bytes)
        found.append(budget.is_full)
    assert found == [False, True, True, False]
    assert budget.times_full == 1
    with trio.fail_after(1):
        await budget.wait_for_room(1000)


async def test_who_does_not_read_loses_what_is_not_persistent_when_memory_is_short(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path, memory_max=3 * 1024 * 1024) as bus:
        async with bus.client() as out, bus.client() as slow, bus.client() as good:
            await slow.subscribe("/*", number=1)
            await slow.subscribe("/live/+", number=2)
            await good.subscribe("/kept")
            for number in range(200):
                await out.publish(f"/live/{number % 5}", [bytes(100_000)], LIVE)
            await out.publish("/kept", [b"safe"])
            await out.acked(1)
            assert await good.messages(1) == [(1, b"safe")]
            budget = bus.node.doors.budget
            assert budget.times_full > 0
            await bus.settled(lambda: not budget.is_full)
            dropped = sum(
                s.dropped_total for s in bus.node.subscriptions.of(bus.session(slow)).values()
            )
            assert dropped > 100
            # It is told, and has what is persistent.
            events = await slow.until(lambda events: any(isinstance(e, Dropped) for e in events))
            assert events
        await bus.settled(lambda: not bus.node.sessions)
        assert bus.node.doors.budget.used_bytes == 0


async def test_frames_that_are_never_finished_are_let_go_when_memory_is_short(
    tmp_path: Path,
) -> None:
    most = 20 * 1024 * 1024
    async with (
        real_bus(tmp_path, memory_max=most) as bus, bus.client() as good, AsyncExitStack() as stack
    ):  # fmt: skip
        large = good.batch("/large", [bytes(6_000_000)])
        hostile = [await stack.enter_async_context(bus.client()) for _ in range(8)]
        for client in hostile:
            with suppress(OSError):  # it is let go meanwhile
                await client.send(large[:-1])
        budget = bus.node.doors.budget
        assert budget.times_full > 0
        await bus.settled(lambda: not budget.is_full)
        assert budget.used_bytes < most
        await good.publish("/a")
        await good.acked(1)


async def test_nobody_new_is_let_in_while_memory_is_short(tmp_path: Path) -> None:
    async with real_bus(tmp_path, memory_max=1024 * 1024) as bus:
        budget = bus.node.doors.budget
        budget.add(2 * 1024 * 1024)
        error = await refusal(bus)
        assert error.code == "LIMIT_REACHED"
        assert "--memory-max" in error.text
        budget.add(-2 * 1024 * 1024)
        async with bus.client():
            pass
