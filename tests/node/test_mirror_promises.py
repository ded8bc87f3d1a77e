"""What a receipt promises, held against what the disks would still have if the power went now."""

from collections.abc import Iterator

import pytest
import trio

import busnode
from busnode.node.durable_positions import topic_of
from busnode.segments.damage import Hole
from busnode.segments.file_store import FileStore
from busnode.testing.sim import SimDisk
from busnode.testing.sim.directory import Directory, File
from busnode.testing.sim.faults import DiskFaults
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.world.network import Address

from ..segments.samples import StoppedClock, disk_with, read_ranges
from .raw_client import Event, Journal, RawClient, dialled
from .simulated_cluster import SimulatedCluster, on_cluster

NAMES = ("a", "b", "c")


# What is durable ----------------------------------------------------------------------------------


def durable_files(directory: Directory, path: str = "") -> Iterator[tuple[str, bytes]]:
    """What a power loss would certainly leave, of names and of bytes, and nothing more."""
    for name, inode in directory.durable.items():
        if isinstance(inode, File):
            contents = inode.contents
            ends = [contents._dirty_from, *(start for start, _ in contents._doubtful)]
            yield f"{path}/{name}", bytes(contents.cached[: min(ends)])
        else:
            yield from durable_files(inode, f"{path}/{name}")


def durable_numbers(disk: SimDisk, log_id: LogId) -> set[int]:
    """The first numbers of the records of a log that would be read after a power loss now."""
    bucket = f"/data/logs/{log_id.broker_id.hex()}/"
    image = {path: data for path, data in durable_files(disk._tree.root) if bucket in path}
    store = FileStore(disk_with(image, "/data"), StoppedClock(), "/data")
    log = store.get(log_id)
    found = set() if log is None else set(read_ranges(log).records)
    store.close()
    return found


def holders(cluster: SimulatedCluster, log_id: LogId, msg_no: int) -> list[str]:
    nodes = cluster.nodes.values()
    return [node.name for node in nodes if msg_no in durable_numbers(node.disk, log_id)]


async def lose_power(cluster: SimulatedCluster, names: list[str]) -> None:
    """All at once; they stay down."""
    await cluster.lose_power(names)


async def in_force(cluster: SimulatedCluster, *names: str) -> None:
    for name in names:
        mirroring = cluster[name].node.mirroring
        await cluster.until(lambda mirroring=mirroring: mirroring.in_force, "a mirror")  # type: ignore[misc]


def mirror_of(cluster: SimulatedCluster, name: str) -> str:
    (stream,) = cluster[name].node.mirroring.streams.values()
    return stream.link.name


# Levels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_level_in_every_receipt_was_true(seed: int) -> None:
    """Each message is one record, and is looked for on the platters when its ack comes."""

    @on_cluster(seed, *NAMES, repair_after_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        entropy = cluster.entropy
        acked: dict[bytes, tuple[LogId, int, str]] = {}
        for name in NAMES:
            cluster[name].disk.odds = DiskFaults(sync_slow=0.4, sync_slow_s_max=0.3)

        async def publish_some(name: str) -> None:
            async with cluster.client(*NAMES, name=name, deadline_s=600) as bus:
                for number in range(60):
                    payload = f"{name} {number}".encode()
                    topic = Topic(f"/t/{name}/{number % 3}")
                    receipt = await bus.publish(topic, payload, persistent=True)
                    log_id = LogId(receipt.broker_id, topic)
                    acked[payload] = log_id, receipt.msg_no, receipt.level
                    safe_at = holders(cluster, log_id, receipt.msg_no)
                    least = 2 if receipt.level == "mirrored" else 1
                    assert len(safe_at) >= least, f"{receipt} is safe at {safe_at} alone"
                    await trio.sleep(entropy.between(0, 0.3))

        async def trouble() -> None:
            for _ in range(10):
                await trio.sleep(entropy.between(0.5, 3.0))
                if entropy.chance(0.3):
                    one, other = entropy.choose([("a", "b"), ("a", "c"), ("b", "c")])
                    cluster.network.partition(one, other)
                    await trio.sleep(entropy.between(0.5, 5.0))
                    cluster.network.heal_all()
                    continue
                names = list(NAMES)
                lost = [names.pop(entropy.below(len(names))) for _ in range(1 + entropy.below(3))]
                await lose_power(cluster, lost)
                await trio.sleep(entropy.between(0.0, 2.0))
                for name in lost:
                    await cluster[name].start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            for name in ("p", "q"):
                nursery.start_soon(publish_some, name)
        levels = [level for _, _, level in acked.values()]
        print(f"{levels.count('mirrored')} of {len(levels)} mirrored")
        assert levels.count("mirrored") > 20
        # Whichever one loses its disk now, and all others their power: one copy is left.
        for doomed in NAMES:
            for log_id, msg_no, level in acked.values():
                left = [name for name in holders(cluster, log_id, msg_no) if name != doomed]
                assert left or level == "local", f"{log_id} {msg_no} was only at {doomed}"
        await lose_power(cluster, [name for name in NAMES if cluster[name].is_up])
        for name in NAMES:
            await cluster[name].start()
        await cluster.meshed()
        got: set[bytes] = set()
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t/*", start="earliest") as messages,
        ):
            with trio.fail_after(60):
                while not acked.keys() <= got:
                    got.add((await anext(messages)).payload)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_refused_as_not_mirrored_was_not_appended(seed: int) -> None:
    @on_cluster(seed, "a", "b", require_mirror=True)
    async def _(cluster: SimulatedCluster) -> None:
        entropy = cluster.entropy
        await in_force(cluster, "a")
        acked: list[bytes] = []
        refused: list[bytes] = []
        nothing_in_flight = trio.Lock()

        async def trouble() -> None:
            for _ in range(5):
                await trio.sleep(entropy.between(0.2, 1.0))
                async with nothing_in_flight:
                    await cluster["b"].kill()
                    await trio.sleep(0.01)  # word of it has come
                await trio.sleep(entropy.between(0.2, 2.0))
                await cluster["b"].start()
                await in_force(cluster, "a")

        async with cluster.client("a", name="publisher", deadline_s=600) as publisher:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                for number in range(150):
                    payload = b"%d" % number
                    try:
                        async with nothing_in_flight:
                            await publisher.publish("/t", payload, persistent=True)
                    except busnode.NotMirrored:
                        refused.append(payload)
                    else:
                        acked.append(payload)
                    await trio.sleep(entropy.between(0, 0.15))
            assert refused
            assert acked
            async with publisher.subscribe("/t", start="earliest", on_gap="raise") as messages:
                got = [(await anext(messages)).payload for _ in acked]
            assert got == acked
            (log,) = (
                log for log in cluster["a"].node.store.logs() if log.log_id.topic == "/t"
            )  # fmt: skip
            assert log.next_no == len(acked) + 1, "nothing else has a number"


def test_positions_of_durable_subscriptions_are_mirrored() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await in_force(cluster, "a", "b")
        a = cluster["a"].node
        async with cluster.client("a", name="consumer") as bus:
            async with bus.subscribe("/t", durable="books", start="earliest") as messages:
                for number in range(5):
                    await bus.publish("/t", b"%d" % number, persistent=True)
                for _ in range(5):
                    await anext(messages)
                messages.done()
            kept = {LogId(a.broker_id, Topic("/t")): 5}
            await cluster.until(lambda: a.durable.get("books") == kept, "the last position")
            position = LogId(a.broker_id, topic_of("books"))
            log = a.store.get(position)
            assert log is not None
            await cluster.until(
                lambda: log.committed_no in durable_numbers(cluster["b"].disk, position),
                "the position at the mirror",
            )
        await lose_power(cluster, ["a", "b"])
        cluster["a"].disk = SimDisk("a new one")
        await cluster["b"].start()
        assert cluster["b"].node.durable.get("books") == kept
        async with (
            cluster.client("b", name="the same one, started again") as bus,
            bus.subscribe("/t", durable="books", on_gap="raise") as messages,
        ):
            await bus.publish("/t", b"5", persistent=True)
            assert (await anext(messages)).payload == b"5", "it goes on where it was"


def test_a_log_that_has_expired_to_its_end_does_not_keep_a_mirror_from_being_in_force() -> None:
    """A topic that was silent for a day: its numbers are used up, and nothing of it can be sent."""

    @on_cluster(0, "a", retain_s=50.0)
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="publisher") as publisher:
            await publisher.publish("/old", b"0", persistent=True)
            a = cluster["a"].node
            old = a.store.get(LogId(a.broker_id, Topic("/old")))
            assert old is not None
            await trio.sleep(180)
            assert (old.first_no, old.committed_no) == (2, 1)
            await cluster.add("b")
            await in_force(cluster, "a")
            receipt = await publisher.publish("/old", b"1", persistent=True)
            assert (receipt.level, receipt.msg_no) == ("mirrored", 2)
            assert holders(cluster, old.log_id, 2) == ["a", "b"]


# Consumers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "killed"])
@pytest.mark.parametrize("seed", range(3))
def test_consumers_see_no_hole_and_no_repeat_when_the_mirror_changes(seed: int, how: str) -> None:
    """In the protocol's own words: no library between that would drop what comes twice."""

    @on_cluster(seed, *NAMES)
    async def _(cluster: SimulatedCluster) -> None:
        entropy = cluster.entropy
        await in_force(cluster, *NAMES)
        first = mirror_of(cluster, "a")
        homes = NAMES if how == "cut" else tuple(name for name in NAMES if name != first)
        journals = {home: Journal() for home in homes}
        levels: set[str] = set()
        count = 150

        async def consume(home: str, ready: trio.Event) -> None:
            host = cluster.network.host(f"consumer at {home}")
            async with dialled(host, Address(home, 4250), 50) as client:
                await client.hello()
                await client.subscribe("/t", "earliest")
                ready.set()
                while journals[home].count() < count:
                    journals[home].take(await _event(client))

        async def publish_all() -> None:
            async with cluster.client("a", name="publisher") as publisher:
                for number in range(count):
                    receipt = await publisher.publish("/t", b"%d" % number, persistent=True)
                    levels.add(receipt.level)
                    await trio.sleep(entropy.between(0, 0.1))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for home in homes:
                    ready = trio.Event()
                    nursery.start_soon(consume, home, ready)
                    await ready.wait()
                nursery.start_soon(publish_all)
                await trio.sleep(entropy.between(0.5, 2.0))
                if how == "cut":
                    cluster.network.partition("a", first)
                    await trio.sleep(entropy.between(2.5, 5.0))
                    cluster.network.heal_all()
                else:
                    await lose_power(cluster, [first])
                    await trio.sleep(entropy.between(0.0, 3.0))
                    await cluster[first].start()
        assert "mirrored" in levels
        assert mirror_of(cluster, "a") != first, "another one was chosen, and stays"
        log_id = LogId(BrokerId(cluster["a"].node.broker_id), Topic("/t"))
        for journal in journals.values():
            assert journal.gaps == []
            assert journal.payloads == {log_id: [b"%d" % number for number in range(count)]}


async def _event(client: RawClient) -> Event:
    """The next one, however long it takes; whoever waits keeps its connection."""
    while True:
        try:
            return await client.receive()
        except trio.TooSlowError:
            await client.barrier()


def test_a_mirror_that_a_hole_keeps_from_what_acks_wait_for_is_none_any_more() -> None:
    """Somebody was asked for it when the mirror was not in force yet, and nobody has it."""

    @on_cluster(0, *NAMES)
    async def _(cluster: SimulatedCluster) -> None:
        await in_force(cluster, *NAMES)
        node = cluster["a"].node
        async with cluster.client("a", name="publisher") as bus:
            for _ in range(3):
                await bus.publish("/t", b"", persistent=True)
            (stream,) = node.mirroring.streams.values()
            cursor = stream._cursors[LogId(node.broker_id, Topic("/t"))]
            stream._mended(cursor, Hole(MsgNo(4), MsgNo(5), "", 0, 0, "unreadable"), readable=False)
            assert stream.is_broken
            sent_bytes = stream.sent_bytes
            await bus.publish("/t", b"", persistent=True)
            assert stream.sent_bytes == sent_bytes, (
                "with what lies behind it the hole were mirrored"
            )
            await cluster.until(lambda: stream not in node.mirroring.streams.values(), "it is gone")


def test_who_refuses_another_nodes_logs_stays_a_mirror_of_ours() -> None:
    @on_cluster(0, "a", catchup_rate=10_000)
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        async with cluster.client("a", name="publisher") as bus:
            for _ in range(10):
                await bus.publish("/t", bytes(100_000), persistent=True)
        await cluster.add("b")
        await cluster.until(
            lambda: any(each.has_begun for each in node.mirroring.streams.values()), "a mirror"
        )
        (stream,) = node.mirroring.streams.values()
        assert not stream.progress.in_force
        node.peers.mirror_refused(stream.link)
        assert list(node.mirroring.streams.values()) == [stream]
