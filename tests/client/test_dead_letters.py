"""Dead letters and the state of queues at real nodes."""

import anyio

import busnode
from busnode.node.embedding import Node
from busnode.testing import BusCluster
from tests.client.scripted_node import on_both_loops
from tests.client.test_tasks import take


@on_both_loops
async def test_what_fails_is_tried_again_and_then_dead(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url, name="w1") as bus:
        queue = bus.queue("emails", retry="0,0")
        receipt = await queue.enqueue(b"hello", headers={"k": "v"})
        for attempt in (1, 2):
            [task] = await take(queue, 1)
            assert (task.id, task.attempt) == (receipt.id, attempt)
            await task.fail(f"no {attempt}")
        [letter] = await queue.dead.list(error="no 2")
        assert (letter.id, letter.attempts, letter.error) == (receipt.id, 2, "no 2")
        shown = await queue.dead.show(receipt.id)
        assert shown is not None
        assert (shown.payload, shown.headers) == (b"hello", {"k": "v"})
        assert [(each.attempt, each.worker, each.error) for each in shown.history] == [
            (1, "w1", "no 1"),
            (2, "w1", "no 2"),
        ]
        assert await queue.dead.list(error="no such text") == []
        assert await queue.dead.requeue(receipt.id, payload=b"better") == [receipt.id]
        [task] = await take(queue, 1)
        assert (task.id, task.payload) == (receipt.id, b"better")
        await task.fail("never", permanent=True)
        assert (await queue.status()).dead == 1
        assert await queue.dead.delete(receipt.id, "unknown-7") == [receipt.id]
        assert await queue.dead.purge() == 0
        assert await queue.dead.show(receipt.id) is None


@on_both_loops
async def test_the_state_of_a_queue_counts_all_nodes(bus_cluster: BusCluster) -> None:
    first, second, third = bus_cluster.nodes
    async with busnode.connect(first.url) as one, busnode.connect(second.url) as two:
        queue = one.queue("emails")
        await queue.enqueue_many([b"x"] * 3)
        await two.queue("emails").enqueue_many([b"x"] * 4)
        await two.queue("emails").enqueue(b"later", delay=1000)
        [task] = await take(queue, 1)
        status = await queue.status()
        assert (status.ready, status.leased, status.delayed, status.dead) == (6, 1, 1, 0)
        assert set(status.nodes) == {first.name, second.name, third.name}
        assert status.silent == {}
        assert status.oldest is not None
        await task.complete()
        tasks = await take(queue, 6)
        await queue.fail(tasks, "all of them", permanent=True)
        letters = await two.queue("emails").dead.list()
        assert {letter.id for letter in letters} == {task.id for task in tasks}
        assert await two.queue("emails").dead.purge() == 6
        assert (await queue.status()).dead == 0
        await anyio.to_thread.run_sync(bus_cluster.kill, third)
        assert (await queue.status()).delayed == 1
