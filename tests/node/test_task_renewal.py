"""Tasks that wait for longer than messages are kept, in the simulator."""

import trio

from busnode.node.publishing import TASKS
from busnode.node.task_queue import JOURNAL
from busnode.wire.ids import LogId, Topic

from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored

QUEUE = "emails"
RETAIN_S = 120.0


def test_what_waits_for_longer_than_retention_stays_and_what_is_finished_goes() -> None:
    @on_cluster(0, "a", "b", retain_s=RETAIN_S, segment_bytes_max=4096)
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="p") as bus:
            queue = bus.queue(QUEUE)
            late = await queue.enqueue(b"late", delay=700, key="k")
            doomed = await queue.enqueue(b"dead")
            async for task in queue.poll():
                await task.fail("broken", permanent=True)
                break
            for _ in range(60):  # others come and go
                await queue.enqueue_many([bytes(200)] * 20)
                left = 20
                async for tasks in queue.poll_many(20):
                    await queue.complete(tasks)
                    left -= len(tasks)
                    if not left:
                        break
                await trio.sleep(10)
            node = cluster["a"].node
            assert node.task_renewal.carried >= 10
            for holder in ("a", "b"):
                store = cluster[holder].node.store
                for topic in (TASKS, JOURNAL):
                    log = store.get(LogId(node.broker_id, Topic(topic + QUEUE)))
                    assert log is not None
                    assert log.first_no > 1, f"{log.log_id} at {holder} frees its space"
                    assert log.size_bytes < 200_000
            statistics = node.task_queues.owned[QUEUE].machine.statistics()
            assert (statistics.delayed, statistics.dead, statistics.ready) == (1, 1, 0)
            await cluster["a"].lose_power()
        async with cluster.client("b", name="w") as bus:
            queue = bus.queue(QUEUE)
            await trio.sleep(30)
            (letter,) = await queue.dead.list()
            assert (letter.id, letter.error) == (doomed.id, "broken")
            async for task in queue.poll():
                assert (task.id, task.payload) == (late.id, b"late")
                await task.complete()
                break
