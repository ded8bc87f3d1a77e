"""Real processes killed at the worst of times: what was acked as mirrored is never lost."""

import os
import signal
import time
from pathlib import Path

import pytest
import trio

from busnode.client import Bus, connect

from .message_chaos import message_chaos
from .process_cluster import PATIENCE_S, Cluster, Node, cluster_of, take, until
from .task_chaos import task_chaos
from .trouble import Kinds

pytestmark = pytest.mark.scenario

TROUBLE_S: float = 90.0
TASK_TROUBLE_S: float = 75.0
TASKS: int = 20_000
SEEDS = pytest.mark.parametrize("seed", [int(os.environ.get("BUSNODE_TEST_SEED", "1"))])
PENDING: int = 20_000
PAYLOAD_BYTES: int = 1024


@SEEDS
async def test_nothing_acked_is_lost_while_nodes_are_killed_and_one_loses_its_disk(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    tally = await message_chaos(tmp_path, TROUBLE_S, seed, 3, Kinds(), print)
    print(tally)
    assert tally.lost == []
    assert tally.wrong == [], "each once, and in order in each log"
    assert tally.trouble.kills >= 10, "there was trouble"
    assert tally.trouble.wipes >= 2
    assert tally.acks["mirrored"] > 1000


@SEEDS
async def test_each_task_is_completed_or_a_dead_letter_while_nodes_are_killed_and_wiped(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    history = await task_chaos(tmp_path, TASK_TROUBLE_S, seed, 3, Kinds(), print)
    print(history)
    assert history.lost == []
    # Both disks that have it may be away at once, one wiped and one killed, but never for so long
    # that an heir with an older copy, which knows of the longer one, goes on without it (ADR 0016).
    assert history.wrong == [], "what was completed on two disks stays so, and attempts go on"
    assert history.trouble.kills >= 10, "there was trouble"
    assert history.trouble.wipes >= 2
    assert history.acks.total() >= TASKS
    assert history.completed + history.dead >= TASKS


async def test_both_nodes_of_a_pair_are_killed_at_once_and_nothing_acked_is_lost(
    tmp_path: Path,
) -> None:
    acked: dict[bytes, str] = {}

    async def publish(bus: Bus, task: int, until_acked: int) -> None:
        number = 0
        while len(acked) < until_acked:
            payload = b"%d %d %d" % (until_acked, task, number)
            acked[payload] = (await bus.publish("/t", payload, persistent=True)).level
            number += 1

    async with cluster_of(tmp_path, 2) as cluster:
        await cluster.meshed()
        await cluster.mirrored()
        async with (
            connect(cluster.url(), deadline_s=PATIENCE_S) as bus,
            trio.open_nursery() as nursery,
        ):
            for task in range(32):
                nursery.start_soon(publish, bus, task, 4_000)
            await until(lambda: len(acked) >= 2_000, "half of the acks")
            for node in cluster.nodes:
                node.send(signal.SIGKILL)
            before = dict(acked)
            for node in cluster.nodes:
                await trio.to_thread.run_sync(node.end)
            for node in cluster.nodes:
                await trio.to_thread.run_sync(node.start)
        assert set(before.values()) == {"mirrored"}
        for node in cluster.nodes:
            async with (
                connect(node.url) as bus,
                bus.subscribe("/t", start="earliest", on_gap="raise") as messages,
            ):
                missing = set(acked)
                with trio.fail_after(PATIENCE_S):
                    while missing:
                        missing.discard((await anext(messages)).payload)
        print(f"{len(before)} acked before both were killed, {len(acked)} in all; none is lost")


async def test_what_was_pending_comes_from_the_mirror_when_the_origin_is_killed(
    tmp_path: Path,
) -> None:
    """The consumer is at a third node and has not read on: what it lacks is on two disks alone."""
    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.meshed()
        await cluster.mirrored()
        origin = cluster.nodes[0]
        (row,) = (await cluster.status(origin))["cluster"]["mirrors"]
        (mirror,) = (node for node in cluster.nodes if node.name == row["name"])
        (third,) = (node for node in cluster.nodes if node not in (origin, mirror))
        payloads = [b"%d " % number + bytes(PAYLOAD_BYTES) for number in range(PENDING)]
        async with (
            connect(third.url, name="consumer") as consumer,
            connect(origin.url, name="publisher") as bus,
            consumer.subscribe("/t", credit_bytes=65_536, on_gap="raise") as messages,
        ):
            async with bus.publisher("/t", persistent=True) as out:
                await out.send_many(payloads)
                receipts = await out.flush()
            assert {level for *_, level in receipts.ranges} == {"mirrored"}
            before_bytes = await received_bytes(cluster, third, mirror)
            killed_at = time.monotonic()
            await trio.to_thread.run_sync(origin.end)
            found = [message.payload for message in await take(messages, PENDING)]
            took_s = time.monotonic() - killed_at
            assert found == payloads
            came_bytes = await received_bytes(cluster, third, mirror) - before_bytes
            print(f"{PENDING} pending messages delivered {took_s:.2f} s after their origin was "
                  f"killed, {came_bytes / 1e6:.1f} MB of them from the mirror")  # fmt: skip
            assert came_bytes > PENDING * PAYLOAD_BYTES / 2, "they were pending"
            assert took_s < 3, "this is what was promised"


async def received_bytes(cluster: Cluster, at: Node, sender: Node) -> int:
    """What one node has had of another one."""
    peers = (await cluster.status(at))["cluster"]["peers"]
    return sum(peer.get("received_bytes", 0) for peer in peers if peer["name"] == sender.name)
