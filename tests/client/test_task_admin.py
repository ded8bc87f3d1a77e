"""Dead letters and the state of a queue, put together from what all nodes tell; and hooks."""

import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import msgpack
import pytest

from busnode.client import Attempt, Bus, TaskEvent, connect
from busnode.wire import control
from busnode.wire.errors import BadTask, Forbidden, Refused, UnknownQueue
from busnode.wire.frames import FrameType
from tests.client.scripted_node import (
    Peer,
    ScriptedNode,
    chunk,
    eventually,
    on_both_loops,
    record,
    scripted_node,
    visit,
)

SECOND_US = 1_000_000
ENQUEUED_US = 1_700_000_000 * SECOND_US

Answer = Callable[[dict[str, Any]], dict[str, Any] | str]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"a-{number}",
        "queue": "emails",
        "state": "dead",
        "attempts": 5,
        "enqueued_us": ENQUEUED_US,
        "error": "no such address",
        "failed_us": ENQUEUED_US + number * SECOND_US,
        "worker": "w1",
        "payload_bytes": 3,
        "unheard_of": True,
        **more,
    }


class Cluster:
    """Two nodes that answer as a test says; the first is the home."""

    def __init__(self, home: ScriptedNode, other: ScriptedNode) -> None:
        self._nodes = {"home": home, "other": other}
        self.asked: dict[str, list[dict[str, Any]]] = {"home": [], "other": []}
        self.answers: dict[str, Answer] = {}
        self.linked = True

    async def serve(self, name: str) -> None:
        async with anyio.create_task_group() as group:
            while True:
                group.start_soon(self._serve_one, name, await self._nodes[name].accept())

    async def _serve_one(self, name: str, peer: Peer) -> None:
        while True:
            try:
                event = await peer.receive()
            except EOFError:
                return
            if isinstance(event, control.Request):
                await peer.send(self._reply(name, event))
            elif isinstance(event, control.Goodbye):
                peer.close()
                return

    def _reply(self, name: str, request: control.Request) -> control.Reply:
        if request.topic == "/$sys/status":
            at = [str(self._nodes["other"].address)] if self.linked else []
            peer = {"name": "other", "broker_id": "b", "link": "up", "dials_us": True}
            return self._said(
                request, {"name": name, "cluster": {"peers": [{**peer, "clients_at": at}]}}
            )
        assert request.topic == "/$sys/tasks"
        asked = json.loads(request.payload)
        self.asked[name].append(asked)
        return self._said(request, self.answers[name](asked))

    def _said(self, request: control.Request, answer: dict[str, Any] | str) -> control.Reply:
        if isinstance(answer, str):
            return control.Reply(request.request, answer, {}, b"refused", True)
        return control.Reply(request.request, None, {}, json.dumps(answer).encode(), True)


@asynccontextmanager
async def cluster(home: Answer, other: Answer) -> AsyncIterator[tuple[Bus, Cluster]]:
    async with (
        scripted_node() as first,
        scripted_node() as second,
        anyio.create_task_group() as group,
    ):
        nodes = Cluster(first, second)
        nodes.answers = {"home": home, "other": other}
        for name in ("home", "other"):
            group.start_soon(nodes.serve, name)
        async with connect(first.url) as bus:
            yield bus, nodes
        group.cancel_scope.cancel()


def tells(answer: dict[str, Any] | str) -> Answer:
    return lambda _: answer


@on_both_loops
async def test_dead_letters_of_all_nodes_are_listed_the_oldest_first() -> None:
    async with cluster(
        tells({"tasks": [row(1), row(3)], "next": None}), tells({"tasks": [row(2)], "next": None})
    ) as (bus, nodes):
        dead = bus.queue("emails").dead
        letters = await dead.list(error="address", since=datetime(2023, 1, 1, tzinfo=UTC))
        assert [(letter.id, letter.node) for letter in letters] == [
            ("a-1", "home"),
            ("a-2", "other"),
            ("a-3", "home"),
        ]
        assert nodes.asked["home"] == nodes.asked["other"]
        [asked] = nodes.asked["home"]
        assert (asked["do"], asked["queue"], asked["error"]) == ("dead", "emails", "address")
        assert asked["since_us"] == 1_672_531_200 * SECOND_US
        first = letters[0]
        assert (first.attempts, first.error, first.worker) == (5, "no such address", "w1")
        assert first.enqueued == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert first.payload is None
        assert [letter.id for letter in await dead.list(limit=2)] == ["a-1", "a-2"]
        assert nodes.asked["home"][-1]["limit"] == 2
        assert dead.silent == {}
        with pytest.raises(BadTask):
            await dead.list(since=datetime(2023, 1, 1))


@on_both_loops
async def test_lists_come_in_pages() -> None:
    def home(asked: dict[str, Any]) -> dict[str, Any]:
        page = asked.get("after", 0)
        return {"tasks": [row(page + 1)], "next": page + 1 if page < 4 else None}

    async with cluster(home, tells({"tasks": [], "next": None})) as (bus, _):
        letters = await bus.queue("emails").dead.list()
        assert [letter.id for letter in letters] == [f"a-{n}" for n in range(1, 6)]


@on_both_loops
async def test_a_node_that_does_not_answer_is_named() -> None:
    async with cluster(tells({"tasks": [row(1)], "next": None}), tells("FORBIDDEN")) as (bus, _):
        dead = bus.queue("emails").dead
        assert [letter.id for letter in await dead.list()] == ["a-1"]
        assert dead.silent == {"other": "refused"}
    async with cluster(tells("FORBIDDEN"), tells({"tasks": [], "next": None})) as (bus, _):
        with pytest.raises(Forbidden):
            await bus.queue("emails").dead.list()


@on_both_loops
async def test_one_letter_is_shown_with_all_its_attempts() -> None:
    history = [[1, ENQUEUED_US, "w1", "no route"], [2, ENQUEUED_US + SECOND_US, "w2", "no such"]]
    shown = row(
        2, payload=base64.b64encode(b"\x00hi").decode(), headers={"k": "v"}, history=history
    )

    def other(asked: dict[str, Any]) -> dict[str, Any]:
        return {"tasks": [shown] if asked["ids"] == ["a-2"] else []}

    async with cluster(tells({"tasks": []}), other) as (bus, _):
        dead = bus.queue("emails").dead
        letter = await dead.show("a-2")
        assert letter is not None
        assert (letter.payload, letter.headers, letter.node) == (b"\x00hi", {"k": "v"}, "other")
        assert [(each.attempt, each.worker, each.error) for each in letter.history] == [
            (1, "w1", "no route"),
            (2, "w2", "no such"),
        ]
        assert (letter.history[1].at - letter.history[0].at).total_seconds() == 1
        assert await dead.show("a-9") is None


@on_both_loops
async def test_acts_go_to_all_nodes_and_tell_what_was_done() -> None:
    def node(mine: set[str]) -> Answer:
        def answer(asked: dict[str, Any]) -> dict[str, Any]:
            if asked["do"] == "purge":
                return {"count": len(mine)}
            return {"done": [each for each in asked["ids"] if each in mine]}

        return answer

    async with cluster(node({"a-1", "a-2"}), node({"a-3"})) as (bus, nodes):
        dead = bus.queue("emails").dead
        assert await dead.requeue("a-3", "a-1", "a-9") == ["a-3", "a-1"]
        assert "payload" not in nodes.asked["home"][-1]
        assert await dead.requeue("a-1", payload=b"\xff") == ["a-1"]
        assert base64.b64decode(nodes.asked["other"][-1]["payload"]) == b"\xff"
        assert await dead.delete("a-2") == ["a-2"]
        assert await dead.purge() == 3
        many = [f"a-{number}" for number in range(2500)]
        assert await dead.delete(*many) == ["a-1", "a-2", "a-3"]
        assert [len(asked["ids"]) for asked in nodes.asked["home"][-3:]] == [1000, 1000, 500]
        with pytest.raises(BadTask):
            await dead.delete(["a-1"])  # type: ignore[arg-type]  # what a user may try
        with pytest.raises(BadTask):
            await dead.requeue("a-1", payload="text")  # type: ignore[arg-type]


@on_both_loops
async def test_an_unknown_queue_is_told_by_its_code() -> None:
    async with cluster(tells("UNKNOWN_QUEUE"), tells("UNKNOWN_QUEUE")) as (bus, _):
        with pytest.raises(UnknownQueue):
            await bus.queue("emails").dead.purge()


@on_both_loops
async def test_the_state_of_a_queue_is_the_sum_of_all_nodes() -> None:
    home = {"queue": "emails", "ready": 3, "leased": 1, "dead": 2, "oldest_us": ENQUEUED_US}
    other = {"queue": "emails", "ready": 4, "delayed": 9, "oldest_us": ENQUEUED_US - SECOND_US}
    async with cluster(
        tells({"queues": [{"queue": "others", "ready": 77}, home]}), tells({"queues": [other]})
    ) as (bus, nodes):
        status = await bus.queue("emails").status()
        assert (status.ready, status.leased, status.dead, status.delayed) == (7, 1, 2, 9)
        assert (status.retrying, status.completed) == (0, 0)
        assert status.oldest == datetime(2023, 11, 14, 22, 13, 19, tzinfo=UTC)
        assert set(status.nodes) == {"home", "other"}
        assert status.silent == {}
        nodes.linked = False
        nodes.answers["home"] = tells({"queues": []})
        status = await bus.queue("emails").status()
        assert (status.ready, status.oldest, set(status.nodes)) == (0, None, {"home"})


# Hooks --------------------------------------------------------------------------------------------


def event(number: int, queue: str = "emails", **more: Any) -> bytes:
    told = {
        "id": f"a-{number}",
        "queue": queue,
        "payload": b"hi",
        "headers": {"k": "v", "$priority": "3"},
        "attempts": 2,
        "history": [[1, ENQUEUED_US, "w1", "no route"]],
        "worker": "w2",
        "at_us": ENQUEUED_US,
    }
    return msgpack.packb({**told, **more})


def live(subscription: int, *payloads: bytes) -> bytes:
    return chunk(subscription, *[record(0, [payload]) for payload in payloads])


@on_both_loops
async def test_hooks_are_called_with_what_became_of_their_queues_tasks() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        queue = bus.queue("emails")
        seen: list[tuple[str, TaskEvent]] = []

        @queue.on_completed
        def completed(event: TaskEvent) -> None:
            seen.append(("completed", event))

        @queue.on_failed
        async def failed(event: TaskEvent) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append(("failed", event))

        done = anyio.Event()

        async def listen() -> None:
            async with queue.hooks():
                await done.wait()
            seen.append(("over", seen[0][1]))

        group.start_soon(listen)
        numbers = {}
        for _ in range(2):
            asked = await peer.subscribed()
            numbers[asked.pattern] = asked.subscription
        completions, failures = (numbers[f"/$sys/task/{kind}"] for kind in ("completed", "failed"))
        await peer.send(live(completions, event(1, "others"), event(2)))
        await eventually(lambda: len(seen) == 1)
        await peer.send(live(failures, event(3)))
        await eventually(lambda: len(seen) == 2)
        assert [(kind, each.id) for kind, each in seen] == [("completed", "a-2"), ("failed", "a-3")]
        told = seen[1][1]
        at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert told == TaskEvent(
            "a-3", "emails", b"hi", {"k": "v"}, 2, (Attempt(1, at, "w1", "no route"),), "w2", at
        )
        done.set()
        for _ in range(2):
            await peer.expect(control.Unsubscribe)
        await eventually(lambda: seen[-1][0] == "over")


@on_both_loops
async def test_a_hook_that_raises_and_an_event_that_cannot_be_read_stop_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "busnode.client")
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        queue = bus.queue("emails")
        seen: list[str] = []

        @queue.on_failed
        def failed(event: TaskEvent) -> None:
            seen.append(event.id)
            raise ValueError("broken")

        async def listen() -> None:
            async with queue.hooks():
                await anyio.sleep_forever()

        group.start_soon(listen)
        number = (await peer.subscribed()).subscription
        await peer.send(live(number, event(1), b"\xc1", msgpack.packb([1]), event(2)))
        await eventually(lambda: seen == ["a-1", "a-2"])
        assert "a-1" in caplog.text
        group.cancel_scope.cancel()


@on_both_loops
async def test_hooks_that_are_refused_or_missing_raise() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        queue = bus.queue("emails")
        with pytest.raises(Refused):
            queue.hooks()
        queue.on_completed(print)
        queue.on_failed(print)
        errors: list[Exception] = []

        async def listen() -> None:
            try:
                async with queue.hooks():
                    pytest.fail("they were refused")
            except Forbidden as error:
                errors.append(error)

        group.start_soon(listen)
        await peer.subscribed()
        asked = await peer.expect(control.Subscribe)
        kind = int(FrameType.SUBSCRIBE)
        await peer.send(control.Error("FORBIDDEN", "no", kind, asked.subscription, None))
        await eventually(lambda: len(errors) == 1)
        assert bus.statistics().subscriptions == 0


@on_both_loops
async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        queue = bus.queue("emails")
        queue.on_failed(print)
        group.start_soon(peer.subscribed)
        with pytest.raises(ValueError, match="mine"):
            async with queue.hooks():
                raise ValueError("mine")
