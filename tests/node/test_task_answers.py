"""What people ask a node of its tasks, and what they have done with dead letters."""

import json
from typing import Any

import pytest
import trio

import busnode
from busnode.client import Bus

from .simulated_cluster import SimulatedCluster, on_cluster

QUEUE = "emails"


async def ask(bus: Bus, **question: Any) -> dict[str, Any]:
    reply = await bus.request("/$sys/tasks", json.dumps(question).encode())
    found: dict[str, Any] = json.loads(reply.payload)
    return found


async def die(bus: Bus, *payloads: bytes, error: str = "broken") -> list[str]:
    """Tasks that end as dead letters: their ids."""
    queue = bus.queue(QUEUE)
    receipts = await queue.enqueue_many(payloads)
    left = len(payloads)
    async for tasks in queue.poll_many(left):
        await queue.fail(tasks, error, permanent=True)
        left -= len(tasks)
        if not left:
            break
    return [receipt.id for receipt in receipts]


def on_one_node(main: Any) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="person") as bus:
            await main(cluster, bus)


def test_a_queue_is_told_of_with_all_that_is_in_it() -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        queue = bus.queue(QUEUE)
        await die(bus, b"dead", error="boom")
        await queue.enqueue_many([b"a", b"b"])
        await queue.enqueue(b"later", delay=60)
        (row,) = (await ask(bus, do="queues"))["queues"]
        told = {name: row[name] for name in ("queue", "ready", "delayed", "dead", "leased")}
        assert told == {"queue": QUEUE, "ready": 2, "delayed": 1, "dead": 1, "leased": 0}
        found = await ask(bus, do="ls", queue=QUEUE)
        assert [each["state"] for each in found["tasks"]] == ["dead", "ready", "ready", "delayed"]
        assert found["next"] is None
        assert [each["payload_bytes"] for each in found["tasks"]] == [4, 1, 1, 5]

    on_one_node(main)


def test_pages_follow_each_other_without_a_hole() -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        ids = await die(bus, *(b"%d" % n for n in range(25)))
        found: list[str] = []
        after: int | None = 0
        while after is not None:
            page = await ask(bus, do="dead", queue=QUEUE, limit=7, after=after)
            found += [each["id"] for each in page["tasks"]]
            after = page["next"]
        assert found == ids

    on_one_node(main)


def test_dead_letters_are_found_by_error_and_time_and_shown_with_their_history() -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        await die(bus, b"one", error="disk full")
        await trio.sleep(100)
        (second,) = await die(bus, b"two", error="no such address")
        found = await ask(bus, do="dead", queue=QUEUE, error="address")
        assert [each["id"] for each in found["tasks"]] == [second]
        since_us = found["tasks"][0]["failed_us"] - 1
        later = await ask(bus, do="dead", queue=QUEUE, since_us=since_us)
        assert [each["id"] for each in later["tasks"]] == [second]
        (shown,) = (await ask(bus, do="show", queue=QUEUE, ids=[second]))["tasks"]
        (attempt,) = shown["history"]
        assert attempt[0] == 1
        assert attempt[2:] == ["person", "no such address"]

    on_one_node(main)


@pytest.mark.parametrize("restart", [False, True])
def test_a_dead_letter_is_requeued_as_it_was_or_with_another_payload(restart: bool) -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        ids = await die(bus, b"one", b"two", b"three")
        if restart:
            await cluster["a"].kill()
            await cluster["a"].start()
            await trio.sleep(5)
        dead = bus.queue(QUEUE).dead
        assert await dead.requeue(ids[0]) == [ids[0]]
        assert await dead.requeue(ids[1], payload=b"better") == [ids[1]]
        assert await dead.requeue(ids[0], "nonsense", ids[1]) == []
        found: dict[str, tuple[bytes, int]] = {}
        async for tasks in bus.queue(QUEUE).poll_many(5):
            found |= {task.id: (task.payload, task.attempt) for task in tasks}
            await bus.queue(QUEUE).complete(tasks)
            if len(found) == 2:
                break
        assert found == {ids[0]: (b"one", 1), ids[1]: (b"better", 1)}
        assert [letter.id for letter in await dead.list()] == [ids[2]]

    on_one_node(main)


def test_dead_letters_are_deleted_and_purged_and_stay_so_after_a_restart() -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        ids = await die(bus, *(b"%d" % n for n in range(5)))
        dead = bus.queue(QUEUE).dead
        assert await dead.delete(ids[1], ids[3]) == [ids[1], ids[3]]
        await cluster["a"].kill()
        await cluster["a"].start()
        await trio.sleep(5)
        assert [letter.id for letter in await dead.list()] == [ids[0], ids[2], ids[4]]
        assert await dead.purge() == 3
        assert await dead.list() == []
        await cluster["a"].kill()
        await cluster["a"].start()
        await trio.sleep(5)
        assert await dead.list() == []

    on_one_node(main)


@pytest.mark.parametrize(
    "question",
    [
        {"do": "eat", "queue": QUEUE},
        {"do": "ls"},
        {"do": "ls", "queue": 7},
        {"do": "ls", "queue": QUEUE, "state": "happy"},
        {"do": "dead", "queue": QUEUE, "limit": -1},
        {"do": "show", "queue": QUEUE, "ids": "all"},
        {"do": "requeue", "queue": QUEUE, "ids": [7]},
    ],
    ids=json.dumps,
)
def test_a_question_that_makes_no_sense_is_refused(question: dict[str, Any]) -> None:
    async def main(cluster: SimulatedCluster, bus: Bus) -> None:
        await die(bus, b"x")
        with pytest.raises(busnode.BusnodeError) as raised:
            await ask(bus, **question)
        assert raised.value.code == "REFUSED"

    on_one_node(main)
