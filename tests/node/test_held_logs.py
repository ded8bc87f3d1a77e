"""What one node tells of the logs that it holds: in pages, and bounded."""

import json
from pathlib import Path
from typing import Any

import pytest

from busnode.node import held_logs
from busnode.node.held_logs import answer_logs
from busnode.node.log_holders import merge_logs

from .raw_client import real_bus
from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored, publish
from .test_status import ask, in_memory


def question(**asked: Any) -> bytes:
    return json.dumps(asked).encode()


async def test_logs_come_in_pages_and_each_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_logs, "LOGS_EXAMINED_MAX", 7)
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for number in range(25):
            await client.publish(f"/{'even' if number % 2 == 0 else 'odd'}/{number}")
        await client.acked(25)
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = await ask(
                client, "/$sys/logs", question(pattern="/even/+", offset=offset, limit=3)
            )
            assert len(page["logs"]) <= 3
            assert page["count"] == 25
            found += [row["topic"] for row in page["logs"]]
            offset = page["next"]
        assert found == [f"/even/{number}" for number in range(0, 25, 2)]


async def test_logs_that_are_named_are_told_and_others_are_not(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for topic in ("/a", "/b", "/c"):
            await client.publish(topic)
        await client.acked(3)
        me = bus.broker_id.hex()
        named = question(logs=[[me, "/c"], [me, "/a"], [me, "/nobody"], ["00" * 16, "/a"]])
        page = await ask(client, "/$sys/logs", named)
        assert [row["topic"] for row in page["logs"]] == ["/c", "/a"]
        assert page["next"] is None
        first = page["logs"][0]
        assert (first["role"], first["open"], first["level"]) == ("origin", True, "local")
        assert first["origin"] == page["node"] == "n1"


@pytest.mark.parametrize(
    "payload",
    [
        b"x", b"[]", b'{"limit": 0}', b'{"offset": -1}', b'{"logs": 5}', b'{"logs": [5]}',
        b'{"logs": [["zz", "/a"]]}', b'{"logs": [["00", "/a"]]}', b'{"x": 1}', b"[" * 100_000,
    ],
)  # fmt: skip
async def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, payload: bytes) -> None:
    async with real_bus(tmp_path) as bus:
        with pytest.raises(Exception, match="expected") as refused:
            answer_logs(bus.node, payload, None)
        assert type(refused.value).__name__ == "Refused"


def told(cluster: SimulatedCluster, *names: str) -> dict[str, list[dict[str, Any]]]:
    return {
        name: answer_logs(cluster[name].node, b'{"pattern": "/t"}', None)["logs"] for name in names
    }


def test_holders_are_known_while_an_origin_lives_and_after_it() -> None:
    @on_cluster(0, "a", "b", "c", repair_after_s=5.0)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        async with cluster.client("a") as bus:
            await publish(bus, "/t", range(10))
        (log,) = merge_logs(told(cluster, "a", "b", "c"))
        (stream,) = cluster["a"].node.mirroring.streams.values()
        mirror = stream.link.name
        assert (log.origin, log.is_open, log.level, log.last_no) == ("a", True, "mirrored", 10)
        assert [(h.node, h.role, h.lag) for h in log.holders] == [
            ("a", "origin", 0), (mirror, "mirror", 0),
        ]  # fmt: skip
        await cluster["a"].kill()
        await cluster.until(lambda: "a" not in cluster["b"].linked | cluster["c"].linked)
        (log,) = merge_logs(told(cluster, "b", "c"))
        assert [(h.node, h.role) for h in log.holders] == [(mirror, "copy")]
        assert (log.is_open, log.level, log.whole_copies) == (False, None, 1)
        assert log.troubles(2, 2) == ["1 of 2 whole copies"]

        def repaired() -> bool:
            (log,) = merge_logs(told(cluster, "b", "c"))
            return log.whole_copies == 2

        await cluster.until(repaired, "a second copy")
