"""What a node tells of itself: all of it bounded, and JSON."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from busnode import __version__
from busnode.node import status as status_module
from busnode.node.status import ANSWER_BYTES_MAX, answer_status, status
from busnode.wire.control import Reply, Request, SavePosition
from busnode.wire.limits import REQUEST_BYTES_MAX

from .raw_client import LIVE, Bus, RawClient, real_bus


async def ask(client: RawClient, topic: str, payload: bytes = b"") -> Any:
    """The answer of the system to a request."""
    await client.send(Request(7, 0, topic, {}, payload, many=False, timeout_s=5.0))
    reply = await client.expect(Reply)
    assert (reply.request, reply.last) == (7, True)
    assert reply.code is None, reply.payload
    return json.loads(reply.payload)


@asynccontextmanager
async def in_memory(tmp_path: Path, **settings: Any) -> AsyncGenerator[Bus, None]:
    async with real_bus(tmp_path / "nothing", storage="memory", **settings) as bus:
        yield bus
    assert not (tmp_path / "nothing").exists()


async def test_an_idle_node_tells_who_it_is(tmp_path: Path) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        await bus.settled(lambda: bus.node.serving)
        found = json.loads(json.dumps(status(bus.node)))
        http = bus.node.listeners.http
        assert http is not None
        expected = {
            "name": "n1",
            "cluster_id": "test",
            "broker_id": bus.broker_id.hex(),
            "version": __version__,
            "addresses": {"client": str(bus.node.address), "http": str(http.address)},
            "ready": True,
            "unready_reason": None,
            "draining": False,
            "incarnations": 1,
            "requests_under_way": 0,
            "providers": 0,
            "durable_names": 0,
            "tasks": {"workers": 0, "queues_count": 0, "queues": [], "other_queues": None},
            "clients_count": 0,
            "clients": [],
            "logs_count": 0,
            "logs_examined": 0,
            "logs": [],
            "flaws_count": 0,
            "flaws": [],
        }
    assert {key: found[key] for key in expected} == expected
    assert set(found) - set(expected) == {"uptime_s", "utc_us", "rss_bytes", "counters", "cluster"}
    assert found["rss_bytes"] > 10_000_000
    assert 0 <= found["uptime_s"] < 60
    assert set(found["counters"].values()) == {0}


async def test_messages_logs_and_clients_are_counted(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client(name="billing") as client:
        await client.subscribe("/a/*")
        for topic, count in (("/a/small", 1), ("/a/large", 50), ("/b", 30)):
            await client.publish(topic, [b"x"] * count)
        await client.acked(3)
        await client.send(client.batch("/b", [b"x"] * 30, seq=3))  # a repeat
        await client.publish("/a/live", [b"x"] * 4, LIVE)
        await client.barrier()
        found = status(bus.node)
        assert found["counters"]["messages_persistent"] == 81
        assert found["counters"]["messages_live"] == 4
        assert found["counters"]["repeats"] == 30
        assert found["counters"]["commits"] >= 1
        assert [log["topic"] for log in found["logs"]] == ["/a/large", "/b", "/a/small"]
        first = found["logs"][0]
        assert (first["first_no"], first["last_no"], first["holes"]) == (1, 50, 0)
        assert first["broker_id"] == bus.broker_id.hex()
        assert first["bytes"] > found["logs"][1]["bytes"] > 0
        (one,) = found["clients"]
        assert one["name"] == "billing"
        assert one["address"].startswith("127.0.0.1:")
        assert one["received_bytes"] > 100
        assert one["sent_bytes"] > 100
        (subscription,) = one["subscriptions"]
        assert subscription["pattern"] == "/a/*"
        assert subscription["behind"] == 0
        assert subscription["idle"] == "caught up"


async def idle(bus: Bus) -> tuple[str, int]:
    """Why the only subscription is idle, and how far it is behind."""
    (client,) = status(bus.node)["clients"]
    (subscription,) = client["subscriptions"]
    return subscription["idle"], subscription["behind"]


async def test_a_subscription_tells_what_it_waits_for(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", credit_bytes=0)
        assert await idle(bus) == ("caught up", 0)
        for _ in range(64):
            await client.publish("/a", [bytes(100_000)])
        await client.acked(64)
        assert await idle(bus) == ("no credit", 64)
        await client.credit(1 << 30)
        await bus.settled(lambda: next(iter(bus.node.sessions.values())).outgoing.blocked)
        word, behind = await idle(bus)
        assert word == "socket full"
        assert 0 < behind < 64
        await client.messages(64)
        assert await idle(bus) == ("caught up", 0)


async def test_a_durable_name_is_counted(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        await client.subscribe("/a", durable="me")
        await client.send(SavePosition(1, {bus.broker_id: {"/a": 5}}))
        await client.barrier()
        assert status(bus.node)["durable_names"] == 1


async def test_lists_are_cut_and_say_how_long_they_would_be(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for number in range(20):
            await client.subscribe("/a/*", number=number)
            await client.publish(f"/a/{number}", [bytes(number)])
        await client.acked(20)
        found = status(bus.node, rows_max=5)
        assert found["logs_count"] == 20
        assert [log["topic"] for log in found["logs"]] == [f"/a/{n}" for n in range(19, 14, -1)]
        (one,) = found["clients"]
        assert one["subscriptions_count"] == 20
        assert len(one["subscriptions"]) == 5


async def test_what_is_too_much_work_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "LOGS_EXAMINED_MAX", 10)
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for number in range(20):
            await client.publish(f"/a/{number}")
        await client.acked(20)
        await client.subscribe("/a/*")
        found = status(bus.node)
        assert (found["logs_count"], found["logs_examined"], len(found["logs"])) == (20, 10, 10)
        assert found["clients"][0]["subscriptions"][0]["behind"] is None


# As answers of the system -------------------------------------------------------------------------


async def test_the_system_answers_with_the_status(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        found = await ask(client, "/$sys/status")
        assert found["broker_id"] == bus.broker_id.hex()
        assert found["clients_count"] == 1


async def test_the_status_fits_into_one_reply_however_much_there_is(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        long = "/" + "é" * 124  # six bytes each in JSON
        for number in range(200):
            await client.subscribe(long, number=number)
        for number in range(1100):
            await client.publish(f"{long}/{number}")
        await client.acked(1100)
        assert len(json.dumps(status(bus.node))) > ANSWER_BYTES_MAX
        assert len(json.dumps(answer_status(bus.node, b"", None))) < REQUEST_BYTES_MAX
        found = await ask(client, "/$sys/status")
        assert found["logs_count"] == 1100


async def test_topics_come_in_pages(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for number in range(25):
            await client.publish(f"/{'even' if number % 2 == 0 else 'odd'}/{number}", [b"x"] * 2)
        await client.acked(25)
        whole = await ask(client, "/$sys/topics")
        assert (len(whole["topics"]), whole["next"], whole["count"]) == (25, None, 25)
        assert whole["topics"][3]["topic"] == "/odd/3"
        assert whole["topics"][3]["messages"] == 2
        assert whole["topics"][3]["logs"] == 1
        assert whole["topics"][3]["bytes"] > 0
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            asked = {"pattern": "/even/+", "offset": offset, "limit": 4}
            some = await ask(client, "/$sys/topics", json.dumps(asked).encode())
            assert len(some["topics"]) <= 4
            found += [row["topic"] for row in some["topics"]]
            offset = some["next"]
        assert found == [f"/even/{number}" for number in range(0, 25, 2)]


async def test_a_page_looks_at_no_more_topics_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "TOPICS_EXAMINED_MAX", 10)
    async with in_memory(tmp_path) as bus, bus.client() as client:
        for number in range(25):
            await client.publish(f"/a/{number}")
        await client.acked(25)
        asked = b'{"pattern": "/a/24"}'
        first = await ask(client, "/$sys/topics", asked)
        assert (first["topics"], first["next"]) == ([], 10)
        last = await ask(client, "/$sys/topics", b'{"pattern": "/a/24", "offset": 20}')
        assert [row["topic"] for row in last["topics"]] == ["/a/24"]
        assert last["next"] is None


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"[]",
        b"5",
        b'{"offset": -1}',
        b'{"offset": 1.5}',
        b'{"offset": 99999999999999999999}',
        b'{"limit": 0}',
        b'{"limit": "5"}',
        b'{"pattern": 5}',
        b'{"pattern": "x"}',
        b'{"pattren": "/x"}',
        b"[" * 100_000,
    ],
)
async def test_a_request_for_topics_that_makes_no_sense_is_refused(
    tmp_path: Path, payload: bytes
) -> None:
    async with in_memory(tmp_path) as bus, bus.client() as client:
        await client.send(Request(7, 0, "/$sys/topics", {}, payload, many=False, timeout_s=5.0))
        error = await client.refused()
        assert error.code in ("REFUSED", "BAD_PATTERN")
        assert error.about == 7
        await ask(client, "/$sys/topics")  # and the session goes on
