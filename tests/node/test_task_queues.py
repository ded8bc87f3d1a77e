"""Queues of one node, in the protocol's own words: enqueue, poll, settle, and what time brings."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
import trio

from busnode.node.task_queue import JOURNAL
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import Error, TaskDone, TaskPoll, Tasks, TaskSettled
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, LogId, Topic

from .raw_client import LIVE, Bus, RawClient, SimulatedMachine

QUEUE = "emails"
TOPIC = f"/$task/{QUEUE}"
EXPIRED = "LEASE_EXPIRED"


class Worker:
    """A raw client that works on one queue."""

    def __init__(self, client: RawClient, poll: int = 1, lease_s: float = 20.0) -> None:
        self.client = client
        self.poll_no = poll
        self.lease_s = lease_s
        self.done = 0

    async def want(self, count: int) -> None:
        message = TaskPoll(self.poll_no, QUEUE, count, self.lease_s, 0, "")
        await self.client.send(message)

    async def take(self) -> Tasks:
        return await self.client.expect(Tasks, lambda tasks: tasks.poll == self.poll_no)

    async def poll(self, count: int) -> Tasks:
        await self.want(count)
        return await self.take()

    async def settle(
        self,
        owner: BrokerId,
        verb: str,
        numbers: list[int],
        fences: list[int],
        error: str = "",
        lease_s: float = 0.0,
    ) -> TaskSettled:
        self.done += 1
        done = self.done
        await self.client.send(
            TaskDone(done, owner, QUEUE, verb, numbers, fences, error, lease_s, 0)
        )
        return await self.client.expect(TaskSettled, lambda settled: settled.done == done)

    async def complete(self, tasks: Tasks) -> TaskSettled:
        return await self.settle(tasks.owner, "complete", tasks.numbers, tasks.fences)

    async def fail(self, tasks: Tasks, error: str = "no", *, reject: bool = False) -> TaskSettled:
        verb = "reject" if reject else "fail"
        return await self.settle(tasks.owner, verb, tasks.numbers, tasks.fences, error)


async def enqueue(client: RawClient, *payloads: bytes, **options: str) -> None:
    headers = [{f"${name}": value for name, value in options.items()}] * len(payloads)
    columns = Columns(payloads, headers=headers if options else None)
    body = encode_columns(columns)
    await client.send(client.batch(TOPIC, payloads, body=body))
    await client.acked(1)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def on_a_node(main: Callable[[Bus, RawClient], Awaitable[None]], **settings: Any) -> None:
    machine = SimulatedMachine()

    async def run() -> None:
        async with machine.bus(**settings) as bus, bus.client(7, "worker") as client:
            await main(bus, client)

    machine.run(run)


def test_a_task_is_given_out_with_a_lease_and_is_gone_when_it_is_completed() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, b"to ann", b"to bob")
        tasks = await worker.poll(10)
        assert tasks.owner == bus.broker_id
        assert tasks.payloads == [b"to ann", b"to bob"]
        assert (tasks.numbers, tasks.attempts) == ([1, 2], [1, 1])
        assert tasks.ids == [f"{bus.broker_id.hex()}-1", f"{bus.broker_id.hex()}-2"]
        assert tasks.fences[0] < tasks.fences[1]
        settled = await worker.complete(tasks)
        assert (settled.level, settled.refused) == ("local", [])
        statistics = bus.node.task_queues.owned[QUEUE].machine.statistics()
        assert (statistics.completed_total, statistics.ready, statistics.leased) == (2, 0, 0)

    on_a_node(main)


def test_the_next_task_comes_with_the_answer_to_the_last_where_that_was_asked_for() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, *numbered(range(5)))
        tasks = await worker.poll(1)
        for number in range(2, 5):
            numbers, fences = tasks.numbers, tasks.fences
            await client.send(
                TaskDone(
                    number, tasks.owner, QUEUE, "complete", numbers, fences, "", 0.0, 0,
                    worker.poll_no, 1,
                )
            )  # fmt: skip
            settled, following = await client.until(lambda events: len(events) == 2)
            assert isinstance(settled, TaskSettled)
            assert isinstance(following, Tasks)
            tasks = following
            assert (settled.done, settled.refused, tasks.numbers) == (number, [], [number])
        assert await client.barrier() == []
        statistics = bus.node.task_queues.owned[QUEUE].machine.statistics()
        assert (statistics.completed_total, statistics.ready, statistics.leased) == (3, 1, 1)

    on_a_node(main)


@pytest.mark.parametrize("poll_no", [0, 99])
def test_a_poll_that_nobody_knows_gets_nothing_with_an_answer(poll_no: int) -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, *numbered(range(3)))
        tasks = await worker.poll(1)
        numbers, fences = tasks.numbers, tasks.fences
        await client.send(
            TaskDone(7, tasks.owner, QUEUE, "complete", numbers, fences, "", 0.0, 0, poll_no, 1)
        )
        settled = await client.expect(TaskSettled, lambda settled: settled.done == 7)
        assert settled.refused == []
        assert await client.barrier() == []
        assert bus.node.task_queues.owned[QUEUE].machine.statistics().leased == 0

    on_a_node(main)


def test_a_poll_of_another_queue_gets_nothing_with_an_answer() -> None:
    """Whether a client may work on a queue is asked for the one that its word is about."""

    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, *numbered(range(3)))
        tasks = await worker.poll(1)
        await client.send(TaskPoll(2, "others", 1, 20.0, 0, ""))
        await client.send(client.batch("/$task/others", [b"first"]))
        assert (await client.expect(Tasks, lambda tasks: tasks.poll == 2)).payloads == [b"first"]
        await client.send(client.batch("/$task/others", [b"second"]))
        await client.acked(2)
        numbers, fences = tasks.numbers, tasks.fences
        await client.send(
            TaskDone(7, tasks.owner, QUEUE, "complete", numbers, fences, "", 0.0, 0, 2, 1)
        )
        await client.expect(TaskSettled, lambda settled: settled.done == 7)
        assert await client.barrier() == []
        assert bus.node.task_queues.owned["others"].machine.statistics().ready == 1

    on_a_node(main)


def test_words_that_come_while_the_disk_is_busy_are_one_batch_of_the_journal() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, *numbered(range(20)))
        tasks = await worker.poll(20)
        journal = bus.node.store.get(LogId(bus.broker_id, Topic(JOURNAL + QUEUE)))
        assert journal is not None
        before, commits = journal.committed_no, bus.node.committer.commits
        words = [
            TaskDone(done, tasks.owner, QUEUE, "complete", [number], [fence], "", 0.0, 0)
            for done, (number, fence) in enumerate(zip(tasks.numbers, tasks.fences, strict=True))
        ]
        await client.send(*words)
        answers = await client.until(lambda events: len(events) == 20)
        told = [each.done for each in answers if isinstance(each, TaskSettled)]
        assert sorted(told) == [*range(20)]
        assert journal.committed_no - before == 20
        assert bus.node.committer.commits - commits <= 2

    on_a_node(main)


def test_a_poll_waits_for_tasks_and_its_credit_is_not_overdrawn() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await worker.want(3)
        assert await client.barrier() == []
        await enqueue(client, *numbered(range(2)))
        assert (await worker.take()).payloads == numbered(range(2))
        await enqueue(client, *numbered(range(2, 6)))
        assert (await worker.take()).payloads == [b"2"]
        await bus.committed()
        assert await client.barrier() == []
        await worker.want(2)
        assert (await worker.take()).payloads == [b"3", b"4"]

    on_a_node(main)


def test_an_expired_lease_gives_the_task_to_somebody_else_at_its_place() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client, lease_s=5.0)
        await enqueue(client, *numbered(range(3)))
        late = await worker.poll(1)
        async with bus.client(8, "other") as other_client:
            other = Worker(other_client)
            await trio.sleep(7)
            again = await other.poll(2)
            assert again.payloads == [b"0", b"1"]
            assert again.attempts == [2, 1]
            assert again.fences[0] > late.fences[0]
            refused = await worker.complete(late)
            assert refused.refused == [(0, EXPIRED)]
            assert (await other.complete(again)).refused == []

    on_a_node(main)


def test_nobody_settles_what_is_not_theirs() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, b"mine")
        tasks = await worker.poll(1)
        owner, numbers, fences = tasks.owner, tasks.numbers, tasks.fences
        async with bus.client(8, "thief") as other:
            thief = Worker(other)
            assert (await thief.complete(tasks)).refused == [(0, EXPIRED)]
        forged = [fences[0] + 1]
        assert (await worker.settle(owner, "complete", numbers, forged)).refused == [(0, EXPIRED)]
        assert (await worker.settle(owner, "fail", [99], fences)).refused == [(0, EXPIRED)]
        assert (await worker.complete(tasks)).refused == []
        assert (await worker.complete(tasks)).refused == []  # once more, with the right fence
        assert (await worker.fail(tasks)).refused == [(0, EXPIRED)]

    on_a_node(main)


def test_workers_of_one_node_share_what_there_is() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        workers = [Worker(client, poll) for poll in range(1, 5)]
        for worker in workers:
            await worker.want(100)
        await client.barrier()
        await enqueue(client, *numbered(range(100)))
        await bus.committed()
        got = dict.fromkeys(range(1, 5), 0)
        while sum(got.values()) < 100:
            tasks = await client.expect(Tasks)
            got[tasks.poll] += len(tasks.numbers)
        assert min(got.values()) >= 10, got

    on_a_node(main)


def test_what_comes_back_while_a_task_is_read_from_the_disk_is_given_out_too() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker, other = Worker(client, 1), Worker(client, 2)
        await enqueue(client, *numbered(range(5)))
        tasks = await worker.poll(5)
        numbers, fences = tasks.numbers, tasks.fences
        await worker.settle(tasks.owner, "release", numbers[:1], fences[:1])
        # One can be had, and was forgotten when it was first given out: it has to be read. The
        # others come back before that is done.
        rest = TaskDone(9, tasks.owner, QUEUE, "release", numbers[1:], fences[1:], "", 0.0, 0)
        await client.send(TaskPoll(2, QUEUE, 5, 20.0, 0, ""), rest)
        found: list[bytes] = []
        while len(found) < 5:
            found += (await other.take()).payloads
        assert sorted(found) == numbered(range(5))

    on_a_node(main)


def test_a_failure_is_tried_again_by_the_schedule_and_ends_as_a_dead_letter() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        await enqueue(client, b"x", retry="0,4,8")
        began = trio.current_time()
        seen: list[float] = []
        for attempt in (1, 2, 3):
            tasks = await worker.poll(1) if attempt == 1 else await worker.take()
            seen.append(trio.current_time() - began)
            assert tasks.attempts == [attempt]
            await worker.fail(tasks, f"error {attempt}")
            await worker.want(1)
        assert seen == pytest.approx([0, 4, 12], abs=0.2)
        queue = bus.node.task_queues.owned[QUEUE].machine
        (dead,) = queue.rows("dead", 0, 10)
        assert [each.error for each in dead.row.history] == ["error 1", "error 2", "error 3"]
        assert [each.worker for each in dead.row.history] == ["worker"] * 3

    on_a_node(main)


def test_what_is_delayed_comes_when_it_is_due_and_holds_nobody_up() -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        began = trio.current_time()
        await enqueue(client, b"late", delay_ms="9000")
        await enqueue(client, b"soon", delay_ms="4000")
        await enqueue(client, b"now")
        assert (await worker.poll(3)).payloads == [b"now"]
        found = []
        for _ in range(2):
            tasks = await worker.take()
            found.append((tasks.payloads, round(trio.current_time() - began)))
        assert found == [([b"soon"], 4), ([b"late"], 9)]

    on_a_node(main)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (lambda client: client.batch(TOPIC, [b"x"], LIVE), "BAD_TASK"),
        (lambda client: client.batch(TOPIC, [b"x"], producer_id=0), "BAD_TASK"),
        (lambda client: client.batch("/$task/$x", [b"x"]), "BAD_TASK"),
        (lambda client: client.batch("/$task/a/b", [b"x"]), "BAD_TASK"),
        (lambda client: client.batch("/$tasks/a", [b"x"]), "BAD_TOPIC"),
        (lambda client: client.batch("/$sys/task/journal/x", [b"x"]), "BAD_TOPIC"),
    ],
)
def test_what_is_no_task_is_refused(batch: Callable[[RawClient], bytes], code: str) -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        await client.send(batch(client))
        error = await client.expect(Error)
        assert (error.code, error.refused) == (code, FrameType.BATCH)
        await client.barrier()

    on_a_node(main)


@pytest.mark.parametrize(
    "message",
    [
        TaskPoll(1, "a/b", 1, 20.0, 0, ""),
        TaskPoll(1, "$x", 1, 20.0, 0, ""),
        TaskPoll(1, "", 1, 20.0, 0, ""),
        TaskPoll(1, "x", 1, 0.0, 0, ""),
        TaskPoll(1, "x", 1, 1e9, 0, ""),
        TaskDone(1, BrokerId(bytes(16)), "x", "eat", [1], [1], "", 0.0, 0),
        TaskDone(1, BrokerId(bytes(16)), "x", "extend", [1], [1], "", 0.0, 0),
    ],
    ids=str,
)
def test_a_poll_that_makes_no_sense_is_refused_and_the_session_goes_on(
    message: TaskPoll | TaskDone,
) -> None:
    async def main(bus: Bus, client: RawClient) -> None:
        await client.send(message)
        error = await client.expect(Error)
        assert (error.code, error.refused, error.about) == ("BAD_TASK", message.TYPE, 1)
        await client.barrier()

    on_a_node(main)


def test_tasks_that_do_not_fit_into_memory_together_are_read_and_given_out_together() -> None:
    """Each batch is read from the disk and pushes another out of memory before all are there."""

    async def main(bus: Bus, client: RawClient) -> None:
        worker = Worker(client)
        for batch in range(7):
            await enqueue(client, *(b"%d" % (10 * batch + n) + bytes(100_000) for n in range(9)))
        for _ in range(2):
            await worker.want(63)
            count = 0
            while count < 63:
                tasks = await worker.take()
                count += len(tasks.numbers)
                await worker.settle(tasks.owner, "release", tasks.numbers, tasks.fences)
        statistics = bus.node.task_queues.owned[QUEUE].machine.statistics()
        assert (statistics.dead, statistics.ready) == (0, 63)

    on_a_node(main)
