"""Workers: credit, prefetch, leaving a loop, and homes that come and go."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import pytest

from busnode.client import Bus, Task, connect
from busnode.client.poll import Poll, PollMany
from busnode.wire import control
from busnode.wire.errors import BusnodeError, Disconnected, Forbidden
from busnode.wire.frames import FrameType
from tests.client.scripted_node import (
    BROKER,
    OTHER,
    eventually,
    on_both_loops,
    scripted_node,
    visit,
)


def tasks(
    poll: int,
    numbers: Sequence[int],
    *,
    queue: str = "emails",
    headers: list[dict[str, str]] | None = None,
) -> control.Tasks:
    count = len(numbers)
    return control.Tasks(
        poll,
        BROKER,
        queue,
        list(numbers),
        [f"{OTHER.hex()}-{number}" for number in numbers],
        [1000 + number for number in numbers],
        [1] * count,
        [1_700_000_000_000_000] * count,
        headers,
        [b"task %d" % number for number in numbers],
    )


class Loop:
    """A worker's loop in a task of its own, which goes on when the test lets it."""

    def __init__(self, poll: Poll | PollMany) -> None:
        self._poll: Poll | PollMany | None = poll
        self.got: list[list[int]] = []
        self.tasks: list[Task] = []
        self.ended = False
        self.error: BusnodeError | None = None
        self.scope = anyio.CancelScope()
        self._go_on = anyio.Event()

    async def run(self) -> None:
        poll, self._poll = self._poll, None
        assert poll is not None
        try:
            with self.scope:
                async for got in poll:
                    some = [got] if isinstance(got, Task) else got
                    self.tasks += some
                    self.got.append([task.number for task in some])
                    self._go_on = anyio.Event()
                    await self._go_on.wait()
        except BusnodeError as error:
            self.error = error
        finally:
            del poll
        self.ended = True

    def go_on(self) -> None:
        self._go_on.set()

    async def has(self, *got: list[int]) -> None:
        await eventually(lambda: self.got == list(got))


@on_both_loops
async def test_a_task_comes_with_all_that_a_worker_needs() -> None:
    async with visit(name="w1") as (bus, peer, _), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll(lease=7))
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        assert (asked.queue, asked.want, asked.lease_s, asked.name) == ("emails", 1, 7.0, "w1")
        assert peer.hello is not None
        assert asked.worker == peer.hello.producer_id
        own = {"k": "v", "$priority": "3"}
        await peer.send(tasks(asked.poll, [5], headers=[own]))
        await loop.has([5])
        [task] = loop.tasks
        assert (task.id, task.queue, task.payload) == (f"{OTHER.hex()}-5", "emails", b"task 5")
        assert (task.headers, task.attempt, task.fence) == ({"k": "v"}, 1, 1005)
        assert task.enqueued.year == 2023
        assert "emails" in repr(task)
        group.cancel_scope.cancel()


@on_both_loops
async def test_the_next_is_asked_for_when_the_loop_asks() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll())
        group.start_soon(loop.run)
        for number in (1, 2, 3):
            asked = await peer.expect(control.TaskPoll)
            assert asked.want == 1
            await peer.send(tasks(asked.poll, [number]))
            await eventually(lambda: len(loop.got) == number)  # noqa: B023 - used at once
            # A ping comes back before any other poll: nothing was asked for meanwhile.
            await peer.send(control.Ping(number))
            assert isinstance(await peer.receive(), control.Pong)
            loop.go_on()
        group.cancel_scope.cancel()


@on_both_loops
async def test_no_more_are_held_than_the_prefetch_says_and_credit_comes_in_bulk() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll(prefetch=10))
        group.start_soon(loop.run)
        wants: list[int] = []

        async def give_out() -> None:
            while True:
                asked = await peer.expect(control.TaskPoll)
                first = 1 + sum(wants)
                wants.append(asked.want)
                assert sum(wants) - max(0, len(loop.got) - 1) <= 10  # one of them in hand
                await peer.send(tasks(asked.poll, range(first, first + asked.want)))

        group.start_soon(give_out)
        for done in range(1, 101):
            await eventually(lambda: len(loop.got) == done)  # noqa: B023 - used at once
            loop.go_on()
        assert wants[0] == 10
        assert len(wants) <= 25
        assert [number for [number] in loop.got] == list(range(1, len(loop.got) + 1))
        group.cancel_scope.cancel()


@on_both_loops
async def test_lists_have_what_is_there_and_no_more_than_asked_for() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll_many(3, prefetch=6))
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        assert asked.want == 6
        await peer.send(tasks(asked.poll, [1, 2, 3, 4]))
        await loop.has([1, 2, 3])
        loop.go_on()
        await loop.has([1, 2, 3], [4])
        group.cancel_scope.cancel()


@on_both_loops
async def test_leaving_the_loop_gives_back_what_was_not_begun() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        done: list[Task] = []

        async def work() -> None:
            async for task in bus.queue("emails").poll(prefetch=4):
                done.append(task)
                break

        group.start_soon(work)
        asked = await peer.expect(control.TaskPoll)
        await peer.send(tasks(asked.poll, [1, 2, 3]))
        ended = await peer.expect(control.TaskPoll)
        assert (ended.poll, ended.want) == (asked.poll, 0)
        released = await peer.expect(control.TaskDone)
        assert (released.verb, released.numbers, released.fences) == (
            "release",
            [2, 3],
            [1002, 1003],
        )
        assert (released.owner, released.queue) == (BROKER, "emails")
        # What was on its way meanwhile is given back as well; what is in hand is not.
        await peer.send(tasks(asked.poll, [4]))
        await peer.send(control.TaskSettled(released.done, "local", []))
        released = await peer.expect(control.TaskDone)
        assert (released.verb, released.numbers) == ("release", [4])
        await peer.send(control.TaskSettled(released.done, "local", []))
        await eventually(lambda: bus.statistics().settling == 0)
        assert [task.number for task in done] == [1]
        assert bus.statistics().polls == 0


@on_both_loops
async def test_a_loop_that_raises_or_is_cancelled_gives_back_likewise() -> None:
    async def raises(bus: Bus, _: anyio.CancelScope) -> None:
        with suppress(ValueError):
            async for task in bus.queue("emails").poll(prefetch=2):
                raise ValueError(task)

    async def is_cancelled(bus: Bus, scope: anyio.CancelScope) -> None:
        with scope:
            async for _ in bus.queue("emails").poll(prefetch=2):
                scope.cancel()
                await anyio.sleep_forever()

    for work in (raises, is_cancelled):
        async with visit() as (bus, peer, _), anyio.create_task_group() as group:
            group.start_soon(work, bus, anyio.CancelScope())
            asked = await peer.expect(control.TaskPoll)
            await peer.send(tasks(asked.poll, [1, 2]))
            assert (await peer.expect(control.TaskPoll)).want == 0
            assert (await peer.expect(control.TaskDone)).numbers == [2]


@on_both_loops
async def test_a_cancelled_wait_loses_nothing() -> None:
    async with visit() as (bus, peer, _):
        poll = bus.queue("emails").poll()
        with anyio.move_on_after(0.01):
            await anext(poll)
        asked = await peer.expect(control.TaskPoll)
        await peer.send(tasks(asked.poll, [1]), control.Ping(1))
        await peer.expect(control.Pong)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(poll)
        assert (await anext(poll)).number == 1
        # Cancelled again and again it asks for one task and not for many.
        for _ in range(3):
            with anyio.move_on_after(0.001):
                await anext(poll)
        assert (await peer.expect(control.TaskPoll)).want == 1
        await peer.send(control.Ping(2))
        assert isinstance(await peer.receive(), control.Pong)
        poll.close()


@on_both_loops
async def test_closing_ends_the_loop() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        ended: list[bool] = []
        async with bus.queue("emails").poll_many() as poll:

            async def work() -> None:
                async for _ in poll:
                    pytest.fail("nothing was sent")
                ended.append(True)

            group.start_soon(work)
            assert (await peer.expect(control.TaskPoll)).want == 100
        await eventually(lambda: ended == [True])
        assert (await peer.expect(control.TaskPoll)).want == 0
        with pytest.raises(StopAsyncIteration):
            await anext(poll)


@on_both_loops
async def test_a_new_home_is_asked_for_what_there_is_room_for() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll(prefetch=5))
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        await peer.send(tasks(asked.poll, [1, 2]))
        await loop.has([1])
        peer.close()
        second = await node.accept()
        again = await second.expect(control.TaskPoll)
        assert (again.queue, again.want, again.lease_s) == ("emails", 3, 20.0)
        assert again.poll != asked.poll
        assert again.worker == asked.worker
        await second.send(tasks(again.poll, [3]))
        loop.go_on()
        await loop.has([1], [2])
        loop.go_on()
        await loop.has([1], [2], [3])
        group.cancel_scope.cancel()
        second.close()


@on_both_loops
async def test_a_new_home_is_not_asked_while_there_is_no_room() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll())
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        await peer.send(tasks(asked.poll, [1]))
        await loop.has([1])
        peer.close()
        second = await node.accept()
        await eventually(lambda: bus.statistics().connections == 2)
        await second.send(control.Ping(1))
        assert isinstance(await second.receive(), control.Pong)  # a want of 0 would end the poll
        loop.go_on()
        again = await second.expect(control.TaskPoll)
        assert again.want == 1
        await second.send(tasks(again.poll, [2]))
        await loop.has([1], [2])
        group.cancel_scope.cancel()
        second.close()


@on_both_loops
async def test_a_poll_that_begins_without_a_home_is_made_when_there_is_one() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as group:
        peer.close()
        await eventually(lambda: bus.statistics().home is None)
        loop = Loop(bus.queue("emails").poll(prefetch=2))
        group.start_soon(loop.run)
        second = await node.accept()
        again = await second.expect(control.TaskPoll)
        assert again.want == 2
        await second.send(tasks(again.poll, [1]))
        await loop.has([1])
        group.cancel_scope.cancel()
        second.close()


@on_both_loops
async def test_tasks_whose_leases_ended_while_they_waited_are_not_handed_out() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll(lease=0.02, prefetch=3))
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        await peer.send(tasks(asked.poll, [1, 2]))
        await loop.has([1])
        ended_at = loop.tasks[0].expires_at
        await eventually(lambda: anyio.current_time() > ended_at)
        loop.go_on()
        assert (await peer.expect(control.TaskPoll)).want == 2
        await peer.send(tasks(asked.poll, [3]))
        await loop.has([1], [3])
        group.cancel_scope.cancel()


@on_both_loops
async def test_a_refused_poll_raises_and_the_others_go_on() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as group:
        good, bad = (Loop(bus.queue(name).poll()) for name in ("emails", "others"))
        group.start_soon(good.run)
        good_asked = await peer.expect(control.TaskPoll)
        group.start_soon(bad.run)
        bad_asked = await peer.expect(control.TaskPoll)
        kind = int(FrameType.TASK_POLL)
        await peer.send(control.Error("FORBIDDEN", "not yours", kind, bad_asked.poll, None))
        await eventually(lambda: bad.ended)
        assert isinstance(bad.error, Forbidden)
        await peer.send(tasks(good_asked.poll, [1]))
        await good.has([1])
        group.cancel_scope.cancel()


@on_both_loops
async def test_a_home_that_cannot_serve_polls_now_is_left() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as group:
        loop = Loop(bus.queue("emails").poll())
        group.start_soon(loop.run)
        asked = await peer.expect(control.TaskPoll)
        kind = int(FrameType.TASK_POLL)
        await peer.send(control.Error("UNAVAILABLE", "recovering", kind, asked.poll, None))
        second = await node.accept()
        again = await second.expect(control.TaskPoll)
        await second.send(tasks(again.poll, [1]))
        await loop.has([1])
        group.cancel_scope.cancel()
        second.close()


@on_both_loops
async def test_tasks_that_were_not_asked_for_end_the_connection() -> None:
    wrong: tuple[Callable[[int], control.Tasks], ...] = (
        lambda poll: tasks(poll, [1, 2]),
        lambda poll: tasks(poll, [1], queue="others"),
        lambda poll: tasks(poll, [1], headers=[{}, {}]),
    )
    for make in wrong:
        async with visit() as (bus, peer, node), anyio.create_task_group() as group:
            loop = Loop(bus.queue("emails").poll())
            group.start_soon(loop.run)
            asked = await peer.expect(control.TaskPoll)
            await peer.send(make(asked.poll))
            assert (await peer.expect(control.Error)).code == "BAD_CONTROL"
            second = await node.accept()
            assert (await second.expect(control.TaskPoll)).want == 1
            assert loop.got == []
            group.cancel_scope.cancel()
            second.close()


@on_both_loops
async def test_a_poll_of_a_closed_bus_ends_with_an_error() -> None:
    async with scripted_node() as node, anyio.create_task_group() as group:
        group.start_soon(node.be_polite)
        async with connect(node.url) as bus:
            poll = bus.queue("emails").poll()
        with pytest.raises(Disconnected):
            await anext(poll)
        poll.close()


@on_both_loops
async def test_closing_the_bus_gives_back_what_a_loop_has_not_begun() -> None:
    async with scripted_node() as node, anyio.create_task_group() as group:
        released: list[int] = []

        async def serve() -> None:
            peer = await node.accept()
            asked = await peer.expect(control.TaskPoll)
            await peer.send(tasks(asked.poll, [1, 2, 3]))
            assert (await peer.expect(control.TaskPoll)).want == 0
            done = await peer.expect(control.TaskDone)
            released.extend(done.numbers)
            await peer.send(control.TaskSettled(done.done, "local", []))
            await peer.expect(control.Goodbye)
            peer.close()

        group.start_soon(serve)
        async with connect(node.url) as bus:
            poll = bus.queue("emails").poll(prefetch=4)
            assert (await anext(poll)).number == 1
        assert released == [2, 3]
        with pytest.raises(Disconnected):
            await anext(poll)
