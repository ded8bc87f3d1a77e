"""From `enqueue` to the receipt, and what is refused before anything is sent."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from busnode.client import Queue, TaskReceipt
from busnode.wire.control import Error
from busnode.wire.errors import BadTask, NotMirrored
from busnode.wire.frames import Flags, FrameType
from busnode.wire.ids import MsgNo
from busnode.wire.limits import PAYLOAD_BYTES_MAX
from tests.client.scripted_node import BROKER, Published, eventually, on_both_loops, visit

HALF_A_PAIR = "\ud800"


class Enqueueing:
    """Something in a task of its own, and what became of it."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self.outcome: Any = None

    async def run(self) -> None:
        try:
            self.outcome = await self._work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error

    async def end(self) -> Any:
        await eventually(lambda: self.outcome is not None)
        return self.outcome


def headers(batch: Published) -> list[Any]:
    return [dict(each or {}) for each in batch.columns.headers or []]


@on_both_loops
async def test_a_task_is_a_persistent_message_with_its_options_as_headers() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        queue = bus.queue("emails", retry=[0, 60, 300.5])
        due = datetime(2030, 1, 1, tzinfo=UTC)
        enqueueing = Enqueueing(
            lambda: queue.enqueue(
                b"hello", headers={"k": "v"}, due=due, priority=-3, key="order 7", window=60
            )
        )
        tasks.start_soon(enqueueing.run)
        batch = await peer.batch()
        assert batch.topic == "/$task/emails"
        assert batch.header.flags & Flags.PERSISTENT
        assert batch.columns.payloads == [b"hello"]
        assert headers(batch) == [
            {
                "k": "v",
                "$due_us": str(1_893_456_000_000_000),
                "$priority": "-3",
                "$key": "order 7",
                "$window_ms": "60000",
                "$retry": "0,60,300.5",
            }
        ]
        await peer.ack(batch, 12)
        assert await enqueueing.end() == TaskReceipt(
            f"{BROKER.hex()}-12", BROKER, MsgNo(12), "local"
        )


@on_both_loops
async def test_a_task_that_asks_for_nothing_has_no_headers() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        enqueueing = Enqueueing(lambda: bus.queue("emails").enqueue(b"hello"))
        tasks.start_soon(enqueueing.run)
        batch = await peer.batch()
        assert batch.columns.headers is None
        await peer.ack(batch, 1)
        await enqueueing.end()


@on_both_loops
async def test_many_tasks_share_batches_and_have_a_receipt_each() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        queue = bus.queue("emails")
        payloads = [b"%d" % i * 100 for i in range(3000)]
        enqueueing = Enqueueing(lambda: queue.enqueue_many(payloads, delay=timedelta(seconds=1.5)))
        tasks.start_soon(enqueueing.run)
        taken: list[bytes] = []
        batches = 0
        while len(taken) < len(payloads):
            batch = await peer.batch()
            assert headers(batch) == [{"$delay_ms": "1500"}] * batch.header.count
            await peer.ack(batch, 1 + len(taken))
            taken += batch.columns.payloads
            batches += 1
        assert taken == payloads
        assert batches < 20
        receipts = await enqueueing.end()
        assert [receipt.msg_no for receipt in receipts] == list(range(1, 3001))
        assert receipts[-1].id == f"{BROKER.hex()}-3000"


@on_both_loops
async def test_many_tasks_may_each_have_a_key() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        queue = bus.queue("emails", retry="none")
        enqueueing = Enqueueing(lambda: queue.enqueue_many([b"a", b"b"], keys=["1", "2"]))
        tasks.start_soon(enqueueing.run)
        found: list[Any] = []
        while len(found) < 2:
            batch = await peer.batch()
            found += headers(batch)
            await peer.ack(batch, 1 + len(found) - batch.header.count)
        assert found == [{"$key": "1", "$retry": "none"}, {"$key": "2", "$retry": "none"}]
        assert len(await enqueueing.end()) == 2


@on_both_loops
async def test_a_refused_task_raises_what_the_node_said() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        queue = bus.queue("emails")
        enqueueing = Enqueueing(lambda: queue.enqueue(b"x", require="mirrored"))
        tasks.start_soon(enqueueing.run)
        batch = await peer.batch()
        assert batch.header.flags & Flags.MIRROR_REQUIRED
        kind, number = int(FrameType.BATCH), batch.header.producer_seq
        await peer.send(Error("NOT_MIRRORED", "alone", kind, number, 1.0))
        assert isinstance(await enqueueing.end(), NotMirrored)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"delay": -1}, "delay of -1"),
    ({"delay": float("nan")}, "delay of nan"),
    ({"delay": timedelta(seconds=-1)}, "delay of"),
    ({"delay": 10**12}, "expected 0 to"),
    ({"due": datetime(2030, 1, 1)}, "no time zone"),
    ({"due": datetime(1960, 1, 1, tzinfo=UTC)}, "expected 0 to"),
    ({"priority": 10}, "expected -9 to 9"),
    ({"priority": -10}, "expected -9 to 9"),
    ({"priority": 1.5}, "expected a whole number"),
    ({"priority": True}, "expected a whole number"),
    ({"key": ""}, "1 to 128 bytes"),
    ({"key": "k" * 129}, "1 to 128 bytes"),
    ({"key": 7}, "of type int"),
    ({"key": HALF_A_PAIR}, "surrogate"),
    ({"key": "k", "window": 0}, "expected 1 to"),
    ({"retry": "now and then"}, "retry schedule"),
    ({"retry": [1, -1]}, "retry waits -1 s"),
    ({"retry": [0] * 101}, "101 attempts"),
    ({"headers": {"$priority": "9"}}, "begin with $"),
    ({"headers": {"$anything": "9"}}, "begin with $"),
    ({"headers": {"k": 7}}, "of type int"),
    ({"headers": {"k": HALF_A_PAIR}}, "surrogate"),
    ({"headers": {"k": "v" * 8192}}, "headers of 8193 bytes; the limit is 8192"),
    ({"headers": {str(i): "" for i in range(64)}}, "64 headers"),
]


@on_both_loops
async def test_what_no_task_can_have_is_refused_before_anything_is_sent() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        queue = bus.queue("emails")
        for options, text in BAD_OPTIONS:
            with pytest.raises(BadTask) as caught:
                await queue.enqueue(b"x", **options)
            assert text in caught.value.text, caught.value.text
            assert caught.value.code == "BAD_TASK"
            if "key" not in options:
                with pytest.raises(BadTask):
                    await queue.enqueue_many([b"x", b"y"], **options)
        await refuses_payloads(queue)
        with pytest.raises(BadTask):
            await queue.enqueue_many([b"x"], keys=["a", "b"])
        with pytest.raises(BadTask):
            bus.queue("emails", retry="0,x")
        # The first that comes is a good one.
        enqueueing = Enqueueing(lambda: queue.enqueue(b"good"))
        tasks.start_soon(enqueueing.run)
        batch = await peer.batch()
        assert batch.columns.payloads == [b"good"]
        await peer.ack(batch, 1)
        await enqueueing.end()


async def refuses_payloads(queue: Queue) -> None:
    too_much = PAYLOAD_BYTES_MAX + 1
    for enqueue in (
        lambda: queue.enqueue(bytes(too_much)),
        lambda: queue.enqueue_many([b"x", bytes(too_much)]),
    ):
        with pytest.raises(BadTask) as caught:
            await enqueue()
        assert caught.value.text == f"payload of {too_much} bytes; the limit is {PAYLOAD_BYTES_MAX}"
    with pytest.raises(BadTask):
        await queue.enqueue("text")  # type: ignore[arg-type]  # what a user may try


@on_both_loops
async def test_a_name_that_is_no_level_of_a_topic_is_no_queue() -> None:
    async with visit() as (bus, _, _):
        for name in ("", "a/b", "$sys", "+", "*", "a*", "..", "x" * 101, "a\n", "ü" * 51):
            with pytest.raises(BadTask):
                bus.queue(name)
        assert bus.queue("ü" * 50).name == "ü" * 50


@on_both_loops
async def test_leases_and_prefetch_have_limits() -> None:
    async with visit() as (bus, _, _):
        queue = bus.queue("emails")
        for lease in (0, -1, float("nan"), 10**6):
            with pytest.raises(BadTask):
                queue.poll(lease=lease)
        for prefetch in (0, -1, 10_001, True):
            with pytest.raises(BadTask):
                queue.poll(prefetch=prefetch)
            with pytest.raises(BadTask):
                queue.poll_many(prefetch)
