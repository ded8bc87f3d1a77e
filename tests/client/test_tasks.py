"""Task queues at real nodes, on trio and asyncio."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

import busnode
from busnode.client import Queue, Task, TaskEvent
from busnode.node.embedding import Node
from busnode.testing import BusCluster
from tests.client.scripted_node import eventually, on_both_loops


async def take(queue: Queue, count: int, **options: float) -> list[Task]:
    """So many tasks, and the end of the poll."""
    found: list[Task] = []
    async with queue.poll_many(count, **options) as poll:  # type: ignore[arg-type]
        while len(found) < count:
            found += await anext(poll)
    return found


@on_both_loops
async def test_a_task_is_enqueued_leased_and_completed(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url, name="w1") as bus:
        queue = bus.queue("emails")
        receipt = await queue.enqueue(b"hello", headers={"k": "v"})
        async for task in queue.poll():
            assert (task.id, task.payload, task.headers) == (receipt.id, b"hello", {"k": "v"})
            assert (task.attempt, task.queue) == (1, "emails")
            assert abs(task.enqueued - datetime.now(UTC)) < timedelta(minutes=1)
            await task.complete()
            await task.complete()  # a repeat is no harm
            break


@on_both_loops
async def test_many_are_completed_in_bulk(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus:
        queue = bus.queue("emails")
        payloads = [b"%d" % number for number in range(5000)]
        receipts = await queue.enqueue_many(payloads)
        done: dict[str, bytes] = {}
        async with queue.poll_many(1000, prefetch=2000) as poll:
            while len(done) < len(payloads):
                tasks = await anext(poll)
                await queue.complete(tasks)
                done |= {task.id: task.payload for task in tasks}
        assert [done[receipt.id] for receipt in receipts] == payloads


@on_both_loops
async def test_what_fails_is_tried_again(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus:
        queue = bus.queue("emails", retry="0,0,0")
        receipt = await queue.enqueue(b"hello")
        for attempt in (1, 2, 3):
            [task] = await take(queue, 1)
            assert (task.id, task.attempt) == (receipt.id, attempt)
            await task.fail(f"no {attempt}")


@on_both_loops
async def test_a_lease_that_ended_is_another_workers(bus_node: Node) -> None:
    async with (
        busnode.connect(bus_node.url, name="slow") as slow,
        busnode.connect(bus_node.url, name="quick") as quick,
    ):
        await slow.queue("emails").enqueue(b"hello")
        [late] = await take(slow.queue("emails"), 1, lease=0.2)
        [task] = await take(quick.queue("emails"), 1)
        assert (task.id, task.attempt) == (late.id, 2)
        assert task.fence > late.fence
        with pytest.raises(busnode.LeaseExpired):
            await late.complete()
        await task.complete()


@on_both_loops
async def test_what_was_released_or_prefetched_comes_to_others_at_once(bus_node: Node) -> None:
    async with (
        busnode.connect(bus_node.url, name="first") as first,
        busnode.connect(bus_node.url, name="second") as second,
    ):
        queue = first.queue("emails")
        await queue.enqueue_many([b"%d" % number for number in range(5)])
        async for task in queue.poll(prefetch=5):
            await task.release()
            break
        tasks = await take(second.queue("emails"), 5)
        assert sorted(task.payload for task in tasks) == [b"%d" % number for number in range(5)]
        assert {task.attempt for task in tasks} == {1}
        await second.queue("emails").complete(tasks)


@on_both_loops
async def test_priority_and_delay(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus:
        queue = bus.queue("emails")
        await queue.enqueue(b"later", delay=0.3)
        await queue.enqueue(b"low", priority=-1)
        await queue.enqueue(b"high", priority=5)
        await queue.enqueue(b"plain")
        seen: list[bytes] = []
        async for task in queue.poll():
            seen.append(task.payload)
            await task.complete()
            if len(seen) == 4:
                break
        assert seen == [b"high", b"plain", b"low", b"later"]


@on_both_loops
async def test_hooks_hear_of_what_others_have_done(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus, busnode.connect(bus_node.url) as other:
        queue = bus.queue("emails")
        completed: list[TaskEvent] = []
        failed: list[TaskEvent] = []
        queue.on_completed(completed.append)
        queue.on_failed(failed.append)
        async with queue.hooks():
            await queue.enqueue_many([b"good", b"bad"])
            for task in await take(other.queue("emails"), 2):
                if task.payload == b"good":
                    await task.complete()
                else:
                    await task.fail("why", permanent=True)
            await eventually(lambda: bool(completed and failed))
        assert (completed[0].payload, completed[0].queue) == (b"good", "emails")
        assert failed[0].payload == b"bad"
        assert failed[0].history[-1].error == "why"


@on_both_loops
async def test_workers_at_any_node_get_tasks_of_all_nodes(bus_cluster: BusCluster) -> None:
    first, second, third = bus_cluster.nodes
    async with (
        busnode.connect(first.url) as one,
        busnode.connect(second.url) as two,
        busnode.connect(third.url) as three,
    ):
        receipts = []
        for bus in (one, two):
            receipts += await bus.queue("emails").enqueue_many([b"x"] * 50)
        tasks = await take(three.queue("emails"), 100)
        await three.queue("emails").complete(tasks)
        assert {task.id for task in tasks} == {receipt.id for receipt in receipts}


@on_both_loops
async def test_a_workers_home_may_die_while_it_works(bus_cluster: BusCluster) -> None:
    home, second, _ = bus_cluster.nodes
    async with busnode.connect(home.url) as bus, busnode.connect(second.url) as other:
        receipts = await other.queue("emails").enqueue_many([b"x"] * 20)
        tasks = await take(bus.queue("emails"), 20)
        await anyio.to_thread.run_sync(bus_cluster.kill, home)
        await bus.queue("emails").complete(tasks)
        assert {task.id for task in tasks} == {receipt.id for receipt in receipts}
