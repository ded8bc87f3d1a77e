"""Damage in a node's logs is mended from other copies, in the simulator."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio

from busnode.client import Bus, Gap
from busnode.node.peer_session import PeerSession
from busnode.node.peers import EXPECTED_S
from busnode.replication.mending import HoleKey
from busnode.segments.damage import Hole
from busnode.segments.log import FileLog
from busnode.segments.segment import index_path
from busnode.segments.steps import work_off
from busnode.segments.store import Range
from busnode.segments.verification import verify_directory
from busnode.testing.sim import DiskFault, SimDisk
from busnode.wire.control import Damaged, PeerHello
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.ids import LogId, MsgNo, Topic
from busnode.world.files import read_whole
from busnode.world.network import Address

from ..segments.samples import disk_with
from .raw_client import dialled
from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster
from .test_mirroring import mirrored, numbers, publish, take

SEEDS = pytest.mark.parametrize("seed", range(3))


def log_of(origin: SimulatedNode, topic: str = "/t") -> LogId:
    return LogId(origin.node.broker_id, Topic(topic))


def flip(node: SimulatedNode, log_id: LogId, *msg_nos: int, inside: int = HEADER_BYTES + 3) -> None:
    """Damage the payloads of these messages, each a record of its own, on a node's disk; or what is
    `inside` elsewhere."""
    log = node.node.store.get(log_id)
    assert log is not None
    for msg_no in msg_nos:
        found = log.reader(msg_no - 1).next_range(1)
        assert isinstance(found, Range)
        node.disk.flip_bit(found.file.path, found.offset + inside, 2)


def files_below(disk: SimDisk, path: str) -> Iterator[str]:
    for name in disk.names(path):
        below = f"{path}/{name}"
        try:
            disk.names(below)
        except NotADirectoryError:
            yield below
        else:
            yield from files_below(disk, below)


def damage(node: SimulatedNode) -> list[tuple[int, int]]:
    """What `busnode log verify` would find on a node's disk now, as numbers of messages."""
    image = {
        path: read_whole(node.disk, path, 1 << 30) for path in files_below(node.disk, "/data/logs")
    }
    found: list[tuple[int, int]] = []
    for log in verify_directory(disk_with(image, "/data"), "/data"):
        found += [(hole.first_no, hole.last_no) for hole in log.holes]
    return found


def mirror_of(cluster: SimulatedCluster, name: str) -> SimulatedNode:
    (stream,) = cluster[name].node.mirroring.streams.values()
    return cluster[stream.link.name]


@asynccontextmanager
async def staying(cluster: SimulatedCluster, home: str, name: str) -> AsyncIterator[Bus]:
    """A client that can reach one node alone."""
    async with cluster.client(home, name=name) as bus:
        for other in cluster.nodes:
            if other != home:
                cluster.network.partition(name, other)
        yield bus


async def filled(cluster: SimulatedCluster, count: int, home: str = "a") -> LogId:
    """A log of so many messages at its origin and at its mirror."""
    await mirrored(cluster, *cluster.nodes)
    log_id = log_of(cluster[home])
    async with cluster.client(home, name="publisher") as publisher:
        assert await publish(publisher, "/t", range(count)) == {"mirrored"}
    return log_id


@SEEDS
def test_a_consumer_of_a_damaged_log_gets_everything_and_the_disk_is_whole_again(
    seed: int,
) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 40)
        flip(cluster["a"], log_id, 7, 8, 23)
        assert damage(cluster["a"]) == [(7, 7), (8, 8), (23, 23)]
        for home in ("a", "b", "c"):
            async with (
                staying(cluster, home, f"at {home}") as consumer,
                consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
            ):
                assert numbers(await take(messages, 40)) == list(range(40))
        await cluster.until(lambda: not damage(cluster["a"]), "a whole disk")
        assert cluster["a"].node.peers.mending.mended == 3
        # Also after a restart, and from then on without any help.
        await cluster["a"].kill()
        await cluster["b"].kill()
        await cluster["c"].kill()
        await cluster["a"].start()
        async with (
            cluster.client("a", name="later") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 40)) == list(range(40))


@SEEDS
def test_what_is_damaged_in_every_copy_is_a_gap_that_names_it(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        flip(cluster["a"], log_id, 5, 11)
        flip(cluster["b"], log_id, 11)
        for home in ("a", "b"):
            gaps: list[Gap] = []
            async with (
                staying(cluster, home, f"at {home}") as consumer,
                consumer.subscribe("/t", start="earliest", on_gap=gaps.append) as messages,
            ):
                got = numbers(await take(messages, 19))
            assert got == [number for number in range(20) if number != 10]
            assert [(gap.broker_id, gap.topic, gap.first, gap.last) for gap in gaps] == [
                (*log_id, 11, 11)
            ]
            assert re.match(r"\d{8}-\d{20}\.seg at byte \d+: ", gaps[0].reason), gaps[0].reason
        await cluster.until(lambda: damage(cluster["a"]) == [(11, 11)], "the other one mended")


def test_a_hole_is_no_gap_while_the_link_to_who_has_it_is_made_anew() -> None:
    @on_cluster(1, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        mirror = mirror_of(cluster, "a").name
        flip(cluster["a"], log_id, 7)
        async with staying(cluster, "a", "reader") as consumer:
            cluster.network.partition("a", mirror)
            await cluster.until(lambda: mirror not in cluster["a"].linked, "a link that is lost")
            async with consumer.subscribe("/t", start="earliest", on_gap="raise") as messages:
                assert numbers(await take(messages, 6)) == list(range(6))
                await trio.sleep(1.0)
                cluster.network.heal("a", mirror)
                assert numbers(await take(messages, 14)) == list(range(6, 20))


def test_what_another_node_lacks_is_no_gap_while_the_link_to_who_has_it_is_made_anew() -> None:
    @on_cluster(1, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        mirror = mirror_of(cluster, "a").name
        (home,) = {"b", "c"} - {mirror}
        flip(cluster["a"], log_id, 7)
        async with staying(cluster, home, "reader") as consumer:
            cluster.network.partition("a", mirror)  # or it would mend its own
            cluster.network.partition(home, mirror)
            await cluster.until(lambda: mirror not in cluster[home].linked, "a link that is lost")
            async with consumer.subscribe("/t", start="earliest", on_gap="raise") as messages:
                assert numbers(await take(messages, 6)) == list(range(6))
                await trio.sleep(1.0)
                assert len(cluster[home].node.peers.open_gaps) == 1
                cluster.network.heal(home, mirror)
                assert numbers(await take(messages, 14)) == list(range(6, 20))


def test_who_dials_a_node_is_waited_for_until_it_has_told_what_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @on_cluster(1, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await filled(cluster, 20)
        await cluster["b"].kill()
        await trio.sleep(2 * EXPECTED_S)
        peers = cluster["a"].node.peers
        assert not peers.expects_holders()
        when_dialled: list[bool] = []
        take_in = peers._take_in

        def seen(session: PeerSession, hello: PeerHello) -> None:
            assert not peers.expects_holders()
            take_in(session, hello)
            when_dialled.append(peers.expects_holders())

        monkeypatch.setattr(peers, "_take_in", seen)
        await cluster["b"].start()
        await cluster.until(lambda: bool(peers.links), "a link")
        assert when_dialled == [True]
        assert peers.expects_holders()
        await trio.sleep(EXPECTED_S)
        assert not peers.expects_holders()


def test_what_nobody_has_who_comes_back_in_time_is_a_gap() -> None:
    @on_cluster(1, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        mirror = mirror_of(cluster, "a").name
        (home,) = {"b", "c"} - {mirror}
        flip(cluster["a"], log_id, 7)
        gaps: list[Gap] = []
        async with staying(cluster, home, "reader") as consumer:
            await cluster[mirror].kill()
            await cluster.until(lambda: mirror not in cluster[home].linked, "a link that is lost")
            began = trio.current_time()
            async with consumer.subscribe("/t", start="earliest", on_gap=gaps.append) as messages:
                assert len(await take(messages, 19)) == 19
        assert [(gap.first, gap.last) for gap in gaps] == [(7, 7)]
        assert trio.current_time() - began < 2 * EXPECTED_S
        peers = cluster[home].node.peers
        await cluster.until(lambda: not len(peers.open_gaps), "nothing that is left behind")


@pytest.mark.parametrize("offset", [*range(8), 8, 24, 32, 40, 48, 50, 52, 54, 56, 64, 72])
def test_a_bit_that_flips_in_any_field_of_a_header_is_found_and_mended(offset: int) -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        (home,) = {"b", "c"} - {mirror_of(cluster, "a").name}
        log = cluster["a"].node.store.get(log_id)
        assert log is not None
        found = log.reader(6).next_range(1)
        assert isinstance(found, Range)
        cluster["a"].disk.flip_bit(found.file.path, found.offset + offset, 2)
        async with (
            staying(cluster, home, "reader") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 20)) == list(range(20))
        await cluster.until(lambda: not damage(cluster["a"]), "a whole disk")


def test_a_hole_that_nobody_had_is_filled_when_somebody_comes_who_has_it() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        await cluster["b"].kill()
        flip(cluster["a"], log_id, 5)
        gaps: list[Gap] = []
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap=gaps.append) as messages,
        ):
            assert len(await take(messages, 19)) == 19
        assert [(gap.first, gap.last) for gap in gaps] == [(5, 5)]
        await cluster["b"].start()
        await cluster.meshed()
        await cluster.until(lambda: not damage(cluster["a"]), "a whole disk")


def test_a_segment_that_is_gone_from_an_old_log_is_fetched_before_a_consumer_hears_of_it() -> None:
    @on_cluster(0, "a", "b", segment_bytes_max=4096)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 200)
        log = cluster["a"].node.store.get(log_id)
        assert isinstance(log, FileLog)
        gone = log.segments[1].path
        await cluster["a"].kill()
        cluster["a"].disk.remove(gone)
        cluster.network.partition("a", "b")
        await cluster["a"].start()
        # At once, before the other node is met again.
        async with (
            staying(cluster, "a", "consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 39)) == list(range(39))
            await trio.sleep(0.5)
            cluster.network.heal("a", "b")
            assert numbers(await take(messages, 161)) == list(range(39, 200))
        assert damage(cluster["a"]) == []


def test_the_end_of_an_old_log_that_others_have_is_fetched() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 30)
        log = cluster["a"].node.store.get(log_id)
        assert isinstance(log, FileLog)
        path = log.segments[0].path
        point = log.reader(24).next_range(1)
        assert isinstance(point, Range)
        await cluster["a"].kill()
        disk = cluster["a"].disk
        disk.truncate(path, point.offset)
        if disk.exists(index_path(path)):
            disk.remove(index_path(path))
        await cluster["a"].start()
        old = cluster["a"].node.store.get(log_id)
        assert old is not None
        assert old.committed_no == 24
        await cluster.until(lambda: old.committed_no == 30, "the end of the log")
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 30)) == list(range(30))


@SEEDS
def test_what_a_disk_cannot_read_is_fetched_too(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 30)
        log = cluster["a"].node.store.get(log_id)
        assert isinstance(log, FileLog)
        path = log.segments[0].path
        disk = cluster["a"].disk
        disk.arm(DiskFault.READ_COLD, lambda each: each == path)
        disk.arm(DiskFault.READ_EIO, lambda each: each == path, count=3)
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 30)) == list(range(30))
        assert damage(cluster["a"]) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_a_new_mirror_gets_what_is_damaged_at_the_origin(is_known: bool) -> None:
    @on_cluster(0, "a", "b", mirrors=2)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 30)
        flip(cluster["a"], log_id, 9)
        if is_known:
            log = cluster["a"].node.store.get(log_id)
            assert log is not None
            assert work_off(cluster["a"].disk, log.examine_steps(9))
        await cluster.add("c", mirrors=2)

        def is_whole() -> bool:
            copy = cluster["c"].node.store.get(log_id)
            return copy is not None and copy.committed_no == 30

        await cluster.until(is_whole, "a second copy")
        assert damage(cluster["c"]) == [], "it never had that hole"
        await cluster.until(lambda: not damage(cluster["a"]), "a whole disk")


def test_a_queue_group_gets_what_was_damaged() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        flip(cluster["a"], log_id, 6)
        log = cluster["a"].node.store.get(log_id)
        assert log is not None
        assert work_off(cluster["a"].disk, log.examine_steps(6))
        async with (
            cluster.client("a", name="member") as consumer,
            consumer.subscribe("/t", start="earliest", queue="q", on_gap="raise") as messages,
        ):
            assert sorted(numbers(await take(messages, 20))) == list(range(20))


def test_of_damage_that_nobody_can_mend_whole_that_piece_is_mended_which_somebody_has() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        flip(cluster["a"], log_id, 6, 7, 8, 9, inside=0)  # so that it is not known where each began
        flip(cluster["b"], log_id, 6, 7, 9)
        for name in "ab":
            log = cluster[name].node.store.get(log_id)
            assert log is not None
            assert work_off(cluster[name].disk, log.examine_steps(6))
        assert damage(cluster["a"]) == [(6, 9)]
        gaps: list[Gap] = []
        async with (
            cluster.client("a", name="c") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap=gaps.append) as messages,
        ):
            assert numbers(await take(messages, 17)) == [*range(5), 7, *range(9, 20)]
        assert [(gap.first, gap.last) for gap in gaps] == [(6, 7), (9, 9)]
        assert damage(cluster["a"]) == [(6, 7), (9, 9)]


@pytest.mark.parametrize("skip", range(3))
def test_a_queue_group_gets_what_could_not_be_read_for_a_moment(skip: int) -> None:
    """When it is fetched, or after that."""

    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await filled(cluster, 20)
        disk = cluster["a"].disk
        async with cluster.client("a", name="member") as consumer:
            disk.arm(DiskFault.READ_COLD, lambda path: path.endswith(".seg"))
            disk.arm(DiskFault.READ_EIO, lambda path: path.endswith(".seg"), skip=skip)
            async with consumer.subscribe(
                "/t", start="earliest", queue="q", on_gap="raise"
            ) as messages:
                assert sorted(numbers(await take(messages, 20))) == list(range(20))
        assert disk.faults[DiskFault.READ_EIO] == 1


def test_complaints_without_a_cause_change_nothing() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        mending = cluster["a"].node.peers.mending
        network = cluster.world("stranger").network
        async with dialled(network, Address("a", 4250)) as client:
            await client.hello()
            await client.send(Damaged(log_id.broker_id, log_id.topic, 3, 9))
            await cluster.until(lambda: mending.examined == 1, "a look")
        for number in range(500):
            cluster["a"].node.peers.damaged(Damaged(log_id.broker_id, f"/none/{number}", 1, 2))
        await trio.sleep(1)
        assert damage(cluster["a"]) == []
        assert mending.mended == 0


def test_a_repair_ends_also_where_the_end_of_a_log_is_damaged() -> None:
    @on_cluster(0, "a", "b", "c", repair_after_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        mirror = mirror_of(cluster, "a")
        (other,) = (n for n in "bc" if n != mirror.name)
        flip(mirror, log_id, 20)
        log = mirror.node.store.get(log_id)
        assert log is not None
        await cluster["a"].kill()
        repairing = mirror.node.peers.repairing

        def is_copied() -> bool:
            copy = cluster[other].node.store.get(log_id)
            return copy is not None and copy.committed_no == 19

        await cluster.until(is_copied, "all that can be read")
        await cluster.until(lambda: repairing.repaired >= 1, "the end of the repair")
        # Again, when the other one has all but that: it has nothing to answer to.
        repaired = repairing.repaired
        cluster.network.partition(mirror.name, other)
        await cluster.until(lambda: not mirror.node.peers.links, "no link")
        mirror.node.peers.mending._plan.gone(HoleKey(log_id, MsgNo(20)))  # as if just found
        cluster.network.heal(mirror.name, other)
        await cluster.until(lambda: repairing.repaired > repaired, "the end of the second")
        assert not repairing.streams


def unreadable(node: SimulatedNode, log_id: LogId, skip: int = 0) -> None:
    """After `skip` times a node's disk reads nothing any more of a log, which is whole."""
    bucket = f"/data/logs/{log_id.broker_id.hex()}/"
    paths = [path for path in files_below(node.disk, "/data/logs") if path.startswith(bucket)]
    node.disk.arm(DiskFault.READ_EIO, lambda path: path in paths, count=1 << 30, skip=skip)


@pytest.mark.parametrize("is_over", [False, True], ids=["written", "finished"])
def test_what_a_disk_could_not_read_when_a_copy_was_made_is_copied_when_it_can(
    is_over: bool,
) -> None:
    @on_cluster(0, "a", "b", repair_after_s=2.0)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = log_of(cluster["a"])
        await cluster["b"].kill()
        async with cluster.client("a", name="publisher") as publisher:
            assert await publish(publisher, "/t", range(3)) == {"local"}
        if is_over:
            await cluster["a"].kill()
            await cluster["a"].start()
        origin = cluster["a"].node
        unreadable(cluster["a"], log_id)
        await cluster["b"].start()
        await mirrored(cluster, "a")
        if is_over:
            await cluster.until(lambda: origin.peers.repairing.repaired > 0, "what is left of it")
        log = origin.store.get(log_id)
        assert log is not None
        assert log.holes(), "it was looked at"
        assert cluster["b"].node.store.get(log_id) is None
        cluster["a"].disk.disarm()

        def is_copied() -> bool:
            copy = cluster["b"].node.store.get(log_id)
            return copy is not None and copy.committed_no == 3

        await cluster.until(is_copied, "the copy")
        assert log.holes() == []
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 3)) == [0, 1, 2]


@pytest.mark.parametrize("skip", range(5), ids=lambda skip: f"after {skip} reads")
def test_a_node_starts_on_a_disk_that_cannot_read_a_log(skip: int) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 30)
        await cluster["a"].stop()
        unreadable(cluster["a"], log_id, skip)
        await cluster["a"].start()
        await cluster.meshed()
        cluster["a"].disk.disarm()
        async with (
            staying(cluster, "a", "consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 30)) == list(range(30))


def test_what_a_disk_cannot_read_for_a_moment_does_not_wait_for_what_others_are_asked_for() -> None:
    @on_cluster(0, "a", "b", link_heartbeat_s=30.0)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 30)
        async with staying(cluster, "a", "another publisher") as publisher:
            await publish(publisher, "/u", range(10))
        origin = cluster["a"]
        damaged, other = (origin.node.store.get(each) for each in (log_id, log_of(origin, "/u")))
        assert damaged is not None
        assert isinstance(other, FileLog)
        flip(origin, log_id, 9, 19, 29)
        cluster.network.partition("a", "b")  # nobody has noticed
        await origin.node.peers.mending.examine(damaged, 9)
        assert len(damaged.holes()) == 3, "for which the other node is asked now"
        async with staying(cluster, "a", "consumer") as consumer:
            path = other.segments[0].path
            origin.disk.arm(DiskFault.READ_COLD, lambda each: each == path)
            origin.disk.arm(DiskFault.READ_EIO, lambda each: each == path)
            async with consumer.subscribe("/u", start="earliest", on_gap="raise") as others:
                assert numbers(await take(others, 10)) == list(range(10))
            assert origin.disk.faults[DiskFault.READ_EIO] == 1


def test_many_holes_that_nobody_has_do_not_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    holes = [Hole(MsgNo(n), MsgNo(n), "", 0, 0, "missing between two segments") for n in range(300)]
    told: list[bool] = []

    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(1))
        log = cluster["a"].node.store.get(log_of(cluster["a"]))
        assert log is not None
        monkeypatch.setattr(FileLog, "holes", lambda _: holes)
        for hole in holes[1:]:
            assert cluster["a"].node.peers.mending.ask(log, hole, told.append)
        counts = [0]
        while len(told) < len(holes) - 1:
            await trio.lowlevel.checkpoint()
            counts.append(len(told))
        assert max(b - a for a, b in pairwise(counts)) <= 2, "others have their turn in between"

    assert not any(told)
