"""How far mirrors and repairs have got: in the status, in the metrics and as progress."""

import json
import re
from typing import Any

import trio

from busnode.node.flows import flows
from busnode.node.metrics import render
from busnode.node.node import RunningNode
from busnode.node.status import answer_status, status

from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored

COUNT = 500
PAYLOAD = bytes(10_000)


async def values(node: RunningNode) -> dict[str, float]:
    """All metrics without the prefix, each with a help text."""
    text = (await render(node))[0].decode()
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            base = name.split("{")[0]
            assert {base, base.removesuffix("_total"), base.removesuffix("_created")} & helped
            found[name.removeprefix("busnode_")] = float(value)
    return found


async def fill(cluster: SimulatedCluster, name: str) -> None:
    async with cluster.client(name) as bus, bus.publisher("/t", persistent=True) as out:
        for _ in range(COUNT):
            await out.send(PAYLOAD)


def only_mirror(node: RunningNode) -> dict[str, Any]:
    (row,) = status(node)["cluster"]["mirrors"]
    found: dict[str, Any] = row
    return found


def test_a_mirror_that_catches_up_tells_how_far_it_has_got() -> None:
    @on_cluster(0, "a", catchup_rate=500_000)
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        assert status(node)["cluster"]["mirrors"] == []
        await fill(cluster, "a")
        await cluster.add("b")
        await cluster.until(lambda: bool(node.mirroring.streams), "a mirror")
        await cluster.until(lambda: only_mirror(node)["state"] == "catching up")
        shares: list[float] = []
        while (row := only_mirror(node))["state"] == "catching up":
            assert row["total"] == COUNT
            assert row["total_bytes"] > COUNT * len(PAYLOAD)
            each = row["total_bytes"] / row["total"]
            assert abs(row["behind_bytes"] - row["behind"] * each) < each
            (flow,) = flows([answer_status(node, b'{"rows": 0}', None)])
            shares.append(flow.share)
            told = await values(node)
            assert told['catchup_remaining_messages{kind="mirror"}'] == row["behind"]
            assert told['catchup_remaining_bytes{kind="mirror"}'] > 0
            assert told['mirror_lag_messages{mirror="b"}'] == row["behind"]
            await trio.sleep(1.0)
        assert shares == sorted(shares)
        assert len({*shares}) >= 5, "it is seen on its way"
        row = only_mirror(node)
        assert (row["state"], row["behind"], row["behind_bytes"]) == ("in force", 0, 0)
        told = await values(node)
        assert told["mirrors_in_force"] == 1
        assert told['catchup_remaining_messages{kind="mirror"}'] == 0
        assert (await values(cluster["b"].node))["copies_held"] == 1
        assert told["copies_held"] == 0
        assert told['events_total{severity="info"}'] >= 5
        json.dumps(status(node))


def test_what_a_mirror_in_force_has_not_synced_is_its_lag_and_how_long_it_lets_us_wait() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        await mirrored(cluster, "a")
        async with cluster.client("a") as bus, trio.open_nursery() as nursery:
            await bus.publish("/t", PAYLOAD, persistent=True)
            assert only_mirror(node)["lag"] == 0
            cluster.network.partition("a", "b")
            for _ in range(3):
                nursery.start_soon(lambda: bus.publish("/t", PAYLOAD, persistent=True))
            await cluster.until(lambda: only_mirror(node)["lag"] == 3, "a lag")
            await trio.sleep(1.0)
            told = await values(node)
            assert told['mirror_lag_messages{mirror="b"}'] == 3
            assert 3 * 10_000 < told['mirror_lag_bytes{mirror="b"}'] < 3 * 11_000
            assert 0.9 < told['mirror_waiting_seconds{mirror="b"}'] < 2.0


def test_a_repair_tells_how_far_it_has_got_and_whose_logs_they_are() -> None:
    @on_cluster(0, "a", "b", "c", repair_after_s=3.0, catchup_rate=1_000_000)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        await fill(cluster, "a")
        (stream,) = cluster["a"].node.mirroring.streams.values()
        mirror = stream.link.name
        (other,) = {"b", "c"} - {mirror}
        await cluster["a"].kill()
        node = cluster[mirror].node

        def repairs() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = status(node)["cluster"]["repairs"]
            return [row for row in rows if row["total"]]

        await cluster.until(lambda: bool(repairs()), "a repair")
        (row,) = repairs()
        assert (row["name"], row["of_name"], row["total"]) == (other, "a", COUNT)
        assert (await values(node))["repairs_under_way"] >= 1
        assert (await values(node))['catchup_remaining_messages{kind="repair"}'] == row["behind"]
        await cluster.until(lambda: not repairs(), "its end")
        assert status(node)["cluster"]["repairs_done"] >= 1
        assert (await values(node))["repairs_done_total"] >= 1
