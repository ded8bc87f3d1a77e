"""What a node tells of its queues, in its status and in its metrics: all of it bounded."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from busnode.client import Bus
from busnode.client.everyone import ask_pages
from busnode.node import task_metrics, task_status
from busnode.node.metrics import render
from busnode.node.node import RunningNode
from busnode.node.status import status

from .simulated_cluster import SimulatedCluster, on_cluster


def on_one_node(main: Callable[[RunningNode, Bus], Awaitable[None]]) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="worker") as bus:
            await main(cluster["a"].node, bus)


async def fill(bus: Bus) -> None:
    """One task in each state, but for those that are settling."""
    queue = bus.queue("emails", retry="0,600")
    await queue.enqueue(b"dies")
    await queue.enqueue(b"fails")
    await queue.enqueue(b"done")
    async for task in queue.poll():
        if task.payload == b"done":
            await task.complete()
            break
        await task.fail("no", permanent=task.payload == b"dies")
    await queue.enqueue(b"later", delay=60)
    await queue.enqueue(b"held")
    async for _ in queue.poll(lease=3600):
        break  # it stays leased
    await queue.enqueue_many([b"waits"] * 2)


STATES = {"ready": 2, "delayed": 1, "retrying": 1, "leased": 1, "settling": 0, "dead": 1}


def test_the_status_has_a_row_for_each_queue() -> None:
    async def main(node: RunningNode, bus: Bus) -> None:
        await fill(bus)
        found = status(node)["tasks"]
        assert (found["queues_count"], found["workers"], found["other_queues"]) == (1, 0, None)
        (row,) = found["queues"]
        assert {name: row[name] for name in STATES} == STATES
        assert (row["completed"], row["failed"], row["enqueued"]) == (1, 2, 7)
        assert row["oldest_us"] <= node.world.clock.utc_us()
        assert status(node, 0)["tasks"]["queues"] == []

    on_one_node(main)


def test_workers_are_counted_while_they_poll() -> None:
    async def main(node: RunningNode, bus: Bus) -> None:
        poll = bus.queue("emails").poll()
        with trio.move_on_after(1):
            await anext(poll)
        assert status(node)["tasks"]["workers"] == 1
        (client,) = status(node)["clients"]
        assert client["queues"] == [{"queue": "emails", "wants": 1}]
        poll.close()
        await trio.sleep(1)
        assert status(node)["tasks"]["workers"] == 0
        assert status(node)["clients"][0]["queues"] == []

    on_one_node(main)


def test_the_largest_queues_have_rows_and_the_others_are_summed_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_status, "QUEUES_SHOWN_MAX", 2)
    monkeypatch.setattr(task_status, "QUEUES_EXAMINED_MAX", 4)

    async def main(node: RunningNode, bus: Bus) -> None:
        for size in (1, 5, 2, 4, 3):
            await bus.queue(f"q{size}").enqueue_many([b"x"] * size)
        found = status(node)["tasks"]
        assert [row["queue"] for row in found["queues"]] == ["q5", "q4"]
        assert found["queues_count"] == 5
        others = found["other_queues"]
        assert (others["queues"], others["ready"], others["dead"]) == (2, 3, 0)
        assert others["oldest_us"] is not None

    on_one_node(main)


async def scraped(node: RunningNode) -> dict[tuple[str, ...], float]:
    """Samples by their names and the values of their labels."""
    text, _ = await render(node)
    return {
        (sample.name.removeprefix("busnode_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_metrics_tell_of_each_queue_and_of_all() -> None:
    async def main(node: RunningNode, bus: Bus) -> None:
        await fill(bus)
        await bus.queue("reports").enqueue(b"x")
        await trio.sleep(30)
        found = await scraped(node)
        assert {state: found["queue_tasks", "emails", state] for state in STATES} == STATES
        assert found["tasks", "ready"] == 3
        assert found["tasks", "dead"] == 1
        assert found["queues",] == 2
        assert found["task_workers",] == 0
        assert found["queue_completed_total", "emails"] == 1
        assert found["queue_failed_total", "emails"] == 2
        assert found["tasks_completed_total",] == 1
        assert found["tasks_failed_total",] == 2
        assert found["tasks_enqueued_total",] == 8
        assert 30 <= found["queue_oldest_seconds", "reports"] < 35
        assert ("queue_tasks", "$others", "ready") not in found

    on_one_node(main)


def test_metrics_name_no_more_than_some_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_metrics, "QUEUES_NAMED_MAX", 2)

    async def main(node: RunningNode, bus: Bus) -> None:
        for size in (1, 5, 2, 4, 3):
            await bus.queue(f"q{size}").enqueue_many([b"x"] * size)
        found = await scraped(node)
        named = {key[1] for key in found if key[0] == "queue_tasks"}
        assert named == {"q5", "q4", "$others"}
        assert found["queue_tasks", "$others", "ready"] == 6
        assert found["tasks", "ready"] == 15
        assert {key[1] for key in found if key[0] == "queue_completed_total"} == {"q5", "q4"}

    on_one_node(main)


def test_the_list_of_queues_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busnode.node.task_answers.ROWS_MAX", 2)

    async def main(node: RunningNode, bus: Bus) -> None:
        del node
        for number in range(5):
            await bus.queue(f"q{number}").enqueue(b"x")
        rows = await ask_pages(bus, "/$sys/tasks", "queues", "after", {"do": "queues"}, 5.0)
        assert [row["queue"] for row in rows] == [f"q{number}" for number in range(5)]

    on_one_node(main)
