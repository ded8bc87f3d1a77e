"""Logs of a node's earlier lives of which others have more, in the simulator."""

from contextlib import closing

import pytest
import trio

from busnode.testing.sim import SimDisk
from busnode.wire.ids import BrokerId

from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored, numbers, publish, take
from .test_repairing import holders


def cut(disk: SimDisk, origin: BrokerId, share: float) -> None:
    """Leave a share of the only log of an incarnation."""
    folder = f"/data/logs/{origin.hex()}"
    for name in disk.names(folder):
        if name.endswith(".idx"):
            disk.remove(f"{folder}/{name}")
    (name,) = disk.names(folder)
    with closing(disk.open(f"{folder}/{name}")) as file:
        size_bytes = file.size_bytes()
    disk.truncate(f"{folder}/{name}", int(size_bytes * share))


def test_who_reads_an_old_log_of_its_home_elsewhere_goes_on_when_a_longer_copy_turns_up() -> None:
    @on_cluster(0, "a", "b", "c", mirrors=2)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        origin = cluster["a"].node.broker_id
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(20))
        await cluster.until(lambda: holders(cluster, origin, 20) == {"a", "b", "c"}, "two mirrors")
        for name in "abc":
            await cluster[name].kill()
        cut(cluster["a"].disk, origin, 0.5)
        cut(cluster["c"].disk, origin, 0.75)
        await cluster["a"].start()
        await cluster["c"].start()
        await cluster.until(lambda: len(cluster["a"].node.peers.links) == 1, "c")
        await trio.sleep(0.5)
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            got = numbers(await take(messages, 12))

            await cluster["b"].start()
            with trio.fail_after(60):
                got += numbers(await take(messages, 8))
            assert got == list(range(20))


@pytest.mark.parametrize("then", [True, False])
def test_an_old_log_is_read_once_whatever_changes_while_a_subscription_begins(
    then: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is completed here, or turns out to be longer elsewhere, between two looks at it."""

    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="publisher") as publisher:
            await publish(publisher, "/t", range(20))
        await cluster["a"].kill()
        await cluster["a"].start()
        await cluster.meshed()
        peers = cluster["a"].node.peers
        looks = iter([not then])
        monkeypatch.setattr(peers.sources, "is_longer_elsewhere", lambda log: next(looks, then))
        monkeypatch.setattr(peers.sources, "_is_behind", lambda log_id, end_no: True)
        async with (
            cluster.client("a", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert numbers(await take(messages, 20)) == list(range(20))
            await trio.sleep(1)
            statistics = messages.statistics()
            assert (statistics.received, statistics.repeats) == (20, 0)
            (session,) = cluster["a"].node.sessions.values()
            (own,) = cluster["a"].node.subscriptions.of(session).values()
            assert len(own.cursors) + len(peers.subscriptions.readings[own].cursors) == 1
