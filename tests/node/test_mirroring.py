"""Mirrors in the simulator: what was acked as mirrored survives the loss of its origin."""

from contextlib import closing

import pytest
import trio

import busnode
from busnode.client import Bus, Gap, MemoryCursorStore, Message, Subscription
from busnode.node.subscriptions import LOOK_EVERY_S
from busnode.node.unknown_cursors import RETURN_S
from busnode.replication.mirror_progress import SILENT_S
from busnode.segments.log import FileLog
from busnode.segments.retention import RetentionRules
from busnode.testing.sim import DiskFault, SimDisk
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.control import Ack, Ping, encode_control
from busnode.wire.frames import Flags
from busnode.wire.ids import BrokerId, LogId, MsgNo, Pattern, Topic
from busnode.world.network import Address

from .raw_client import dialled
from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster

SEEDS = pytest.mark.parametrize("seed", range(3))


async def take(messages: Subscription, count: int) -> list[Message]:
    with trio.fail_after(60):
        return [await anext(messages) for _ in range(count)]


async def mirrored(cluster: SimulatedCluster, *names: str) -> None:
    """Wait until these nodes have a mirror in force."""
    for name in names:
        mirroring = cluster[name].node.mirroring
        await cluster.until(lambda mirroring=mirroring: mirroring.in_force, "a mirror")  # type: ignore[misc]


async def publish(bus: Bus, topic: str, numbers: range) -> set[str]:
    """The levels that were reached."""
    levels = set()
    for number in numbers:
        levels.add((await bus.publish(topic, b"%d" % number, persistent=True)).level)
    return levels


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.payload) for message in messages]


def test_a_lone_node_acks_as_local_and_one_with_a_mirror_as_mirrored() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a") as bus:
            assert await publish(bus, "/t", range(3)) == {"local"}
            await cluster.add("b")
            await mirrored(cluster, "a", "b")
            assert await publish(bus, "/t", range(3, 6)) == {"mirrored"}
            origin = cluster["a"].node.broker_id
            copies = [log for log in cluster["b"].node.store.logs() if log.log_id[0] == origin]
            (copy,) = (log for log in copies if log.log_id.topic == "/t")
            assert copy.committed_no == 6, "also what was there before it was chosen"


@SEEDS
def test_a_mirrored_message_survives_its_origin_and_the_origins_disk(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        store = MemoryCursorStore()
        async with cluster.client("a", name="publisher") as publisher:
            async with (
                cluster.client("c", name="consumer") as consumer,
                consumer.subscribe("/t", cursors=store) as messages,
            ):
                assert await publish(publisher, "/t", range(10)) == {"mirrored"}
                assert numbers(await take(messages, 10)) == list(range(10))
                messages.done()
            assert await publish(publisher, "/t", range(10, 50)) == {"mirrored"}
        await cluster["a"].kill()
        cluster["a"].disk = SimDisk(f"{seed} new disk")
        # Away for the rest of the broker's life; now it comes back with its old cursor.
        for home in ("b", "c"):
            async with (
                cluster.client(home, name=f"consumer at {home}") as consumer,
                consumer.subscribe("/t", cursors=MemoryCursorStore(await store.load()),
                                   on_gap="raise") as messages,
            ):  # fmt: skip
                assert numbers(await take(messages, 40)) == list(range(10, 50))


@SEEDS
def test_a_consumer_that_stayed_gets_the_rest_from_the_mirror_without_doing_anything(
    seed: int,
) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        async with (
            cluster.client("b", name="at b") as at_b,
            cluster.client("c", name="at c") as at_c,
            at_b.subscribe("/t", on_gap="raise") as near,
            at_c.subscribe("/t", on_gap="raise") as far,
        ):
            async with cluster.client("a", name="publisher") as publisher:
                await publish(publisher, "/t", range(10))
                mirror = next(iter(cluster["a"].node.mirroring.streams.values())).link.name
                other = "c" if mirror == "b" else "b"
                # The way to the other one is cut: it does not hear of what is committed now.
                cluster.network.partition("a", other)
                assert await publish(publisher, "/t", range(10, 40)) == {"mirrored"}
            await cluster["a"].kill()
            assert numbers(await take(near, 40)) == list(range(40))
            assert numbers(await take(far, 40)) == list(range(40))


@SEEDS
def test_when_both_lose_power_at_once_nothing_acked_is_lost(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(30))
        await cluster.lose_power("ab")
        for name in "ab":
            await cluster[name].start()
        await cluster.meshed()
        async with (
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 30)) == list(range(30))


def test_a_mirror_that_is_silent_is_let_go_and_another_one_chosen() -> None:
    @on_cluster(0, "a", "b", "c", link_heartbeat_s=15.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a")
        first = next(iter(cluster["a"].node.mirroring.streams.values())).link.name
        async with cluster.client("a", name="publisher") as publisher:
            cluster.network.partition("a", first)
            began = trio.current_time()
            assert await publish(publisher, "/t", range(1)) == {"local"}
            assert 1.5 < trio.current_time() - began < 4, "as long as a mirror may be silent"
            await mirrored(cluster, "a")
            now = next(iter(cluster["a"].node.mirroring.streams.values())).link.name
            assert now != first
            assert await publish(publisher, "/t", range(1, 3)) == {"mirrored"}


def test_a_publish_does_not_wait_for_a_mirror_to_which_nothing_can_be_sent() -> None:
    """Something else fills the socket: what acks wait for was not even sent."""

    @on_cluster(0, "a", "b", link_heartbeat_s=20.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a")
        (link,) = cluster["a"].node.peers.links.values()
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(1))
            cluster.network.partition("a", "b")
            while not link.outgoing.blocked:
                link.send(encode_control(Ping(0)) * 1000)
            began = trio.current_time()
            assert await publish(publisher, "/t", range(1, 2)) == {"local"}
            assert trio.current_time() - began < SILENT_S + 1


def test_a_node_that_requires_a_mirror_refuses_without_one_and_appends_nothing() -> None:
    @on_cluster(0, "a", require_mirror=True)
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="publisher") as publisher:
            with pytest.raises(busnode.NotMirrored) as raised:
                await publisher.publish("/t", b"0", persistent=True)
            assert raised.value.retry_after_s
            assert not list(cluster["a"].node.router.logs(Pattern("/t")))
            await publisher.publish("/t", b"not persistent")
            await cluster.add("b")
            await mirrored(cluster, "a")
            assert await publish(publisher, "/t", range(3)) == {"mirrored"}


def test_what_one_holder_has_dropped_comes_from_another_and_is_no_gap() -> None:
    @on_cluster(0, "a", "b", "c", segment_bytes_max=4096)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(200))
        await trio.sleep(10)
        rules = RetentionRules(1.0, None, None)
        assert cluster["a"].node.store.expire(rules), "the origin drops what is old"
        for home in ("b", "c"):
            async with (
                cluster.client(home, name=f"consumer at {home}") as consumer,
                consumer.subscribe("/t", start=busnode.Position(), on_gap="raise") as messages,
            ):
                assert numbers(await take(messages, 200)) == list(range(200))


def test_who_was_shown_by_a_mirror_what_the_origin_has_not_synced_lacks_nothing() -> None:
    @on_cluster(1, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        gaps: list[Gap] = []
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", "a", name="reader") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap=gaps.append) as messages,
        ):
            await publish(publisher, "/t", range(3))
            assert numbers(await take(messages, 3)) == list(range(3))
            cluster["a"].disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=8.0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, publisher, "/t", range(3, 4))
                assert numbers(await take(messages, 1)) == [3]
                log = cluster["a"].node.store.get(LogId(cluster["a"].node.broker_id, Topic("/t")))
                assert log is not None
                assert log.committed_no == 3, "it was shown by its mirror"
                await cluster["b"].kill()
                cluster["a"].disk.odds = DiskFaults()
            await publish(publisher, "/t", range(4, 6))
            assert numbers(await take(messages, 2)) == [4, 5]
            await trio.sleep(RETURN_S + 2 * LOOK_EVERY_S)
            assert gaps == []


@pytest.mark.parametrize("home", ["b", "c"])
@pytest.mark.parametrize("less", ["a", "b"])
def test_a_gap_is_what_all_holders_have_dropped_and_no_more(less: str, home: str) -> None:
    """Segments end elsewhere in each copy, so retention does not drop the same."""

    @on_cluster(0, "a", "b", "c", segment_bytes_max=4096, mirror="b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(200))
        first_no = MsgNo(0)
        for name in "ab":
            log = cluster[name].node.store.get(LogId(origin, Topic("/t")))
            assert isinstance(log, FileLog)
            for _ in range(2 if name == less else 3):
                log.drop_first()
            if name == less:
                first_no = log.first_no
        gaps: list[Gap] = []
        async with (
            cluster.client(home, name="consumer") as consumer,
            consumer.subscribe("/t", start=busnode.Position(), on_gap=gaps.append) as messages,
        ):
            got = numbers(await take(messages, 201 - first_no))
        assert got == list(range(first_no - 1, 200))
        assert [(gap.first, gap.last) for gap in gaps] == [(1, first_no - 1)]


def test_what_a_mirror_has_beyond_its_origin_is_read_at_the_origin_and_is_no_gap() -> None:
    """A mirror may have synced what its origin had not when the power of both was cut."""

    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        origin = cluster["a"].node.broker_id
        cursors = MemoryCursorStore()
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t/*", start="earliest", cursors=cursors) as messages,
        ):
            await publish(publisher, "/t/1", range(20))
            await publish(publisher, "/t/2", range(20, 30))
            assert sorted(numbers(await take(messages, 30))) == list(range(30))
            messages.done()
        await cluster["a"].kill()
        lose(cluster["a"].disk, origin)
        await cluster["a"].start()
        await cluster.meshed()
        own = {log.log_id.topic: log for log in cluster["a"].node.store.logs()
               if log.log_id.broker_id == origin}  # fmt: skip
        assert own.keys() == {"/t/1"}, "of the second it has lost the name too"
        assert 0 < own[Topic("/t/1")].committed_no < 20
        async with (
            cluster.client("a", name="next publisher") as publisher,
            cluster.client("a", name="next consumer") as consumer,
            consumer.subscribe("/t/*", cursors=cursors, on_gap="raise") as returning,
            consumer.subscribe("/t/*", start="earliest", on_gap="raise") as other,
        ):
            with trio.fail_after(5):  # long before anything is repaired
                assert sorted(numbers(await take(other, 30))) == list(range(30))
            await publish(publisher, "/t/1", range(30, 33))
            assert numbers(await take(other, 3)) == [30, 31, 32]
            assert numbers(await take(returning, 3)) == [30, 31, 32]
            store = cluster["a"].node.store

            def complete() -> bool:
                logs = [store.get(LogId(origin, Topic(topic))) for topic in ("/t/1", "/t/2")]
                return [log and log.committed_no for log in logs] == [20, 10]

            await cluster.until(complete, "it is given what it lacks")
            await publish(publisher, "/t/1", range(33, 35))
            assert numbers(await take(other, 2)) == [33, 34]
            assert numbers(await take(returning, 2)) == [33, 34]
            assert other.statistics().repeats == 0, "nothing was sent again"


def lose(disk: SimDisk, origin: BrokerId) -> None:
    """Half of the first log of an incarnation, and all of the second."""
    folder = f"/data/logs/{origin.hex()}"
    for name in disk.names(folder):
        # Also the index of the first: it knows how far the log was synced.
        if name.startswith("00000002") or name.endswith(".idx"):
            disk.remove(f"{folder}/{name}")
    (name,) = disk.names(folder)
    with closing(disk.open(f"{folder}/{name}")) as file:
        size_bytes = file.size_bytes()
    disk.truncate(f"{folder}/{name}", size_bytes // 2)


def test_catching_up_keeps_to_its_rate_and_publishing_goes_on_meanwhile() -> None:
    @on_cluster(0, "a", catchup_rate=100_000)
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="publisher") as publisher:
            async with publisher.publisher("/t", persistent=True) as out:
                for number in range(200):
                    await out.send(b"%d" % number + bytes(10_000))
                await out.flush()
            began = trio.current_time()
            await cluster.add("b")
            await cluster.meshed()
            mirroring = cluster["a"].node.mirroring
            assert await publish(publisher, "/t", range(5)) == {"local"}, "it is behind"
            assert not mirroring.in_force
            await mirrored(cluster, "a")
            assert 15 < trio.current_time() - began < 40, "2 MB at 100 kB a second"
            assert await publish(publisher, "/t", range(5, 10)) == {"mirrored"}


def test_a_durable_subscription_goes_on_at_the_mirror_where_it_was_at_its_dead_home() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with (
            cluster.client("b", name="publisher") as publisher,
            cluster.client("a", name="consumer") as consumer,
        ):
            await publish(publisher, "/t", range(10))
            async with consumer.subscribe("/t", durable="me", start="earliest") as messages:
                assert numbers(await take(messages, 5)) == list(range(5))
                messages.done()
                await trio.sleep(1)  # it is kept a few times a second
        await cluster["a"].kill()
        async with (
            cluster.client("b", name="consumer again") as consumer,
            consumer.subscribe("/t", durable="me", start="earliest") as messages,
        ):
            assert numbers(await take(messages, 5)) == list(range(5, 10))


@SEEDS
@pytest.mark.parametrize(
    "fault", [DiskFault.APPEND_ENOSPC, DiskFault.SYNC_EIO, DiskFault.ENTRY_ENOSPC]
)
def test_a_mirror_whose_disk_failed_for_a_moment_is_one_again(seed: int, fault: DiskFault) -> None:
    @on_cluster(seed, "a", "b", mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        await cluster["a"].stop()
        cluster["a"].settings["mirrors"] = 1
        await cluster["a"].start()
        await cluster.meshed()
        await mirrored(cluster, "a")
        mirroring = cluster["a"].node.mirroring
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(5))
            origin = cluster["a"].node.broker_id
            disk = cluster["b"].disk
            disk.arm(fault, lambda path: origin.hex() in path and path.endswith(".seg"))
            number = 5
            while mirroring.in_force:
                topic = f"/{number}" if fault is DiskFault.ENTRY_ENOSPC else "/t"
                await publish(publisher, topic, range(number, number + 1))
                number += 1
            await mirrored(cluster, "a")
            assert cluster["a"].node.broker_id == origin, "in the same life"
            assert await publish(publisher, "/t", range(number, number + 5)) == {"mirrored"}
        await cluster["a"].kill()
        cluster["a"].disk = SimDisk(f"{seed} new disk")
        async with (
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/*", start="earliest", on_gap="raise") as messages,
        ):
            assert sorted(numbers(await take(messages, number + 5))) == list(range(number + 5))


@SEEDS
def test_a_durable_subscription_goes_on_at_any_node_where_it_was_at_the_one_before(
    seed: int,
) -> None:
    """Its home is dead and the new one is not its mirror; then it goes back to a node that knows an
    older position."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        mirror = next(iter(cluster["a"].node.mirroring.streams.values())).link.name
        third = "c" if mirror == "b" else "b"

        async def go_on(home: str, expected: range) -> None:
            async with (
                cluster.client(home, name=f"consumer at {home}") as consumer,
                consumer.subscribe("/t", durable="me", start="latest", on_gap="raise") as messages,
            ):
                assert numbers(await take(messages, len(expected))) == list(expected)
                messages.done()

        async with cluster.client(mirror, name="publisher") as publisher:
            async with (
                cluster.client("a", name="first") as first,
                first.subscribe("/t", durable="me", start="latest"),
            ):
                pass
            await publish(publisher, "/t", range(5))
            await go_on("a", range(5))
            await cluster.until(lambda: position_reaches(cluster[mirror], "me", 5), "its copy")
            await cluster["a"].kill()
            await publish(publisher, "/t", range(5, 20))
            for place, home in enumerate((third, mirror, third)):
                await go_on(home, range(5 + place * 5, 10 + place * 5))
                kept = cluster[home].node.durable.registration("me")
                assert kept is not None
                assert (kept.pattern, kept.client) == ("/t", f"consumer at {home}")


def position_reaches(node: SimulatedNode, name: str, msg_no: int) -> bool:
    """Whether a node holds a registration that has got as far."""
    kept = node.node.subscriptions.registration(name)
    return kept is not None and max(kept.position.values(), default=0) >= msg_no


def test_a_repeat_that_requires_a_mirror_is_acked_as_mirrored_after_a_restart() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        host = cluster.network.host("publisher")
        flags = Flags.PERSISTENT | Flags.GLOBAL | Flags.MIRROR_REQUIRED
        levels: list[str] = []
        for life in range(2):
            await mirrored(cluster, "a", "b")
            async with dialled(host, Address("a", 4250), 77) as client:
                await client.hello()
                await client.send(client.batch("/t", [b"once"], int(flags), seq=5))
                levels.append((await client.expect(Ack)).level)
            if not life:
                # As far as the publisher knows the ack was lost with the process.
                await cluster["a"].kill()
                await cluster["a"].start()
                await cluster.meshed()
        assert levels == ["mirrored", "mirrored"]
        async with (
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest") as messages,
        ):
            assert [message.payload for message in await take(messages, 1)] == [b"once"]
            with trio.move_on_after(5):
                raise AssertionError(f"{await anext(messages)} came twice")


def test_what_has_expired_is_forgotten_and_a_cursor_in_it_is_a_gap() -> None:
    @on_cluster(0, "a", retain_s=60.0, mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        store = MemoryCursorStore()
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(5))
            async with publisher.subscribe("/t", start="earliest", cursors=store) as messages:
                await take(messages, 3)
        await cluster["a"].stop()
        await cluster["a"].start()
        router = cluster["a"].node.router
        assert router.topics() == ["/t"]
        await trio.sleep(600)
        assert not router.topics(), "it is not in the store any more"
        gaps: list[Gap] = []
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", cursors=store, on_gap=gaps.append) as messages,
        ):
            with trio.move_on_after(1):
                await anext(messages)
        assert [gap.first for gap in gaps] == [3]


def test_a_publisher_may_require_a_mirror_for_one_message() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="publisher") as publisher:
            with pytest.raises(busnode.NotMirrored):
                await publisher.publish("/t", b"0", persistent=True, require="mirrored")
            assert (await publisher.publish("/t", b"1", persistent=True)).msg_no == 1
            await cluster.add("b")
            await mirrored(cluster, "a")
            receipt = await publisher.publish("/t", b"2", persistent=True, require="mirrored")
            assert (receipt.msg_no, receipt.level) == (2, "mirrored")
            with pytest.raises(busnode.Refused):
                await publisher.publish("/t", b"3", persistent=False, require="mirrored")


def test_what_requires_a_mirror_is_refused_when_the_mirror_is_lost_before_it_has_it() -> None:
    @on_cluster(0, "a", "b", link_heartbeat_s=15.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a")
        async with cluster.client("a", name="publisher") as publisher:
            cluster.network.partition("a", "b")
            with pytest.raises(busnode.NotMirrored, match="this node's disk alone"):
                await publisher.publish("/t", b"0", persistent=True, require="mirrored")
            assert (await publisher.publish("/t", b"1", persistent=True)).level == "local"


def test_a_publisher_that_sends_again_to_the_mirror_is_not_stored_twice() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with (
            cluster.client("a", "b", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest") as messages,
        ):
            home = "a" if "a:" in str(publisher.statistics().home) else "b"
            await publish(publisher, "/t", range(5))
            # Its acks are on the way when the home dies: they never arrive.
            cluster.network.partition("publisher", home)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, publisher, "/t", range(5, 6))
                await trio.sleep(1)
                other = "b" if home == "a" else "a"
                assert consumer.statistics().home is not None
                await cluster[home].kill()
                del other
            if home == "a":
                got = numbers(await take(messages, 6))
                assert sorted(got) == list(range(6))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_what_was_acked_as_mirrored_reaches_everybody_once(seed: int) -> None:
    """Any node is killed, and one also loses its disk, again and again: one copy is always left."""
    names = ("a", "b", "c")

    @on_cluster(seed, *names)
    async def _(cluster: SimulatedCluster) -> None:
        entropy = cluster.entropy
        acked: dict[bytes, str] = {}
        got: dict[str, list[Message]] = {"x": [], "y": []}
        deaths = {"killed": 0, "wiped": 0, "cut": 0}
        doomed = entropy.choose(list(names))

        async def publish_some(name: str) -> None:
            async with cluster.client(*names, name=name, deadline_s=600) as bus:
                for number in range(150):
                    payload = f"{name} {number}".encode()
                    receipt = await bus.publish(f"/t/{name}", payload, persistent=True)
                    acked[payload] = receipt.level
                    await trio.sleep(entropy.between(0, 0.4))

        async def consume(name: str, ready: trio.Event) -> None:
            async with (
                cluster.client(*names, name=name, deadline_s=600) as bus,
                bus.subscribe("/t/*", start="earliest") as messages,
            ):
                ready.set()
                async for message in messages:
                    got[name].append(message)

        async def trouble() -> None:
            end = trio.current_time() + 50
            while trio.current_time() < end:
                await trio.sleep(entropy.between(0.5, 4.0))
                node = cluster[entropy.choose(list(names))]
                if entropy.chance(0.2):
                    deaths["cut"] += 1
                    other = entropy.choose([name for name in names if name != node.name])
                    cluster.network.partition(node.name, other)
                    await trio.sleep(entropy.between(0.5, 8.0))
                    cluster.network.heal_all()
                    continue
                deaths["killed"] += 1
                await node.kill()
                if node.name == doomed and entropy.chance(0.5):
                    deaths["wiped"] += 1
                    node.disk = SimDisk(f"{seed} disk {deaths['wiped']}")
                await trio.sleep(entropy.between(0.0, 3.0))
                await node.start()

        async with trio.open_nursery() as consuming:
            for name in got:
                ready = trio.Event()
                consuming.start_soon(consume, name, ready)
                await ready.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                for name in ("p", "q"):
                    nursery.start_soon(publish_some, name)
            await cluster.meshed()
            safe = {payload for payload, level in acked.items() if level == "mirrored"}
            for messages in got.values():
                await cluster.until(
                    lambda messages=messages: safe <= {m.payload for m in messages},  # type: ignore[misc]
                    "the last message",
                )
            await trio.sleep(5)
            consuming.cancel_scope.cancel()
        print(deaths, f"{len(safe)} of {len(acked)} acked as mirrored")
        assert len(safe) > 100
        for messages in got.values():
            assert len(messages) == len({message.payload for message in messages}), "a repeat"
            logs: dict[tuple[object, str], list[int]] = {}
            for message in messages:
                assert message.msg_no is not None
                logs.setdefault((message.broker_id, message.topic), []).append(message.msg_no)
            assert all(found == sorted(found) for found in logs.values()), "out of order"
