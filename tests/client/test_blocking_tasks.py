"""Queues and services for code without async, at a real node."""

from collections.abc import Iterator

import pytest

import busnode
from busnode.blocking import BlockingBus, BlockingTask, connect
from busnode.client import Pending, ServiceCall, ServiceReply, TaskEvent
from busnode.node.embedding import Node
from tests.node.processes import wait_for


@pytest.fixture(params=["asyncio", "trio"])
def bus(request: pytest.FixtureRequest, bus_node: Node) -> Iterator[BlockingBus]:
    with connect(bus_node.url, name="blocking", backend=request.param) as connected:
        yield connected


def test_tasks_are_enqueued_and_completed(bus: BlockingBus) -> None:
    queue = bus.queue("emails", retry="0,0")
    receipt = queue.enqueue(b"one", headers={"k": "v"}, priority=3)
    queue.enqueue_many([b"two", b"three"])
    seen: list[BlockingTask] = []
    for task in queue.poll(prefetch=2):
        seen.append(task)
        task.extend(30)
        task.complete()
        if len(seen) == 3:
            break
    assert [task.payload for task in seen] == [b"one", b"two", b"three"]
    first = seen[0]
    assert (first.id, first.headers, first.attempt) == (receipt.id, {"k": "v"}, 1)
    assert (first.queue, first.fence > 0, first.enqueued.year > 2000) == ("emails", True, True)
    assert queue.status().ready == 0
    with queue.poll() as poll, pytest.raises(busnode.TimedOut):
        poll.get(timeout=0.01)
    assert list(poll) == []
    with pytest.raises(busnode.BadTask):
        queue.enqueue(b"x", delay=-1)


def test_many_are_settled_in_bulk(bus: BlockingBus) -> None:
    queue = bus.queue("emails")
    queue.enqueue_many([b"%d" % number for number in range(300)])
    done = 0
    for tasks in queue.poll_many(100):
        queue.extend(tasks, 60)
        queue.complete(tasks)
        done += len(tasks)
        if done == 300:
            break
    queue.enqueue_many([b"x", b"y"])
    with queue.poll_many(2) as poll:
        tasks = poll.get(timeout=5)
        queue.release(tasks)
        tasks = poll.get(timeout=5)
        queue.fail(tasks, "why", permanent=True)
    assert queue.dead.purge() == len(tasks)


def test_a_loop_that_is_left_gives_back_what_was_not_begun(bus: BlockingBus) -> None:
    queue = bus.queue("emails")
    queue.enqueue_many([b"1", b"2", b"3"])
    for task in queue.poll(prefetch=3):
        task.complete()
        break
    with queue.poll_many(2) as poll:
        found = {task.payload for task in poll.get(timeout=5)}
        while len(found) < 2:
            found |= {task.payload for task in poll.get(timeout=5)}
    assert found == {b"2", b"3"}


def test_a_block_settles_its_task(bus: BlockingBus) -> None:
    queue = bus.queue("emails", retry="0,0")
    queue.enqueue(b"x")
    poll = queue.poll()
    with pytest.raises(ValueError, match="broken"), poll.get(5) as task:
        raise ValueError("broken")
    with poll.get(5) as task:
        assert task.attempt == 2
        task.fail("again")
        with pytest.raises(busnode.LeaseExpired):
            task.extend()
    [listed] = queue.dead.list(error="again")
    letter = queue.dead.show(listed.id)
    assert letter is not None
    assert [each.error for each in letter.history] == ["ValueError: broken", "again"]
    assert queue.dead.requeue(letter.id) == [letter.id]
    with poll.get(5) as task:
        assert task.id == letter.id
    assert queue.dead.delete(letter.id) == []
    assert queue.dead.silent == {}


def test_hooks_run_beside(bus: BlockingBus) -> None:
    queue = bus.queue("emails")
    completed: list[TaskEvent] = []
    failed: list[TaskEvent] = []
    queue.on_completed(completed.append)
    queue.on_failed(failed.append)
    with queue.hooks():
        queue.enqueue_many([b"good", b"bad"])
        poll = queue.poll()
        poll.get(5).complete()
        poll.get(5).fail("why", permanent=True)
        wait_for(lambda: completed and failed, "both hooks")
    assert (completed[0].payload, failed[0].payload) == (b"good", b"bad")


def test_services(bus: BlockingBus, bus_node: Node) -> None:
    replies: list[ServiceReply] = []

    def post(call: ServiceCall) -> dict[str, object]:
        return {"posted": call.data, "by": call.sender}

    with (
        connect(bus_node.url) as other,
        bus.service("gateway", {}, on_reply=replies.append),
    ):
        assert bus.send("users", "post", 1, cid="c1") == Pending("c1")
        with other.service("users", {"post": post, "get": lambda _: 7}):
            wait_for(lambda: replies, "the late reply")
            assert replies == [ServiceReply("c1", {"posted": 1, "by": "gateway"}, "users")]
            reply = bus.send("users", "post", 2, cid="c2")
            assert reply == ServiceReply("c2", {"posted": 2, "by": "gateway"}, "users")
            assert bus.send("users", "get", cid="c3") == ServiceReply("c3", 7, "users")
        with other.service("users", lambda call: call.pattern):
            assert bus.send("users", "any", cid="c4") == ServiceReply("c4", "any", "users")
