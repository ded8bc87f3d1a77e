"""What a worker says of its tasks, and everything that may happen to it on the way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from busnode.client import Bus, NotSettled, Queue, Reject, Task
from busnode.wire import control
from busnode.wire.errors import BadTask, BusnodeError, Forbidden, LeaseExpired, UnknownQueue
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId
from busnode.wire.limits import TASKS_MAX, TEXT_BYTES_MAX
from tests.client.scripted_node import (
    BROKER,
    OTHER,
    Peer,
    ScriptedNode,
    eventually,
    on_both_loops,
    visit,
)
from tests.client.test_polling import tasks


class Saying:
    """Something that is said of tasks in a task of its own, and what became of it."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self._work = work
        self.begun = self.ended = False
        self.error: BusnodeError | None = None
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        try:
            with self.scope:
                self.begun = True
                await self._work()
        except BusnodeError as error:
            self.error = error
        self.ended = True

    async def end(self) -> BusnodeError | None:
        await eventually(lambda: self.ended)
        return self.error


class Holding:
    """A worker that holds some tasks, and its node."""

    def __init__(self, bus: Bus, peer: Peer, node: ScriptedNode, queue: Queue, held: list[Task]):
        self.bus = bus
        self.peer = peer
        self.node = node
        self.queue = queue
        self.tasks = held

    async def settle(self, done: control.TaskDone, *refused: tuple[int, str]) -> None:
        await self.peer.send(control.TaskSettled(done.done, "mirrored", list(refused)))

    async def nothing_comes(self) -> None:
        """What was said before would come before the answer to a ping."""
        await self.peer.send(control.Ping(99))
        assert isinstance(await self.peer.receive(), control.Pong)


@asynccontextmanager
async def holding(count: int, lease: float = 20.0) -> AsyncIterator[Holding]:
    async with visit() as (bus, peer, node):
        queue = bus.queue("emails")
        held: list[Task] = []
        async with (
            queue.poll_many(max(count, 1), lease=lease) as poll,
            anyio.create_task_group() as group,
        ):

            async def get() -> None:
                while len(held) < count:
                    held.extend(await anext(poll))

            group.start_soon(get)
            asked = await peer.expect(control.TaskPoll)
            for first in range(0, count, TASKS_MAX):
                numbers = range(first + 1, min(count, first + TASKS_MAX) + 1)
                await peer.send(tasks(asked.poll, numbers))
        ended = await peer.expect(control.TaskPoll)
        while ended.want:
            ended = await peer.expect(control.TaskPoll)
        yield Holding(bus, peer, node, queue, held)


@asynccontextmanager
async def saying(*works: Callable[[], Awaitable[object]]) -> AsyncIterator[list[Saying]]:
    async with anyio.create_task_group() as group:
        all_of_them = [Saying(work) for work in works]
        for each in all_of_them:
            group.start_soon(each.run)
            await eventually(lambda: each.begun)  # noqa: B023 - one after the other
        yield all_of_them


def numbers(done: control.TaskDone) -> list[int]:
    assert done.fences == [1000 + number for number in done.numbers]
    return done.numbers


@on_both_loops
async def test_complete_returns_when_the_owner_says_that_it_is_durable() -> None:
    async with holding(1) as at, saying(at.tasks[0].complete) as [completing]:
        done = await at.peer.expect(control.TaskDone)
        assert (done.owner, done.queue, done.verb) == (BROKER, "emails", "complete")
        assert (numbers(done), done.error) == ([1], "")
        assert at.peer.hello is not None
        assert done.worker == at.peer.hello.producer_id
        await at.nothing_comes()
        assert not completing.ended
        assert at.bus.statistics().settling == 1
        await at.settle(done)
        assert await completing.end() is None
        assert at.bus.statistics().settling == 0


@on_both_loops
async def test_each_verb_says_what_it_should() -> None:
    async with holding(1) as at:
        [task] = at.tasks
        for work, verb, error, lease_s in (
            (lambda: task.fail("no such address"), "fail", "no such address", 0.0),
            (lambda: task.fail(ValueError("7")), "fail", "ValueError: 7", 0.0),
            (lambda: task.fail(KeyError()), "fail", "KeyError", 0.0),
            (lambda: task.fail("x", permanent=True), "reject", "x", 0.0),
            (lambda: task.fail(Reject("never")), "fail", "never", 0.0),
            (lambda: task.extend(60), "extend", "", 60.0),
            (task.release, "release", "", 0.0),
            (lambda: at.queue.fail([task], "all", permanent=True), "reject", "all", 0.0),
            (lambda: at.queue.fail([task], "all"), "fail", "all", 0.0),
            (lambda: at.queue.extend([task], 30), "extend", "", 30.0),
            (lambda: at.queue.release([task]), "release", "", 0.0),
        ):
            async with saying(work) as [each]:
                done = await at.peer.expect(control.TaskDone)
                assert (done.verb, done.error, done.lease_s) == (verb, error, lease_s)
                await at.settle(done)
                assert await each.end() is None
        with pytest.raises(BadTask):
            await task.extend(-1)


@on_both_loops
async def test_what_was_said_while_a_frame_was_in_flight_goes_as_one() -> None:
    async with holding(500) as at, saying(*[task.complete for task in at.tasks]) as completing:
        first = await at.peer.expect(control.TaskDone)
        assert numbers(first) == [1]
        await at.nothing_comes()
        await at.settle(first)
        second = await at.peer.expect(control.TaskDone)
        assert numbers(second) == list(range(2, 501))
        await at.settle(second, (3, "LEASE_EXPIRED"))
        outcomes = [await each.end() for each in completing]
        assert [place for place, error in enumerate(outcomes) if error is not None] == [4]
        assert isinstance(outcomes[4], LeaseExpired)
        assert at.tasks[4].id in outcomes[4].text


@on_both_loops
async def test_different_words_and_queues_and_owners_do_not_wait_for_each_other() -> None:
    async with holding(4) as at:
        at.tasks[2].owner = OTHER
        at.tasks[3].queue = "others"
        async with saying(
            at.tasks[0].complete,
            lambda: at.tasks[1].fail("why"),
            at.tasks[2].complete,
            at.tasks[3].complete,
        ) as all_of_them:
            said = [await at.peer.expect(control.TaskDone) for _ in range(4)]
            seen = {(done.owner, done.queue, done.verb, *done.numbers) for done in said}
            assert seen == {
                (BROKER, "emails", "complete", 1),
                (BROKER, "emails", "fail", 2),
                (OTHER, "emails", "complete", 3),
                (BROKER, "others", "complete", 4),
            }
            for done in reversed(said):
                await at.settle(done)
            assert [await each.end() for each in all_of_them] == [None] * 4


@on_both_loops
async def test_many_at_once_go_in_full_frames_without_waiting_for_each_other() -> None:
    async with holding(2500) as at, saying(lambda: at.queue.complete(at.tasks)) as [completing]:
        said = [await at.peer.expect(control.TaskDone) for _ in range(2)]
        assert [len(numbers(done)) for done in said] == [1000, 1000]
        await at.nothing_comes()
        for done in said:
            await at.settle(done)
        last = await at.peer.expect(control.TaskDone)
        assert numbers(last) == list(range(2001, 2501))
        await at.settle(last)
        assert await completing.end() is None


@on_both_loops
async def test_those_that_were_refused_among_many_are_named() -> None:
    async with holding(8) as at:
        at.tasks[7].owner = OTHER
        async with saying(lambda: at.queue.complete(at.tasks)) as [completing]:
            for _ in range(2):
                done = await at.peer.expect(control.TaskDone)
                if done.owner == BROKER:
                    await at.settle(done, *[(place, "LEASE_EXPIRED") for place in range(6)])
                else:
                    await at.settle(done, (0, "LEASE_EXPIRED"))
            error = await completing.end()
        assert isinstance(error, NotSettled)
        assert error.code == "LEASE_EXPIRED"
        assert sorted(task.number for task in error.tasks) == [1, 2, 3, 4, 5, 6, 8]
        assert "and 2 more" in error.text
        await at.queue.complete([])


@on_both_loops
async def test_another_refusal_is_raised_by_its_code() -> None:
    async with holding(2) as at:
        async with saying(lambda: at.queue.complete(at.tasks)) as [completing]:
            done = await at.peer.expect(control.TaskDone)
            await at.settle(done, (0, "LEASE_EXPIRED"), (1, "FORBIDDEN"))
            assert isinstance(await completing.end(), Forbidden)
        async with saying(lambda: at.queue.complete(at.tasks)) as [completing]:
            done = await at.peer.expect(control.TaskDone)
            kind = int(FrameType.TASK_DONE)
            await at.peer.send(control.Error("UNKNOWN_QUEUE", "gone", kind, done.done, None))
            assert isinstance(await completing.end(), UnknownQueue)
        # Answers to what nobody has said do no harm.
        await at.peer.send(control.TaskSettled(77, "local", [(3, "LEASE_EXPIRED")]))
        await at.nothing_comes()


@on_both_loops
async def test_what_was_in_flight_is_said_again_at_a_new_home() -> None:
    async with holding(4) as at:
        first, second, third, fourth = at.tasks
        async with saying(first.complete, second.complete, lambda: third.fail("x")) as said:
            assert numbers(await at.peer.expect(control.TaskDone)) == [1]
            assert numbers(await at.peer.expect(control.TaskDone)) == [3]
            at.peer.close()
            await eventually(lambda: at.bus.statistics().home is None)
            async with saying(fourth.complete) as [late]:
                home = await at.node.accept()
                completed = await home.expect(control.TaskDone)
                assert numbers(completed) == [1, 2, 4]  # in the order in which it was said
                failed = await home.expect(control.TaskDone)
                assert (failed.verb, numbers(failed)) == ("fail", [3])
                await home.send(control.TaskSettled(completed.done, "local", []))
                await home.send(control.TaskSettled(failed.done, "local", []))
                assert [await each.end() for each in (*said, late)] == [None] * 4
        home.close()


@on_both_loops
async def test_what_is_said_to_a_home_that_breaks_again_and_again_arrives_at_last() -> None:
    async with holding(3) as at, saying(*[task.complete for task in at.tasks]) as said:
        at.peer.close()
        for _ in range(3):
            home = await at.node.accept()
            assert sorted(numbers(await home.expect(control.TaskDone))) == [1, 2, 3]
            home.close()
        home = await at.node.accept()
        done = await home.expect(control.TaskDone)
        await home.send(control.TaskSettled(done.done, "local", [(1, "LEASE_EXPIRED")]))
        outcomes = [await each.end() for each in said]
        assert [type(each) for each in outcomes].count(NotSettled) == 1
        home.close()


@on_both_loops
async def test_without_a_home_it_is_given_up_when_the_lease_would_have_ended() -> None:
    async with holding(2, lease=0.05) as at, saying(lambda: at.queue.complete(at.tasks)) as [said]:
        await at.peer.expect(control.TaskDone)
        at.peer.close()  # and nobody greets the next
        error = await said.end()
        assert isinstance(error, NotSettled)
        assert [task.number for task in error.tasks] == [1, 2]
        assert at.bus.statistics().settling == 0
        # What was given up is not said any more.
        home = await at.node.accept()
        await eventually(lambda: at.bus.statistics().connections == 2)
        await home.send(control.Ping(1))
        assert isinstance(await home.receive(), control.Pong)
        home.close()


@on_both_loops
async def test_an_owner_that_is_away_is_told_later() -> None:
    async with holding(3) as at, saying(lambda: at.queue.complete(at.tasks)) as [said]:
        for left in ([1, 2, 3], [1, 3], [1, 3]):
            done = await at.peer.expect(control.TaskDone)
            assert numbers(done) == left
            away = [place for place, number in enumerate(left) if number != 2]
            await at.settle(done, *[(place, "UNAVAILABLE") for place in away])
        done = await at.peer.expect(control.TaskDone)
        kind = int(FrameType.TASK_DONE)
        await at.peer.send(control.Error("UNAVAILABLE", "no link", kind, done.done, None))
        done = await at.peer.expect(control.TaskDone)
        assert numbers(done) == [1, 3]
        await at.settle(done, (0, "LEASE_EXPIRED"))
        error = await said.end()
        assert isinstance(error, NotSettled)
        assert [task.number for task in error.tasks] == [1]


@on_both_loops
async def test_an_owner_that_stays_away_is_given_up_when_the_lease_would_have_ended() -> None:
    async with holding(1, lease=0.1) as at, saying(at.tasks[0].complete) as [said]:
        while not said.ended:
            with anyio.move_on_after(0.02):
                done = await at.peer.expect(control.TaskDone)
                await at.settle(done, (0, "UNAVAILABLE"))
        assert isinstance(said.error, LeaseExpired)


@on_both_loops
async def test_a_cancelled_wait_changes_nothing() -> None:
    async with holding(2) as at, saying(*[task.complete for task in at.tasks]) as said:
        done = await at.peer.expect(control.TaskDone)
        for each in said:
            each.scope.cancel()
            await each.end()
        await at.settle(done)
        last = await at.peer.expect(control.TaskDone)  # it is said all the same
        assert numbers(last) == [2]
        assert at.bus.statistics().settling == 1
        await at.settle(last)
        await eventually(lambda: at.bus.statistics().settling == 0)


@on_both_loops
async def test_extending_moves_the_end_of_the_lease() -> None:
    async with holding(2) as at:
        before = [task.expires_at for task in at.tasks]
        async with saying(lambda: at.queue.extend(at.tasks, 1000)) as [said]:
            done = await at.peer.expect(control.TaskDone)
            await at.settle(done, (0, "LEASE_EXPIRED"))
            assert isinstance(await said.end(), LeaseExpired)
        assert at.tasks[0].expires_at == before[0]
        assert at.tasks[1].expires_at > before[1] + 900


@on_both_loops
async def test_a_block_completes_fails_or_gives_back() -> None:
    class Broken(Exception):
        pass

    async def block(task: Task, error: BaseException | None) -> None:
        async with task:
            if error is not None:
                raise error

    async def hang(task: Task) -> None:
        async with task:
            await anyio.sleep_forever()

    async with holding(1) as at:
        [task] = at.tasks
        async with saying(lambda: block(task, None)):
            done = await at.peer.expect(control.TaskDone)
            assert done.verb == "complete"
            await at.settle(done)
        for error, verb, text in (
            (Broken("why"), "fail", "Broken: why"),
            (Reject("never"), "reject", "never"),
        ):
            task.settled = False

            async def raises(error: Exception = error) -> None:
                with pytest.raises(type(error)):
                    await block(task, error)

            # The error of the block is what comes out, also where the lease is gone.
            for refused in ([], [(0, "LEASE_EXPIRED")]):
                task.settled = False
                async with saying(raises) as [said]:
                    done = await at.peer.expect(control.TaskDone)
                    assert (done.verb, done.error) == (verb, text)
                    await at.settle(done, *refused)
                    assert await said.end() is None
        task.settled = False
        async with saying(lambda: hang(task)) as [said]:
            said.scope.cancel()
            done = await at.peer.expect(control.TaskDone)
            assert done.verb == "release"
            await at.settle(done)


@on_both_loops
async def test_a_block_leaves_alone_what_was_settled_in_it() -> None:
    async def block(task: Task) -> None:
        async with task:
            await task.fail("why", permanent=True)

    async with holding(1) as at:
        async with saying(lambda: block(at.tasks[0])):
            done = await at.peer.expect(control.TaskDone)
            assert done.verb == "reject"
            await at.settle(done)
        await at.nothing_comes()


@on_both_loops
async def test_an_error_of_any_length_is_cut_to_what_a_frame_takes() -> None:
    async with holding(1) as at, saying(lambda: at.tasks[0].fail("ü" * 5000 + "\ud800")):
        done = await at.peer.expect(control.TaskDone)
        assert len(done.error.encode()) <= TEXT_BYTES_MAX
        assert set(done.error) == {"ü"}
        await at.settle(done)


@on_both_loops
async def test_a_node_that_leaves_may_answer_before_we_go() -> None:
    async with holding(1) as at, saying(at.tasks[0].complete) as [said]:
        done = await at.peer.expect(control.TaskDone)
        await at.peer.send(control.Goodbye("maintenance", []))
        with anyio.move_on_after(0.05):
            pytest.fail(f"{await at.peer.receive()} although an answer is owed")
        await at.settle(done)
        assert await said.end() is None
        await at.peer.expect(control.Goodbye)


@on_both_loops
async def test_a_closed_bus_fails_what_was_not_answered() -> None:
    owners: Sequence[BrokerId] = (BROKER, OTHER)
    async with holding(2) as at:
        for task, owner in zip(at.tasks, owners, strict=True):
            task.owner = owner
        async with saying(lambda: at.queue.complete(at.tasks)) as [said]:
            at.peer.close()
            kind = int(FrameType.HELLO)
            home = await at.node.accept(greet=False)
            await home.expect(control.Hello)
            await home.send(control.Error("FORBIDDEN", "no more", kind, None, None))
            assert isinstance(await said.end(), Forbidden)
        with pytest.raises(Forbidden):
            await at.tasks[0].complete()
