"""Queues of a cluster, in the simulator: workers anywhere, and owners that die or are cut off."""

from collections import Counter

import pytest
import trio

from busnode.client import Bus, Queue, Task
from busnode.node.publishing import TASKS
from busnode.node.task_queues import TaskQueues
from busnode.tasks.claims import GONE_AFTER_S
from busnode.tasks.statistics import Statistics
from busnode.wire.control import Control, TaskClaim
from busnode.wire.ids import BrokerId, LogId, Topic

from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster
from .test_mirroring import mirrored

SEEDS = pytest.mark.parametrize("seed", range(3))
QUEUE = "emails"


class Work:
    """Workers that complete all they get, and what they did."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.attempts: dict[str, list[int]] = {}
        self.by: dict[str, int] = {}

    async def on(self, bus: Bus, name: str, *, lease_s: float = 20.0, n: int = 10) -> None:
        queue = bus.queue(QUEUE)
        async for tasks in queue.poll_many(n, lease=lease_s):
            for task in tasks:
                self.attempts.setdefault(task.id, []).append(task.attempt)
            self.by[name] = self.by.get(name, 0) + len(tasks)
            await queue.complete(tasks)
            self.done.update(task.payload.decode() for task in tasks)


async def enqueue(bus: Bus, numbers: range, **options: object) -> list[str]:
    payloads = [b"%d" % number for number in numbers]
    receipts = await bus.queue(QUEUE).enqueue_many(payloads, **options)  # type: ignore[arg-type]
    return [receipt.id for receipt in receipts]


async def some(queue: Queue, n: int) -> list[Task]:
    """The tasks that come first."""
    async for tasks in queue.poll_many(n):
        return tasks
    raise AssertionError("a poll does not end by itself")


def statistics(queues: TaskQueues) -> Statistics:
    return queues.owned[QUEUE].machine.statistics()


@SEEDS
def test_a_worker_at_any_node_gets_tasks_accepted_at_any_node(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        work = Work()
        async with (
            cluster.client("a", name="pa") as pa,
            cluster.client("b", name="pb") as pb,
            cluster.client("c", name="wc") as wc,
            trio.open_nursery() as nursery,
        ):
            await enqueue(pa, range(50))
            nursery.start_soon(work.on, wc, "c")
            await enqueue(pb, range(50, 100))
            await cluster.until(lambda: len(work.done) == 50 + 50, "all of them")
            await enqueue(pa, range(100, 150))
            await cluster.until(lambda: len(work.done) == 150, "those that came later")
            nursery.cancel_scope.cancel()
        assert set(work.done.values()) == {1}


@SEEDS
def test_workers_of_all_nodes_get_their_share(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        work = Work()
        async with (
            cluster.client("a", name="p") as producer,
            cluster.client("a", name="wa") as wa,
            cluster.client("b", name="wb") as wb,
            cluster.client("c", name="wc") as wc,
            trio.open_nursery() as nursery,
        ):
            for name, bus in (("a", wa), ("b", wb), ("c", wc)):
                nursery.start_soon(lambda n=name, b=bus: work.on(b, n, n=5))  # type: ignore[misc]
            for at in range(0, 600, 30):
                await enqueue(producer, range(at, at + 30))
            await cluster.until(lambda: len(work.done) == 600, "all of them")
            nursery.cancel_scope.cancel()
        assert set(work.done.values()) == {1}
        assert min(work.by.values()) > 60, work.by


@SEEDS
@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_a_mirror_adopts_the_unfinished_tasks_of_a_dead_node(seed: int, how: str) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b", "c")
        work = Work()
        async with (
            cluster.client("a", name="p") as producer,
            cluster.client("b", "c", name="w") as worker,
        ):
            ids = await enqueue(producer, range(100))
            queue = worker.queue(QUEUE)
            tasks = await some(queue, 30)
            await queue.complete(tasks)
            finished = {task.payload.decode() for task in tasks}
            tasks = await some(queue, 1)
            await queue.fail(tasks, "no")
            failed = tasks[0].payload.decode()
            await (cluster["a"].kill() if how == "kill" else cluster["a"].lose_power())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work.on, worker, "w")
                left = 100 - len(finished) - 1
                await cluster.until(lambda: len(work.done) == left, "the rest")
                nursery.cancel_scope.cancel()
            assert set(work.done) == {str(n) for n in range(100)} - finished - {failed}
            assert set(work.done.values()) == {1}
            assert set(work.attempts) <= set(ids), "under the same ids"
            retrying = [
                statistics(node.node.task_queues).retrying
                for node in cluster.up
                if QUEUE in node.node.task_queues.owned
            ]
            assert sum(retrying) == 1


@SEEDS
def test_a_node_that_returns_after_its_tasks_were_adopted_leaves_them_where_they_are(
    seed: int,
) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        work = Work()
        async with cluster.client("a", name="p") as producer:
            await enqueue(producer, range(40), delay=60)
        await cluster["a"].kill()
        b = cluster["b"].node
        await cluster.until(lambda: QUEUE in b.task_queues.owned, "an adoption")
        await cluster.until(lambda: statistics(b.task_queues).delayed == 40, "all of them")
        await cluster["a"].start()
        await cluster.meshed()
        await trio.sleep(10)
        a = cluster["a"].node
        assert QUEUE not in a.task_queues.owned or not statistics(a.task_queues).delayed
        async with cluster.client("a", name="w") as worker, trio.open_nursery() as nursery:
            nursery.start_soon(work.on, worker, "w")
            await trio.sleep(60)
            await cluster.until(lambda: len(work.done) == 40, "all of them")
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert set(work.done.values()) == {1}


@SEEDS
def test_after_a_partition_two_owners_agree_again_and_nothing_is_lost(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        work = Work()
        async with (
            cluster.client("a", name="p") as producer,
            cluster.client("b", name="w") as worker,
        ):
            await enqueue(producer, range(40))
            cluster.network.partition("a", "b")
            b = cluster["b"].node
            await cluster.until(lambda: QUEUE in b.task_queues.owned, "an adoption")
            await cluster.until(lambda: statistics(b.task_queues).ready == 40, "all of them")
            queue = worker.queue(QUEUE)
            tasks = await some(queue, 10)
            await queue.complete(tasks)
            finished = {task.payload.decode() for task in tasks}
            cluster.network.heal("a", "b")
            await cluster.meshed()
            a = cluster["a"].node
            await cluster.until(
                lambda: statistics(a.task_queues).ready == 40 - len(finished), "what b has done"
            )
            await cluster.until(lambda: not statistics(b.task_queues).ready, "b to let go")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work.on, worker, "w")
                left = 40 - len(finished)
                await cluster.until(lambda: len(work.done) == left, "the rest")
                await trio.sleep(5)
                nursery.cancel_scope.cancel()
            assert set(work.done) == {str(n) for n in range(40)} - finished
            assert set(work.done.values()) == {1}


@SEEDS
def test_tasks_that_were_given_back_are_adopted_again_when_their_owner_dies(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="p") as producer:
            await enqueue(producer, range(40))
        b = cluster["b"].node
        for times in range(1, 4):
            cluster.network.partition("a", "b")
            await cluster.until(lambda: QUEUE in b.task_queues.owned, "an adoption")
            await cluster.until(lambda: statistics(b.task_queues).ready == 40, f"no. {times}")
            cluster.network.heal("a", "b")
            await cluster.meshed()
            await cluster.until(lambda: not statistics(b.task_queues).ready, "b to let go")
            await mirrored(cluster, "a", "b")
        await cluster["a"].kill()
        await cluster.until(lambda: statistics(b.task_queues).ready == 40, "the last adoption")


@SEEDS
def test_what_an_heir_has_finished_stays_finished_when_its_heir_has_older_copies(seed: int) -> None:
    """The last node has logs of the first and of the third owner, and none of the second's, whose
    journal told what became of the first's."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async def mirror_at(name: str, mirror: str) -> None:
            await cluster[name].kill()
            cluster[name].settings["mirror"] = mirror
            await cluster[name].start()
            await cluster.meshed()
            await mirrored(cluster, name)

        async def do(count: int, *nodes: str) -> None:
            async with cluster.client(*nodes, name="w") as worker:
                queue = worker.queue(QUEUE)
                tasks = await some(queue, count)
                assert len(tasks) == count
                await queue.complete(tasks)
                done.update(task.payload for task in tasks)

        def ready(name: str) -> int:
            queues = cluster[name].node.task_queues
            return statistics(queues).ready if QUEUE in queues.owned else 0

        done: Counter[bytes] = Counter()
        await mirror_at("c", "b")
        await mirror_at("a", "b")
        async with cluster.client("a", name="p") as producer:
            await enqueue(producer, range(40))
        await do(10, "a")
        await mirror_at("a", "c")
        await cluster.until(lambda: ready("a") == 30, "what is left")
        await do(10, "a")
        await cluster["a"].kill()
        await cluster.until(lambda: ready("c") == 20, "an adoption")
        await do(10, "c")
        await mirrored(cluster, "c")
        await cluster["c"].kill()
        await cluster.until(lambda: ready("b") > 0, "another one")
        await trio.sleep(10)
        assert ready("b") == 10
        await do(10, "b")
        assert set(done.values()) == {1}


def test_a_queue_tells_of_dead_owners_with_whose_tasks_nobody_goes_on_yet() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="p") as producer:
            await enqueue(producer, range(40))
        gone = cluster["a"].node.broker_id.hex()
        await cluster["a"].kill()
        async with cluster.client("b", name="person") as bus:
            queue = bus.queue(QUEUE)
            while not (status := await queue.status()).orphans:
                await trio.sleep(0.1)
            assert (status.ready, set(status.orphans)) == (0, {gone}), (
                "nobody owns what b has of them"
            )
            await cluster.until(lambda: QUEUE in cluster["b"].node.task_queues.owned, "an heir")
            while (status := await queue.status()).orphans:
                await trio.sleep(0.1)
            assert status.ready == 40


async def all_done_behind_the_back_of_one(
    cluster: SimulatedCluster,
) -> tuple[SimulatedNode, SimulatedNode]:
    """Of 40 tasks of `a` all are done: that is what its mirror has. The other node was its mirror
    when 10 of them were; it comes first."""
    await mirrored(cluster, "a")
    [stream] = cluster["a"].node.mirroring.streams.values()
    old, new = (cluster[name] for name in ("bc" if stream.link.name == "b" else "cb"))
    async with cluster.client("a", name="p") as producer:
        await enqueue(producer, range(40))
    work = Work()
    async with cluster.client("a", name="w") as worker:
        queue = worker.queue(QUEUE)
        await queue.complete(await some(queue, 10))
        await old.kill()
        await mirrored(cluster, "a")  # at the other one
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.on, worker, "w")
            await cluster.until(lambda: len(work.done) == 30, "all that is left")
            nursery.cancel_scope.cancel()
    await old.start()
    await cluster.meshed()
    await cluster.until(
        lambda: old.node.peers.longest_copies(cluster["a"].node.broker_id)[0] != old.node.broker_id,
        "word of who holds how much",
    )
    return old, new


@SEEDS
def test_an_heir_with_an_old_copy_waits_for_who_has_a_longer_one(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        old, new = await all_done_behind_the_back_of_one(cluster)
        await new.kill()
        await cluster["a"].kill()
        await trio.sleep(3 * GONE_AFTER_S)
        assert QUEUE not in old.node.task_queues.owned, "it knows that more was done"
        await cluster["a"].start()
        await trio.sleep(3 * GONE_AFTER_S)
        everywhere = [cluster["a"].node.task_queues, old.node.task_queues]
        assert sum(statistics(each).ready for each in everywhere if QUEUE in each.owned) == 0


@SEEDS
def test_an_heir_with_an_old_copy_does_not_jump_in_when_who_has_the_longer_one_falls(
    seed: int,
) -> None:
    """The tasks were due to be gone on with by that one, which had just been started."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        old, new = await all_done_behind_the_back_of_one(cluster)
        await new.kill()
        await cluster["a"].kill()
        await trio.sleep(GONE_AFTER_S - 1)
        await new.start()
        await cluster.until(lambda: len(old.node.peers.links) == 1, "the one that is back")
        await trio.sleep(GONE_AFTER_S / 2)
        assert QUEUE not in new.node.task_queues.owned
        await new.kill()
        await trio.sleep(GONE_AFTER_S)
        assert QUEUE not in old.node.task_queues.owned, "it knows that more was done"


@SEEDS
def test_a_claim_is_passed_on_by_who_hears_of_it(seed: int) -> None:
    """Who made it may die after it has told one node: then two would go on with the tasks, or each
    think that the other does."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        class Told:
            def __init__(self) -> None:
                self.messages: list[Control] = []

            def tell(self, message: Control) -> None:
                self.messages.append(message)

        def known_at(name: str) -> list[Control]:
            told = Told()
            cluster[name].node.task_claims.tell_all(told)
            return told.messages

        async def pass_on(origin: BrokerId) -> None:
            claim = TaskClaim(origin, BrokerId(b"x" * 16), 1, [])
            cluster["b"].node.task_claims.heard(claim)
            await cluster.until(lambda: claim in known_at("c"), "word of the claim")

        await pass_on(BrokerId(bytes(16)))  # nobody has ever seen it
        was_alive = cluster["a"].node.broker_id
        await cluster["a"].kill()
        await pass_on(was_alive)


@SEEDS
@pytest.mark.parametrize("heirs", [1, 2])
def test_tasks_that_came_back_to_their_owner_are_gone_on_with_when_that_one_dies(
    seed: int, heirs: int
) -> None:
    """Who had taken them over while their owner was cut off died before it had let go of them, and
    the owner took over from it: it needs no copies of its own tasks, whatever the dead one says."""

    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        a, b = cluster["a"], cluster["b"]
        await mirrored(cluster, "a", "b")
        async with cluster.client("a", name="p") as producer:
            await enqueue(producer, range(10))
        cluster.network.cut("a", "b")
        for _ in range(heirs - 1):
            await cluster.until(lambda: QUEUE in b.node.task_queues.owned, "an heir")
            await b.kill()
            await b.start()
        await cluster.until(lambda: QUEUE in b.node.task_queues.owned, "the last heir")
        gone = LogId(b.node.broker_id, Topic(TASKS + QUEUE))

        def copied() -> bool:
            log = a.node.store.get(gone)
            return log is not None and log.committed_no == 10

        cluster.network.heal_all()
        await cluster.until(copied, "a copy of what the heir has")
        await b.kill()
        await cluster.until(lambda: statistics(a.node.task_queues).repeated_total == 10, "a return")
        await b.start()
        await mirrored(cluster, "a")
        await trio.sleep(GONE_AFTER_S)
        await a.kill()
        await cluster.until(lambda: QUEUE in b.node.task_queues.owned, "an heir again")
        assert statistics(b.node.task_queues).ready == 10
