"""Discovery by mDNS, with the real library on the real loopback.

Others may use the same port of this machine at the same time, so each test looks at its own cluster
id, and counts may only be larger than what it did itself.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest
import trio
from zeroconf import (  # type: ignore[attr-defined]  # two that are not in its __all__
    DNSOutgoing,  # pyright: ignore[reportPrivateImportUsage] - likewise
    DNSPointer,  # pyright: ignore[reportPrivateImportUsage] - likewise
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

from busnode.wire.ids import BrokerId
from busnode.world import real_mdns, real_zeroconf
from busnode.world.discovery import Announcement, Hint
from busnode.world.network import Address
from busnode.world.real_inlet import Inlet
from busnode.world.real_mdns import MdnsDiscovery
from busnode.world.real_zeroconf import LOOKUPS_MAX, Counts, Responder
from busnode.world.service_record import SERVICE_TYPE, encode_text, instance_name

LOOPBACK = ["127.0.0.1"]
DEADLINE_S = 60.0
FORGED = 2000
RESPONSE = 0x8400
"""Flags of a packet that answers, of RFC 6762."""


def new_node(name: str = "n") -> Announcement:
    """With ids that no other test and no other process has."""
    cluster_id = f"test-{os.urandom(8).hex()}"
    addresses = (Address("127.0.0.1", 4251), Address("::1", 4251))
    return Announcement(cluster_id, 1, BrokerId(os.urandom(16)), name, addresses)


def service(node: Announcement, **changes: Any) -> ServiceInfo:
    """A node's record as its library would send it, with something wrong if a test wants that."""
    record: dict[str, Any] = {
        "name": instance_name(node.broker_id),
        "port": 4251,
        "properties": encode_text(node),
        "server": f"{node.broker_id.hex()}.local.",
        "parsed_addresses": ["127.0.0.1"],
        **changes,
    }
    return ServiceInfo(SERVICE_TYPE, **record)


def pointer_alone(info: ServiceInfo) -> DNSOutgoing:
    """A packet that names a service and says nothing more of it."""
    out = DNSOutgoing(RESPONSE)
    out.add_answer_at_time(info.dns_pointer(), 0)
    return out


@contextmanager
def stranger() -> Iterator[Zeroconf]:
    """Somebody else on the network, with the library and without our code."""
    zeroconf = Zeroconf(interfaces=LOOPBACK)
    try:
        yield zeroconf
    finally:
        zeroconf.close()


class Goodbyes(RecordUpdateListener):
    """The names of services that somebody has taken back."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        for update in records:
            if isinstance(update.new, DNSPointer) and update.new.is_expired(now):
                self.names.append(update.new.alias)


class Running:
    """A discovery that runs, and what it has found."""

    def __init__(self, discovery: MdnsDiscovery, node: Announcement) -> None:
        self.discovery = discovery
        self.node = node
        self.found: list[Hint] = []
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self) -> None:
        with self.scope:
            await self.discovery.run(self.node, self.found.append)
        self.ended.set()

    def heard_of(self, node: Announcement) -> list[Hint]:
        return [hint for hint in self.found if hint.broker_id == node.broker_id]

    @property
    def works(self) -> bool:
        """Whether it is on the air: it hears at least itself."""
        counted = self.discovery.statistics()
        return counted.failure is None and counted.events > 0


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.002)


@asynccontextmanager
async def running(
    *discoveries: MdnsDiscovery, nodes: list[Announcement] | None = None
) -> AsyncIterator[list[Running]]:
    async with trio.open_nursery() as nursery:
        all_of_them = [
            Running(discovery, nodes[i] if nodes else new_node(f"n{i}"))
            for i, discovery in enumerate(discoveries)
        ]
        for each in all_of_them:
            nursery.start_soon(each.run)
        yield all_of_them
        nursery.cancel_scope.cancel()


class OnTheAir(NamedTuple):
    """The part of a discovery that lives in a thread, to be looked into."""

    responder: Responder
    counts: Counts
    found: list[Hint]

    def heard_of(self, node: Announcement) -> list[Hint]:
        return [hint for hint in self.found if hint.broker_id == node.broker_id]


@asynccontextmanager
async def on_the_air() -> AsyncIterator[OnTheAir]:
    inlet, counts = Inlet[Hint](real_mdns.HINTS_MAX), Counts()
    there = OnTheAir(Responder(new_node(), LOOPBACK, inlet, counts), counts, [])

    async def receive() -> None:
        while True:
            there.found.append(await inlet.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, there.responder.run)
        nursery.start_soon(receive)
        try:
            await until(lambda: counts.working)
            yield there
        finally:
            there.responder.stop()
            nursery.cancel_scope.cancel()


@pytest.mark.scenario
async def test_two_on_one_network_find_each_other_and_all_that_they_say() -> None:
    async with running(MdnsDiscovery(LOOPBACK), MdnsDiscovery(LOOPBACK)) as (one, other):
        await until(lambda: one.heard_of(other.node) and other.heard_of(one.node))
        (hint, *_) = one.heard_of(other.node)
        assert hint == Hint(
            other.node.addresses, "mdns", other.node.cluster_id, 1, other.node.broker_id, "n1"
        )
        assert not one.heard_of(one.node)
        assert one.discovery.statistics().failure is None


@pytest.mark.scenario
async def test_all_interfaces_are_used_unless_some_are_named() -> None:
    async with running(MdnsDiscovery(None), MdnsDiscovery(LOOPBACK)) as (one, other):
        await until(lambda: one.heard_of(other.node) and other.heard_of(one.node))


@pytest.mark.scenario
async def test_who_was_there_before_is_asked_for() -> None:
    before = new_node()
    with stranger() as zeroconf:
        await trio.to_thread.run_sync(zeroconf.register_service, service(before))
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            await until(lambda: one.heard_of(before))


@pytest.mark.scenario
async def test_who_was_cut_off_at_first_is_found_when_it_is_asked_again() -> None:
    silent = new_node()
    with stranger() as zeroconf:
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            await until(lambda: one.works)
            assert zeroconf.loop is not None
            zeroconf.loop.call_soon_threadsafe(zeroconf.registry.async_add, service(silent))
            await until(lambda: one.heard_of(silent))


@pytest.mark.scenario
async def test_who_stops_says_goodbye_in_good_time() -> None:
    with stranger() as zeroconf:
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            name = instance_name(one.node.broker_id)
            known = zeroconf.cache.current_entry_with_name_and_alias
            await until(lambda: known(SERVICE_TYPE, name))
            goodbyes = Goodbyes()
            zeroconf.add_listener(goodbyes, None)
            began = time.perf_counter()
            one.scope.cancel()
            await one.ended.wait()
            assert time.perf_counter() - began < real_mdns.WITHDRAW_S
            await until(lambda: name in goodbyes.names)


@pytest.mark.scenario
async def test_a_goodbye_is_counted_and_nobody_is_told_or_asked() -> None:
    leaving, later = new_node(), new_node()
    with stranger() as zeroconf:
        async with on_the_air() as one:
            zeroconf.send(zeroconf.generate_service_broadcast(service(leaving), None))
            await until(lambda: one.heard_of(leaving))
            events = one.counts.events
            zeroconf.send(zeroconf.generate_service_broadcast(service(leaving), 0))
            await until(lambda: one.counts.events > events)
            zeroconf.send(zeroconf.generate_service_broadcast(service(later), None))
            await until(lambda: one.heard_of(later))
            assert len(one.heard_of(leaving)) == 1
            assert instance_name(leaving.broker_id) not in one.responder._lookups


@pytest.mark.scenario
async def test_withdrawing_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that hangs is left behind."""
    close = AsyncZeroconf.async_close
    let_go = trio.Event()
    entered: list[str] = []

    async def hang(service: AsyncZeroconf) -> None:
        import asyncio

        entered.append("closing")
        while not let_go.is_set():
            await asyncio.sleep(0.01)
        await close(service)
        entered.append("closed")

    monkeypatch.setattr(AsyncZeroconf, "async_close", hang)
    monkeypatch.setattr(real_mdns, "WITHDRAW_S", 0.2)
    async with running(MdnsDiscovery(LOOPBACK)) as (one,):
        await until(lambda: one.works)
        began = time.perf_counter()
        one.scope.cancel()
        with trio.fail_after(DEADLINE_S):
            await one.ended.wait()
        assert time.perf_counter() - began >= 0.2
        assert "closed" not in entered
    let_go.set()
    await until(lambda: entered == ["closing", "closed"])


@pytest.mark.scenario
async def test_one_that_is_cancelled_at_any_moment_ends() -> None:
    for steps in (0, 1, 5, 50):
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            for _ in range(steps):
                await trio.sleep(0.001)
            one.scope.cancel()
            with trio.fail_after(DEADLINE_S):
                await one.ended.wait()


@pytest.mark.scenario
async def test_hints_for_which_there_is_no_room_are_dropped_and_counted() -> None:
    forged = [new_node() for _ in range(20)]
    discovery = MdnsDiscovery(LOOPBACK, hints_max=1)

    class Slow(Running):
        async def run(self) -> None:
            with self.scope:
                await self.discovery.run(self.node, self.take)

        def take(self, hint: Hint) -> None:
            """The loop stands still, as it must not, until something had to be dropped."""
            self.found.append(hint)
            began = time.perf_counter()
            while not discovery.statistics().dropped and time.perf_counter() - began < DEADLINE_S:
                time.sleep(0.001)

    slow = Slow(discovery, new_node())
    with stranger() as zeroconf:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.run)
            await until(lambda: slow.works)
            for node in forged:
                zeroconf.send(zeroconf.generate_service_broadcast(service(node), None))
            await until(lambda: slow.found)
            assert discovery.statistics().dropped > 0
            found = len(slow.found)
            with trio.fail_after(DEADLINE_S):
                while len(slow.found) <= found + 1:  # one may have waited
                    zeroconf.send(zeroconf.generate_service_broadcast(service(new_node()), None))
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@pytest.mark.scenario
async def test_malformed_records_are_counted_and_harm_nobody() -> None:
    good = new_node()
    before: list[int] = []
    forged: list[dict[str, Any]] = [
        {"properties": b""},
        {"properties": b"\xff" * 200},
        {"properties": b"\x05abc"},
        {"properties": {**encode_text(good), b"cluster": b"\xff\xfe"}},
        {"properties": encode_text(good)},
        {"port": 0},
        {"parsed_addresses": ["224.0.0.1"]},
        {"name": f"printer.{SERVICE_TYPE}"},
    ]
    with stranger() as zeroconf:
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            await until(lambda: one.works)
            for changes in forged:
                before.append(one.discovery.statistics().malformed)
                info = service(new_node("forged"), **changes)
                zeroconf.send(zeroconf.generate_service_broadcast(info, None))
                await until(lambda: one.discovery.statistics().malformed > before[-1])
            zeroconf.send(zeroconf.generate_service_broadcast(service(good), None))
            await until(lambda: one.heard_of(good))
            assert "forged" not in [hint.name for hint in one.found]


@pytest.mark.scenario
async def test_a_record_without_a_text_is_asked_for_and_then_given_up() -> None:
    bare, whole = new_node(), new_node()
    with stranger() as zeroconf:
        async with running(MdnsDiscovery(LOOPBACK)) as (one,):
            await until(lambda: one.works)
            zeroconf.send(pointer_alone(service(bare)))
            assert zeroconf.loop is not None
            zeroconf.loop.call_soon_threadsafe(zeroconf.registry.async_add, service(whole))
            zeroconf.send(pointer_alone(service(whole)))
            await until(lambda: one.heard_of(whole))
            await until(lambda: one.discovery.statistics().malformed > 0)
            assert not one.heard_of(bare)


@pytest.mark.scenario
async def test_thousands_of_forged_records_take_no_room_and_a_good_one_comes_through() -> None:
    good = new_node()
    sent: list[int] = []
    lookups: list[int] = []
    listeners: list[int] = []
    with stranger() as zeroconf:
        async with on_the_air() as one:
            for i in range(FORGED):
                info = service(new_node())
                whole = zeroconf.generate_service_broadcast(info, None)
                zeroconf.send(whole if i % 2 else pointer_alone(info))
                if i % 20 == 0:  # no faster than it is heard: the kernel would drop the rest
                    sent.append(i)
                    with trio.move_on_after(1):
                        await until(lambda: one.counts.events > sent[-1])
                    lookups.append(len(one.responder._lookups))
                    listeners.append(len(one.responder._zeroconf.listeners))
            zeroconf.send(zeroconf.generate_service_broadcast(service(good), None))
            await until(lambda: one.heard_of(good))
            assert one.counts.events > FORGED / 2
            assert one.counts.dropped > FORGED / 4
            assert 0 < max(lookups) <= LOOKUPS_MAX
            assert max(listeners) <= LOOKUPS_MAX + 1, "each lookup listens, and so do we"
            assert len(one.responder._heard) <= 1
    assert not one.responder._lookups


@pytest.mark.scenario
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_where_multicast_is_impossible_it_says_so_once_and_goes_on_trying(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The library leaves a socket to the garbage collector when it fails; hence the filter."""
    interfaces = ["203.0.113.77"]  # no address of this machine
    discovery = MdnsDiscovery(interfaces, retry_s=0.02)
    with caplog.at_level(logging.WARNING, "busnode"):
        async with running(discovery, MdnsDiscovery(LOOPBACK)) as (one, other):
            await until(lambda: discovery.statistics().failure)
            assert "No such device" in (discovery.statistics().failure or "")
            for _ in range(10):
                await trio.sleep(0.02)
            interfaces[:] = LOOPBACK
            await until(lambda: one.heard_of(other.node) and other.heard_of(one.node))
            assert discovery.statistics().failure is None
    warnings = [record.message for record in caplog.records if "mDNS" in record.message]
    assert len(warnings) == 1
    assert "No such device" in warnings[0]


@pytest.mark.scenario
async def test_one_that_does_not_hear_itself_says_so_whomever_else_it_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an interface it hears others on this machine all the same."""
    monkeypatch.setattr(real_zeroconf, "DEAF_S", 2.0)
    monkeypatch.setattr(real_zeroconf, "ASK_AGAIN_S", 0.2)
    async with running(MdnsDiscovery(LOOPBACK)) as (other,):
        await until(lambda: other.works)
        async with running(MdnsDiscovery([])) as (one,):
            await until(lambda: one.discovery.statistics().failure)
            assert "our own announcement" in (one.discovery.statistics().failure or "")
            assert one.heard_of(other.node)


async def test_a_node_without_a_numeric_address_says_so() -> None:
    nameless = new_node()._replace(addresses=(Address("some.example", 1),))
    async with running(MdnsDiscovery(LOOPBACK), nodes=[nameless]) as (one,):
        await until(lambda: one.discovery.statistics().failure)
        assert "no numeric address" in (one.discovery.statistics().failure or "")
