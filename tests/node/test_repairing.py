"""Copies that are lost are made again, in the simulator."""

import pytest
import trio

import busnode
from busnode.client import Message
from busnode.node.subscriptions import LOOK_EVERY_S
from busnode.node.unknown_cursors import RETURN_S
from busnode.testing.sim import DiskFault, SimDisk
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic

from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster, seed_address
from .test_mirroring import mirrored, numbers, publish, take

SEEDS = pytest.mark.parametrize("seed", range(3))


def holders(cluster: SimulatedCluster, origin: BrokerId, last_no: int) -> set[str]:
    """Nodes that hold a whole copy of the log /t of an incarnation."""
    found: set[str] = set()
    for node in cluster.nodes.values():
        if node.is_up:
            for log in node.node.store.logs():
                whole = log.committed_no == last_no
                if log.log_id.broker_id == origin and log.log_id.topic == "/t" and whole:
                    found.add(node.name)
    return found


@SEEDS
def test_a_log_whose_origin_is_lost_for_good_gets_its_second_copy_back(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            assert await publish(publisher, "/t", range(40)) == {"mirrored"}
        await cluster["a"].kill()
        await cluster.until(lambda: holders(cluster, origin, 40) == {"b", "c"}, "a second copy")
        # Then one of the two is lost for good, too.
        await cluster["b"].kill()
        cluster["b"].disk = SimDisk(f"{seed} new disk")
        async with (
            cluster.client("c", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 40)) == list(range(40))


def test_a_node_that_is_back_in_time_costs_no_copy() -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(40))
        before = holders(cluster, origin, 40)
        await cluster["a"].kill()
        await trio.sleep(5)
        await cluster["a"].start()
        await cluster.meshed()
        await trio.sleep(120)
        assert holders(cluster, origin, 40) == before
        assert sum(node.node.peers.repairing.repaired for node in cluster.nodes.values()) == 0


@SEEDS
def test_a_node_that_comes_back_without_its_disk_is_no_holder_and_another_one_is(
    seed: int,
) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(40))
        await cluster["a"].kill()
        cluster["a"].disk = SimDisk(f"{seed} new disk")
        await cluster["a"].start()
        await cluster.meshed()
        await cluster.until(lambda: len(holders(cluster, origin, 40)) == 2, "a second copy")
        await trio.sleep(60)
        assert len(holders(cluster, origin, 40)) == 2, "and no third one"


def test_a_copy_that_was_cut_off_in_the_middle_is_completed() -> None:
    @on_cluster(0, "a", "b", "c", mirrors=1)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(20))
            first = next(iter(cluster["a"].node.mirroring.streams.values())).link.name
            # The mirror is cut off, and another one chosen: it gets all, the first has a part.
            for other in {"a", "b", "c"} - {first}:
                cluster.network.partition(first, other)
            await trio.sleep(10)
            await mirrored(cluster, "a")
            await publish(publisher, "/t", range(20, 60))
        await cluster["a"].kill()
        cluster.network.heal_all()
        await cluster.meshed()
        await cluster.until(lambda: holders(cluster, origin, 60) == {"b", "c"}, "the whole copy")


@SEEDS
def test_what_a_node_wrote_before_its_disk_failed_is_repaired_while_it_lives_on(seed: int) -> None:
    """It goes on under a new brokerId; others know it by the one that it has greeted them with."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        a = cluster["a"].node
        first = a.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            assert await publish(publisher, "/t", range(40)) == {"mirrored"}
            mirror = next(iter(a.mirroring.streams.values())).link.name
            cluster["a"].disk.arm(DiskFault.SYNC_EIO, lambda path: path.endswith(".seg"))
            await publish(publisher, "/other", range(1))
        assert a.broker_id != first
        await cluster[mirror].kill()
        cluster[mirror].disk = SimDisk(f"{seed} new disk")
        await cluster.until(lambda: len(holders(cluster, first, 40)) == 2, "a second copy")


def test_what_was_committed_of_a_log_whose_sync_failed_is_repaired() -> None:
    """It takes no more, and what was acked of it before is on one disk alone."""

    @on_cluster(1, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        first = cluster["a"].node.broker_id
        await cluster["b"].kill()
        async with cluster.client("a", name="publisher") as publisher:
            assert "local" in await publish(publisher, "/t", range(40))
            cluster["a"].disk.arm(DiskFault.SYNC_EIO, lambda path: path.endswith(".seg"))
            await publish(publisher, "/t", range(40, 41))
        assert cluster["a"].node.broker_id != first
        await cluster["b"].start()
        await cluster.until(lambda: holders(cluster, first, 40) == {"a", "b"}, "a second copy")


def lose_logs(node: SimulatedNode, origin: BrokerId) -> None:
    """Its disk loses the logs of an incarnation, and knows no less that it has written them."""
    bucket = f"/data/logs/{origin.hex()}"
    for name in node.disk.names(bucket):
        node.disk.remove(f"{bucket}/{name}")


@SEEDS
def test_who_wrote_a_log_and_lost_it_gets_it_back_at_once_for_its_consumers(seed: int) -> None:
    """Two others hold it, so nobody lacks a copy."""

    @on_cluster(seed, "a", "b", "c", mirrors=2)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(40))
        await cluster.until(lambda: len(holders(cluster, origin, 40)) == 3, "two mirrors")
        await cluster["a"].kill()
        lose_logs(cluster["a"], origin)
        await cluster["a"].start()
        await cluster.meshed()
        began = trio.current_time()
        half = busnode.Position({(origin, Topic("/t")): MsgNo(20)})
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start=half, on_gap="raise") as rest,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as whole,
        ):
            assert numbers(await take(rest, 20)) == list(range(20, 40))
            assert numbers(await take(whole, 40)) == list(range(40))
        assert trio.current_time() - began < 10


def test_a_cursor_beyond_all_copies_is_a_gap_while_the_logs_origin_is_there() -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(5))
        await cluster.until(lambda: len(holders(cluster, origin, 5)) == 2, "its copy")
        beyond = busnode.Position({(origin, Topic("/t")): MsgNo(9)})

        async def gaps_at(home: str) -> list[tuple[int, int]]:
            heard: list[busnode.Gap] = []
            async with (
                cluster.client(home, name=f"consumer at {home}") as consumer,
                consumer.subscribe("/t", start=beyond, on_gap=heard.append) as messages,
            ):
                with trio.move_on_after(RETURN_S + 2 * LOOK_EVERY_S):
                    await anext(messages)
            return [(gap.first, gap.last) for gap in heard]

        for home in "abc":
            assert await gaps_at(home) == [(10, 0)], home
        await cluster["a"].kill()
        for home in "bc":
            assert await gaps_at(home) == [], "nobody knows of more than it has read"


@pytest.mark.parametrize("down_s", [5, 30])
def test_a_cursor_in_a_log_whose_holder_is_down_is_a_gap_when_it_does_not_come_back(
    down_s: float,
) -> None:
    @on_cluster(0, "a", "b", "c", mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(5))
        await cluster["a"].kill()
        heard: list[busnode.Gap] = []
        two = busnode.Position({(origin, Topic("/t")): MsgNo(2)})
        async with (
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", start=two, on_gap=heard.append) as messages,
        ):
            got: list[Message] = []

            async def read() -> None:
                async for message in messages:
                    got.append(message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.sleep(down_s)
                await cluster["a"].start()
                await cluster.until(lambda: len(got) == 3, "the rest of the log")
                nursery.cancel_scope.cancel()
            assert numbers(got) == [2, 3, 4], "it is read on all the same"
        assert [(gap.first, gap.last) for gap in heard] == ([(3, 0)] if down_s > 10 else [])


# Retention ----------------------------------------------------------------------------------------


def knows(cluster: SimulatedCluster, origin: BrokerId) -> set[str]:
    """Nodes that still have something of the log /t of an incarnation, or know where it ended."""
    log_id = LogId(origin, Topic("/t"))
    up = [node for node in cluster.nodes.values() if node.is_up]
    return {node.name for node in up if node.node.store.get(log_id) is not None}


def has(cluster: SimulatedCluster, origin: BrokerId) -> set[str]:
    """Nodes that have messages of the log /t of an incarnation."""
    found: set[str] = set()
    for name in knows(cluster, origin):
        log = cluster[name].node.store.get(LogId(origin, Topic("/t")))
        if log is not None and log.first_no <= log.committed_no:
            found.add(name)
    return found


@pytest.mark.parametrize(("origin_s", "others_s"), [(200.0, 2000.0), (2000.0, 200.0)])
def test_a_copy_is_kept_for_as_long_as_its_origin_would_keep_it(
    origin_s: float, others_s: float
) -> None:
    @on_cluster(0, "b", "c", retain_s=others_s)
    async def _(cluster: SimulatedCluster) -> None:
        await cluster.add("a", retain_s=origin_s)
        await cluster.meshed()
        await mirrored(cluster, "a")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(10))
        await cluster["a"].kill()
        await cluster.until(lambda: has(cluster, origin) == {"b", "c"}, "a second copy")
        # Also after a restart, and at a node that has its copy from another one.
        for name in "bc":
            await cluster[name].kill()
            await cluster[name].start()
        await cluster.meshed()
        await trio.sleep(min(origin_s, others_s) + 100)
        assert has(cluster, origin) == ({"b", "c"} if origin_s > others_s else set())


def test_a_log_that_is_copied_again_and_again_expires_when_it_would_have_at_its_origin() -> None:
    @on_cluster(0, "a", "b", retain_s=600.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(10))
        began = trio.current_time()
        await cluster["a"].kill()
        # Whoever has it gives it to a new node and is lost, until its time is over.
        holder = "b"
        for life in range(4):
            newcomer = f"n{life}"
            await cluster.add(newcomer, retain_s=600.0)
            await cluster.until(lambda n=newcomer: n in has(cluster, origin), "a copy")  # type: ignore[misc]
            await trio.sleep(50)
            await cluster[holder].kill()
            holder = newcomer
        assert trio.current_time() - began < 500
        await trio.sleep(700 - (trio.current_time() - began))
        assert not has(cluster, origin)


def test_what_two_copies_have_in_parts_and_the_origin_no_more_comes_to_a_consumer_of_one() -> None:
    """The first mirror has the beginning, the second one has all, and at the origin it expired."""

    @on_cluster(1, "b", retain_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        await cluster.add("a")
        await mirrored(cluster, "b")
        async with cluster.client("b", name="publisher") as publisher:
            assert await publish(publisher, "/t", range(40)) == {"mirrored"}
            await cluster["a"].kill()
            await cluster.add("c")
            await mirrored(cluster, "b")
            await publish(publisher, "/t", range(40, 58))
        log = cluster["b"].node.store.get(LogId(cluster["b"].node.broker_id, Topic("/t")))
        assert log is not None
        await cluster.until(lambda: log.first_no == 59, "it has expired")
        await cluster["a"].start()
        await cluster.meshed()
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start=busnode.Position(), on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 58)) == list(range(58))


def test_what_has_expired_is_not_copied_again_and_again() -> None:
    @on_cluster(0, "a", "b", "c", retain_s=200.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(10))
        await trio.sleep(300)
        assert not has(cluster, origin)
        await cluster["a"].kill()
        assert knows(cluster, origin), "its end is still known"
        await trio.sleep(100)
        copied = [cluster[name].node.peers.repairing.repaired for name in "bc"]
        assert sum(copied) <= 2, "once for each node that lacks it"


@SEEDS
def test_a_log_of_its_own_that_its_disk_has_lost_is_given_back_to_a_node(seed: int) -> None:
    """Its clients read it from nobody else."""

    @on_cluster(seed, "a", "b", "c", repair_after_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(40))
        await cluster["a"].kill()
        await cluster.until(lambda: holders(cluster, origin, 40) == {"b", "c"}, "a second copy")
        disk = cluster["a"].disk
        bucket = f"/data/logs/{origin.hex()}"
        for name in disk.names(bucket):
            disk.remove(f"{bucket}/{name}")
        await cluster["a"].start()
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 40)) == list(range(40))


def test_a_consumer_gets_what_its_home_has_written_and_another_node_holds_when_that_is_back() -> (
    None
):
    """At the home it has expired, so it is not given back again; the other one is not so quick."""

    @on_cluster(0, "a", retain_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        await cluster.add("b", retain_s=3600.0)
        await mirrored(cluster, "a")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            assert await publish(publisher, "/t", range(10)) == {"mirrored"}
        await cluster["a"].kill()
        await cluster["a"].start()
        await cluster.meshed()
        home, other = cluster["a"].node, cluster["b"].node
        await cluster.until(lambda: other.peers.repairing.repaired > 0, "it was given back")
        await cluster.until(lambda: knows(cluster, origin) == {"b"}, "the end of it at home")
        # The home alone loses its link, and the other one does not notice.
        cluster.network.partition("a", "b")
        dialled = [
            s for s in cluster.network._streams if (s.host, s.peer) == ("a", seed_address("b"))
        ]
        for stream in dialled:
            stream.sever()
        await cluster.until(lambda: not home.peers.links, "a lost link")
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start=busnode.Position(), on_gap="raise") as messages,
        ):
            assert consumer.statistics().home == "a:4250"
            cluster.network.heal("a", "b")
            assert numbers(await take(messages, 10)) == list(range(10))
