"""Named services at a real node: up, down, slow and broken; and letters that are none."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgpack
import pytest

import busnode
from busnode.client import Bus, Pending, Reject, ServiceCall, ServiceReply
from busnode.node.embedding import Node
from busnode.testing import BusCluster
from busnode.wire.errors import BadTask, NoProvider, Refused, RequestFailed
from tests.client.scripted_node import eventually, on_both_loops
from tests.client.test_tasks import take


class Users:
    """A service that does as it is told."""

    def __init__(self) -> None:
        self.calls: list[ServiceCall] = []
        self.broken = ""
        self.go_on = anyio.Event()
        self.go_on.set()

    async def post(self, call: ServiceCall) -> Any:
        self.calls.append(call)
        await self.go_on.wait()
        if self.broken:
            raise ValueError(self.broken)
        return {"posted": call.data}

    def get(self, call: ServiceCall) -> Any:
        if call.data == "nobody":
            raise ValueError("no such user")
        return {"name": "Juan", "raw": b"\x00", "by": call.sender}

    def reject(self, call: ServiceCall) -> Any:
        raise Reject(f"{call.data} is not wanted")

    @property
    def handlers(self) -> dict[str, Callable[[ServiceCall], Any]]:
        return {"user_post": self.post, "get_user": self.get, "reject": self.reject}


@on_both_loops
async def test_a_service_that_is_up_answers_at_once(bus_node: Node) -> None:
    users = Users()
    async with (
        busnode.connect(bus_node.url) as bus,
        busnode.connect(bus_node.url) as gateway,
        bus.service("users", users.handlers),
    ):
        reply = await gateway.send("users", "user_post", {"_id": 1234}, cid="c1")
        assert reply == ServiceReply("c1", {"posted": {"_id": 1234}}, "users")
        assert not reply.pending
        [call] = users.calls
        assert (call.pattern, call.data, call.cid) == ("user_post", {"_id": 1234}, "c1")
        assert (call.sender, call.attempt) == (None, 1)
        # What only asks goes beside the queue.
        reply = await gateway.send("users", "get_user", 7)
        assert isinstance(reply, ServiceReply)
        assert reply.data == {"name": "Juan", "raw": b"\x00", "by": None}
        assert len(reply.cid) == 32
        with pytest.raises(RequestFailed, match="no such user"):
            await gateway.send("users", "get_user", "nobody")
        with pytest.raises(RequestFailed, match="no handler"):
            await gateway.send("users", "get_nothing")


@on_both_loops
async def test_what_only_asks_is_never_kept(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus:
        with pytest.raises(NoProvider):
            await bus.send("users", "get_user", 7)
        users = Users()
        async with bus.service("users", users.calls.append):
            assert not (await bus.send("users", "first")).pending
        assert [call.pattern for call in users.calls] == ["first"]


@on_both_loops
async def test_a_service_that_is_down_gets_it_later_and_so_does_who_sent_it(bus_node: Node) -> None:
    users = Users()
    replies: list[ServiceReply] = []

    async def on_reply(reply: ServiceReply) -> None:
        await anyio.lowlevel.checkpoint()
        replies.append(reply)

    async with busnode.connect(bus_node.url) as bus:
        async with busnode.connect(bus_node.url) as gateway, gateway.service("gateway", {}):
            sent = await gateway.send("users", "user_post", 1, cid="c1", timeout=600)
            assert sent == Pending("c1")  # at once
            assert sent.pending
        # Now the sender is away, and comes back after the service has answered.
        async with bus.service("users", users.handlers):
            await eventually(lambda: len(users.calls) == 1)
        assert users.calls[0].sender == "gateway"
        async with (
            busnode.connect(bus_node.url) as gateway,
            gateway.service("gateway", {}, on_reply=on_reply),
        ):
            await eventually(lambda: bool(replies))
        assert replies == [ServiceReply("c1", {"posted": 1}, "users")]


@on_both_loops
async def test_a_slow_reply_is_late_and_comes_to_the_hook(bus_node: Node) -> None:
    users = Users()
    users.go_on = anyio.Event()
    replies: list[ServiceReply] = []
    async with (
        busnode.connect(bus_node.url) as bus,
        busnode.connect(bus_node.url) as gateway,
        bus.service("users", users.handlers),
        gateway.service("gateway", {}, on_reply=replies.append) as sender,
    ):
        assert await sender.send("users", "user_post", 1, cid="c1", timeout=0.01) == Pending("c1")
        users.go_on.set()
        await eventually(lambda: replies == [ServiceReply("c1", {"posted": 1}, "users")])


@on_both_loops
async def test_a_failure_is_pending_at_once_and_tried_again(bus_node: Node) -> None:
    users = Users()
    users.broken = "no disk"
    replies: list[ServiceReply] = []
    async with (
        busnode.connect(bus_node.url) as bus,
        busnode.connect(bus_node.url) as gateway,
        bus.service("users", users.handlers),
        gateway.service("gateway", {}, on_reply=replies.append),
    ):
        sent = await gateway.send("users", "user_post", 1, cid="c1", timeout=600, retry="0,0.1")
        users.broken = ""
        assert sent == Pending("c1")
        await eventually(lambda: len(users.calls) == 2)
        assert [call.attempt for call in users.calls] == [1, 2]
        await eventually(lambda: replies == [ServiceReply("c1", {"posted": 1}, "users")])


@on_both_loops
async def test_what_is_rejected_is_never_tried_again_and_told(bus_node: Node) -> None:
    users = Users()
    async with (
        busnode.connect(bus_node.url) as bus,
        bus.service("users", users.handlers),
    ):
        with pytest.raises(RequestFailed, match="7 is not wanted"):
            await bus.send("users", "reject", 7, timeout=600)


@on_both_loops
async def test_one_of_several_instances_gets_each_letter(bus_node: Node) -> None:
    everyone = [Users(), Users()]
    async with (
        busnode.connect(bus_node.url) as one,
        busnode.connect(bus_node.url) as two,
        busnode.connect(bus_node.url) as gateway,
        one.service("users", everyone[0].handlers, concurrency=2),
        two.service("users", everyone[1].handlers, concurrency=2),
        anyio.create_task_group() as group,
    ):
        done: list[Any] = []

        async def send(number: int) -> None:
            reply = await gateway.send("users", "user_post", number, timeout=600)
            assert isinstance(reply, ServiceReply)
            done.append(reply.data["posted"])

        for number in range(40):
            group.start_soon(send, number)
        await eventually(lambda: len(done) == 40)
        assert sorted(done) == list(range(40))
        assert sorted(call.data for users in everyone for call in users.calls) == list(range(40))


@on_both_loops
async def test_a_handler_may_take_longer_than_its_lease(bus_node: Node) -> None:
    users = Users()
    users.go_on = anyio.Event()
    async with (
        busnode.connect(bus_node.url) as bus,
        busnode.connect(bus_node.url) as other,
        bus.service("users", users.handlers, lease=0.6),
        anyio.create_task_group() as group,
    ):
        replies: list[object] = []

        async def send() -> None:
            replies.append(await bus.send("users", "user_post", 1, timeout=600))

        group.start_soon(send)
        await eventually(lambda: len(users.calls) == 1)
        with anyio.move_on_after(2.5):  # somebody else would get it by now
            await take(other.queue("service.users"), 1)
            pytest.fail("its lease has ended")
        users.go_on.set()
        await eventually(lambda: len(replies) == 1)
        assert len(users.calls) == 1


@on_both_loops
async def test_a_service_that_is_cancelled_gives_its_work_back(bus_node: Node) -> None:
    users = Users()
    users.go_on = anyio.Event()
    async with busnode.connect(bus_node.url) as bus, busnode.connect(bus_node.url) as other:
        await bus.send("users", "user_post", 1)
        with anyio.CancelScope() as scope:
            async with bus.service("users", users.handlers):
                await eventually(lambda: len(users.calls) == 1)
                scope.cancel()
        [task] = await take(other.queue("service.users"), 1)
        assert task.attempt == 1
        await task.complete()


@on_both_loops
async def test_leaving_waits_for_what_runs(bus_node: Node) -> None:
    users = Users()
    users.go_on = anyio.Event()
    async with busnode.connect(bus_node.url) as bus, anyio.create_task_group() as group:
        replies: list[Any] = []

        async def send() -> None:
            replies.append(await bus.send("users", "user_post", 1, timeout=600))

        async with bus.service("users", users.handlers):
            group.start_soon(send)
            await eventually(lambda: len(users.calls) == 1)
            # It has asked whether the service is up, after the ack and so before the task came. Is
            # it answered only when the service has left, the reply is late and comes all the same.
            await eventually(lambda: bus.statistics().requests == 0)
            users.go_on.set()
        await eventually(lambda: len(replies) == 1)
        assert not replies[0].pending


@on_both_loops
async def test_what_is_no_letter_is_a_dead_one(
    bus_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "busnode.client")
    users = Users()
    async with busnode.connect(bus_node.url) as bus:
        queue = bus.queue("service.users")
        dead: list[str] = []
        queue.on_failed(lambda event: dead.append(event.history[-1].error))
        async with queue.hooks(), bus.service("users", users.handlers):
            for letter in (
                b"\xc1",
                msgpack.packb([1]),
                msgpack.packb({"pattern": 1}),
                b"\x81\x90\x01",
            ):
                await queue.enqueue(letter)
            await queue.enqueue(msgpack.packb({"reply": 7}))
            await eventually(lambda: len(dead) == 5)
            assert users.calls == []
            # A reply that nobody takes harms nobody.
            await queue.enqueue(msgpack.packb({"reply": "c9", "from": "x", "data": 1}))
            await eventually(lambda: "c9" in caplog.text)
            assert not (await bus.send("users", "user_post", 1)).pending


BAD: list[Callable[[Bus], Awaitable[object]]] = [
    lambda bus: bus.send("", "x"),
    lambda bus: bus.send("a/b", "x"),
    lambda bus: bus.send("u" * 93, "x"),
    lambda bus: bus.send("users", ""),
    lambda bus: bus.send("users", "x", object()),
    lambda bus: bus.send("users", "x", cid=""),
    lambda bus: bus.send("users", "x", cid="c" * 129),
    lambda bus: bus.send("users", "x", retry="x"),
]


@on_both_loops
async def test_bad_letters_and_names_are_refused_before_anything_is_sent(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url) as bus:
        for send in BAD:
            with pytest.raises(BadTask):
                await send(bus)
        with pytest.raises(BadTask):
            bus.service("a/b", {})
        with pytest.raises(BadTask):
            bus.service("users", {}, concurrency=0)
        async with bus.service("users", {}):
            with pytest.raises(Refused):
                async with bus.service("users", {}):
                    pytest.fail("it is this service already")
        assert bus.statistics().acked == 0


@on_both_loops
async def test_a_reply_that_comes_as_its_wait_is_cancelled_is_late(bus_node: Node) -> None:
    users = Users()
    users.go_on = anyio.Event()
    replies: list[ServiceReply] = []
    taken: list[ServiceReply | Pending] = []
    async with (
        busnode.connect(bus_node.url) as bus,
        busnode.connect(bus_node.url) as gateway,
        bus.service("users", users.handlers),
        gateway.service("gateway", {}, on_reply=replies.append),
        anyio.create_task_group() as group,
    ):
        scope = anyio.CancelScope()

        async def send() -> None:
            with scope:
                taken.append(await gateway.send("users", "user_post", 1, cid="c1", timeout=600))

        group.start_soon(send)
        await eventually(lambda: len(users.calls) == 1)
        letters = gateway._correspondence  # pyright: ignore[reportPrivateUsage]
        scope.cancel()
        assert letters.take(ServiceReply("c1", "both in one step", "users"))
        await eventually(lambda: bool(replies or taken))
        assert [reply.cid for reply in (*replies, *taken)] == ["c1"]
        users.go_on.set()


@on_both_loops
async def test_a_letter_survives_the_node_that_took_it(bus_cluster: BusCluster) -> None:
    first, second, _ = bus_cluster.nodes
    users = Users()
    async with busnode.connect(second.url) as bus:
        async with busnode.connect(first.url) as gateway:
            assert (await gateway.send("users", "user_post", 1)).pending
        await anyio.to_thread.run_sync(bus_cluster.kill, first)
        await anyio.to_thread.run_sync(bus_cluster.restart, first)
        async with bus.service("users", users.handlers):
            await eventually(lambda: len(users.calls) == 1)
