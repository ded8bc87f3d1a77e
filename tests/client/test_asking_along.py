"""A worker that does one task after the other: the next comes with the answer to the last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from busnode.client import Bus, Task
from busnode.client import worker as worker_module
from busnode.client.poll import Poll
from busnode.wire import control
from busnode.wire.errors import LimitReached
from busnode.wire.frames import FrameType
from tests.client.scripted_node import Peer, ScriptedNode, eventually, on_both_loops, visit
from tests.client.test_polling import tasks


class Worker:
    """Completes each task and asks for the next."""

    def __init__(self, bus: Bus, prefetch: int, count: int | None) -> None:
        self.bus = bus
        self._poll: Poll | None = bus.queue("emails").poll(prefetch=prefetch)
        self._count = count
        self.begun: list[Task] = []
        self.done: list[Task] = []
        self.refused: list[LimitReached] = []
        self.may_end = anyio.Event()
        self.may_end.set()

    async def run(self) -> None:
        poll, self._poll = self._poll, None
        assert poll is not None
        async for task in poll:
            self.begun.append(task)
            await self.may_end.wait()
            try:
                await task.complete()
            except LimitReached as error:
                self.refused.append(error)
            self.done.append(task)
            if len(self.done) == self._count:
                break


@asynccontextmanager
async def working(
    *, prefetch: int = 1, count: int | None = None
) -> AsyncIterator[tuple[Worker, Peer, ScriptedNode, int]]:
    """A worker whose first task was completed, and which has asked for the second."""
    async with visit() as (bus, peer, node), anyio.create_task_group() as group:
        worker = Worker(bus, prefetch, count)
        group.start_soon(worker.run)
        asked = await peer.expect(control.TaskPoll)
        assert asked.want == prefetch
        await peer.send(tasks(asked.poll, [1]))
        done = await peer.expect(control.TaskDone)
        assert done.want == 0, "nobody knows yet whether it will come back at once"
        await peer.send(control.TaskSettled(done.done, "local", []))
        yield worker, peer, node, asked.poll
        group.cancel_scope.cancel()


@on_both_loops
async def test_who_came_back_at_once_asks_along_with_its_word() -> None:
    async with working() as (worker, peer, _, poll):
        asked = await peer.expect(control.TaskPoll)
        assert (asked.poll, asked.want) == (poll, 1)
        await peer.send(tasks(poll, [2]))
        for number in range(2, 6):
            done = await peer.expect(control.TaskDone)  # and no TASK_POLL
            assert (done.numbers, done.for_poll, done.want) == ([number], poll, 1)
            await peer.send(control.TaskSettled(done.done, "local", []), tasks(poll, [number + 1]))
        await eventually(lambda: len(worker.done) == 5)


@on_both_loops
async def test_what_waits_and_what_was_asked_for_never_exceed_the_prefetch() -> None:
    async with working(prefetch=3) as (_, peer, _, poll):
        await peer.send(tasks(poll, [2, 3]))  # so 1 more is asked for, by and by
        given, asked = 3, 3
        for _ in range(20):
            message = await peer.receive()
            assert isinstance(message, control.TaskPoll | control.TaskDone)
            asked += message.want
            if isinstance(message, control.TaskDone):
                finished = message.numbers[0]
                assert asked - finished <= 3
                await peer.send(control.TaskSettled(message.done, "local", []))
            if given < asked:
                await peer.send(tasks(poll, range(given + 1, asked + 1)))
                given = asked
        assert given > 6


@on_both_loops
async def test_who_does_something_else_first_asks_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "PROMPT_S", -1.0)  # nobody comes back so soon
    async with working() as (_, peer, _, poll):
        for number in range(2, 5):
            assert (await peer.expect(control.TaskPoll)).want == 1
            await peer.send(tasks(poll, [number]))
            done = await peer.expect(control.TaskDone)
            assert done.want == 0
            await peer.send(control.TaskSettled(done.done, "local", []))


@on_both_loops
async def test_who_leaves_gives_back_what_has_come_with_the_answer() -> None:
    async with working(count=2) as (worker, peer, _, poll):
        await peer.expect(control.TaskPoll)
        await peer.send(tasks(poll, [2]))
        done = await peer.expect(control.TaskDone)
        assert done.want == 1
        await peer.send(control.TaskSettled(done.done, "local", []), tasks(poll, [3]))
        left = [await peer.receive(), await peer.receive()]
        [ended] = [each for each in left if isinstance(each, control.TaskPoll)]
        [released] = [each for each in left if isinstance(each, control.TaskDone)]
        assert (ended.poll, ended.want) == (poll, 0)
        assert (released.verb, released.numbers, released.want) == ("release", [3], 0)
        assert len(worker.done) == 2


@on_both_loops
async def test_what_was_refused_has_asked_for_nothing() -> None:
    async with working() as (worker, peer, _, poll):
        await peer.expect(control.TaskPoll)
        await peer.send(tasks(poll, [2]))
        done = await peer.expect(control.TaskDone)
        kind = int(FrameType.TASK_DONE)
        await peer.send(control.Error("LIMIT_REACHED", "too many", kind, done.done, None))
        assert (await peer.expect(control.TaskPoll)).want == 1
        assert len(worker.refused) == 1


@on_both_loops
async def test_what_was_said_without_a_home_asks_for_nothing_at_the_next() -> None:
    async with working() as (worker, peer, node, poll):
        await peer.expect(control.TaskPoll)
        worker.may_end = anyio.Event()
        await peer.send(tasks(poll, [2]))
        await eventually(lambda: len(worker.begun) == 2)
        peer.close()
        await eventually(lambda: worker.bus.statistics().home is None)
        worker.may_end.set()
        second = await node.accept()
        done = await second.expect(control.TaskDone)
        assert (done.numbers, done.want) == ([2], 0), "it does not know the poll"
        await second.send(control.TaskSettled(done.done, "local", []))
        assert (await second.expect(control.TaskPoll)).want == 1
        second.close()


@on_both_loops
async def test_a_new_home_is_asked_and_not_told_along() -> None:
    async with working() as (worker, peer, node, poll):
        await peer.expect(control.TaskPoll)
        await peer.send(tasks(poll, [2]))
        assert (await peer.expect(control.TaskDone)).want == 1
        peer.close()
        second = await node.accept()
        again = await second.expect(control.TaskDone)
        assert (again.numbers, again.want) == ([2], 0), "it does not know the poll"
        await second.send(control.TaskSettled(again.done, "local", []))
        asked = await second.expect(control.TaskPoll)
        await second.send(tasks(asked.poll, [3]))
        await eventually(lambda: len(worker.done) == 2)
        second.close()
