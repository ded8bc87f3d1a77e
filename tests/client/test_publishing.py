"""From `publish` to the ack, and what may happen on the way."""

from functools import partial

import anyio
import pytest

from busnode.client import Receipt
from busnode.client.payloads import checked
from busnode.wire import control
from busnode.wire.errors import (
    BadBatch,
    BadTopic,
    BatchTooLarge,
    Disconnected,
    NotMirrored,
    Refused,
)
from busnode.wire.frames import Flags, FrameType
from busnode.wire.ids import MsgNo
from busnode.wire.limits import HEADERS_BYTES_MAX, PAYLOAD_BYTES_MAX
from tests.client.scripted_node import (
    BROKER,
    OTHER,
    Peer,
    Published,
    eventually,
    on_both_loops,
    visit,
)


def refused(batch: Published, code: str, retry_after_s: float | None = None) -> control.Error:
    return control.Error(
        code, "not now", int(FrameType.BATCH), batch.header.producer_seq, retry_after_s
    )


async def take_all(peer: Peer, messages: int) -> list[Published]:
    """Batches until there are so many messages."""
    batches: list[Published] = []
    while messages > 0:
        batches.append(await peer.batch())
        messages -= batches[-1].header.count
    return batches


def payloads(batches: list[Published]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.columns.payloads]


@on_both_loops
async def test_a_persistent_message_returns_its_receipt_when_it_is_acked() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        receipts: list[Receipt] = []

        async def publish() -> None:
            receipts.append(
                await bus.publish(
                    "/orders/new", b"one", headers={"k": "v"}, message_id="m1", persistent=True
                )
            )

        tasks.start_soon(publish)
        batch = await peer.batch()
        assert batch.topic == "/orders/new"
        assert batch.columns.payloads == [b"one"]
        assert batch.columns.headers == [{"k": "v"}]
        assert batch.columns.ids == ["m1"]
        assert batch.header.flags == Flags.PERSISTENT | Flags.GLOBAL
        assert batch.header.producer_seq == 1
        assert peer.hello is not None
        assert batch.header.producer_id == peer.hello.producer_id
        assert receipts == []
        await peer.send(control.Ack(BROKER, "mirrored", [(1, 1, 41)]))
        await eventually(lambda: receipts == [Receipt(BROKER, MsgNo(41), "mirrored")])


@on_both_loops
async def test_what_is_published_at_once_shares_a_batch_and_each_gets_its_own_number() -> None:
    async with visit() as (bus, peer, _):
        receipts: dict[bytes, Receipt] = {}

        async def publish(payload: bytes) -> None:
            receipts[payload] = await bus.publish("/t", payload, persistent=True)

        async with anyio.create_task_group() as tasks:
            for i in range(100):
                tasks.start_soon(publish, b"%d" % i)
            batches = await take_all(peer, 100)
            assert len(batches) == 1
            await peer.ack(batches[0], 1001)
            await eventually(lambda: len(receipts) == 100)
            for at, payload in enumerate(batches[0].columns.payloads):
                assert receipts[payload].msg_no == 1001 + at
        assert bus.statistics().unacked == 0


@on_both_loops
async def test_the_scope_and_the_absence_of_persistence_are_in_the_flags() -> None:
    async with visit() as (bus, peer, _):
        await bus.publish("/a", b"x", scope="local")
        await bus.publish("/b", b"x", scope="remote")
        await bus.publish("/c", b"x")
        for flags in (Flags.LOCAL, Flags.REMOTE, Flags.GLOBAL):
            batch = await peer.batch()
            assert (batch.header.flags, batch.header.producer_seq) == (flags, 0)
        with pytest.raises(Refused, match="scope"):
            await bus.publish("/d", b"x", scope="everywhere")  # type: ignore[call-overload]


@on_both_loops
async def test_what_was_not_acked_is_sent_again_byte_for_byte_and_in_order() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:
        for topic in ("/a", "/b", "/c"):
            tasks.start_soon(partial(bus.publish, topic, topic.encode(), persistent=True))
        first = [await peer.batch() for _ in range(3)]
        assert [batch.header.producer_seq for batch in first] == [1, 2, 3]
        await peer.ack(first[1], 1)
        await eventually(lambda: bus.statistics().acked == 1)
        peer.close()
        again = await node.accept()
        sent_again = [await again.batch() for _ in range(2)]
        assert [batch.frame for batch in sent_again] == [first[0].frame, first[2].frame]
        await again.ack(sent_again[0], 1)
        await again.ack(sent_again[1], 1)
        await eventually(lambda: bus.statistics().acked == 3)
        tasks.start_soon(partial(bus.publish, "/d", b"d", persistent=True))
        later = await again.batch()
        assert later.header.producer_seq == 4
        await again.ack(later, 1)
        await eventually(lambda: bus.statistics().acked == 4)
        again.close()


@on_both_loops
async def test_acks_may_come_in_any_order_and_cover_several_batches() -> None:
    async with visit(linger_s=0.0) as (bus, peer, _):
        async with bus.publisher("/t", persistent=True) as out:
            for i in range(4000):
                await out.send(b"%0500d" % i)
            batches = await take_all(peer, 4000)
            assert len(batches) > 4
            number = 1
            rows: list[tuple[int, int, int]] = []
            for at, batch in enumerate(batches):
                rows.append((batch.header.producer_seq, 1, number))
                number += batch.header.count
                if at == 2:
                    rows = [(rows[0][0], 3, 1)]
            await peer.send(*(control.Ack(BROKER, "local", [row]) for row in reversed(rows)))
            receipts = await out.flush()
        assert [receipt.msg_no for receipt in receipts] == list(range(1, 4001))
        assert len(receipts) == 4000
        assert len(receipts.ranges) == 1


@on_both_loops
async def test_a_refused_batch_raises_to_its_publisher_and_the_rest_goes_on() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:

        async def publish_in_vain() -> None:
            with pytest.raises(NotMirrored) as caught:
                await bus.publish("/a", b"x", persistent=True)
            assert caught.value.retry_after_s == 2.5

        tasks.start_soon(publish_in_vain)
        await peer.send(refused(await peer.batch(), "NOT_MIRRORED", 2.5))
        await eventually(lambda: bus.statistics().refused == 1)
        tasks.start_soon(partial(bus.publish, "/b", b"y", persistent=True))
        batch = await peer.batch()
        assert batch.header.producer_seq == 2
        await peer.ack(batch, 1)
        await eventually(lambda: bus.statistics().acked == 1)
        assert bus.statistics().connections == 1


@on_both_loops
async def test_a_code_that_we_do_not_know_is_kept() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:

        async def publish_in_vain() -> None:
            with pytest.raises(Exception, match="FROM_THE_FUTURE: not now") as caught:
                await bus.publish("/a", b"x", persistent=True)
            assert getattr(caught.value, "code", None) == "FROM_THE_FUTURE"

        tasks.start_soon(publish_in_vain)
        await peer.send(refused(await peer.batch(), "FROM_THE_FUTURE"))


@on_both_loops
async def test_a_batch_that_a_node_cannot_take_now_is_sent_again_elsewhere() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(bus.publish, "/a", b"x", persistent=True))
        batch = await peer.batch()
        await peer.send(refused(batch, "DRAINING"))
        again = await node.accept()
        sent_again = await again.batch()
        assert sent_again.frame == batch.frame
        await again.ack(sent_again, 1)
        await eventually(lambda: bus.statistics().acked == 1)
        again.close()


@on_both_loops
async def test_what_is_too_large_or_wrong_is_refused_before_it_is_sent() -> None:
    async with visit() as (bus, peer, _):
        with pytest.raises(BatchTooLarge) as caught:
            await bus.publish("/t", bytes(PAYLOAD_BYTES_MAX + 1))
        assert str(PAYLOAD_BYTES_MAX + 1) in caught.value.text
        assert f"limit is {PAYLOAD_BYTES_MAX}" in caught.value.text
        with pytest.raises(BatchTooLarge, match=str(HEADERS_BYTES_MAX)):
            await bus.publish("/t", b"", headers={"k": "v" * HEADERS_BYTES_MAX})
        with pytest.raises(BadBatch):
            await bus.publish("/t", b"", headers={"k": 1})  # type: ignore[dict-item]
        with pytest.raises(BadBatch):
            await bus.publish("/t", b"", message_id="\ud800")
        with pytest.raises(Refused, match="encode"):
            await bus.publish("/t", "text")  # type: ignore[call-overload]
        for topic in ("t", "/t/+", "/t//u", "/" + "x" * 300):
            with pytest.raises(BadTopic):
                await bus.publish(topic, b"")
        async with bus.publisher("/t") as out:
            with pytest.raises(BatchTooLarge):
                await out.send_many([b"fine", bytes(PAYLOAD_BYTES_MAX + 1)])
        await bus.publish("/t", b"the only one")
        assert (await peer.batch()).columns.payloads == [b"the only one"]


@on_both_loops
async def test_the_largest_payload_goes_through_whole() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        largest = bytes(PAYLOAD_BYTES_MAX)
        tasks.start_soon(partial(bus.publish, "/t", largest, persistent=True, headers={"a": "b"}))
        tasks.start_soon(partial(bus.publish, "/t", largest))
        for _ in range(2):
            batch = await peer.batch()
            assert batch.columns.payloads == [largest]
            if batch.header.producer_seq:
                await peer.ack(batch, 1)
        await eventually(lambda: bus.statistics().acked == 1)


@on_both_loops
async def test_other_kinds_of_bytes_are_taken_and_headers_are_copied() -> None:
    async with visit() as (bus, peer, _):
        payload, headers = bytearray(b"abc"), {"k": "v"}
        await bus.publish("/t", payload, headers=headers)
        payload[0], headers["k"] = 0, "changed"
        await bus.publish("/t", memoryview(b"def"))
        batches = await take_all(peer, 2)
        assert payloads(batches) == [b"abc", b"def"]
        first = batches[0].columns.headers
        assert first is not None
        assert first[0] == {"k": "v"}
    assert checked(b"") == b""


@on_both_loops
async def test_a_full_window_makes_publishers_wait_and_an_ack_lets_them_on() -> None:
    async with visit(window_bytes=64 * 1024) as (bus, peer, _), anyio.create_task_group() as tasks:
        sent = 0

        async def publish() -> None:
            nonlocal sent
            async with bus.publisher("/t", persistent=True) as out:
                for i in range(1000):
                    await out.send(b"%01000d" % i)
                    sent += 1

        tasks.start_soon(publish)
        first = await peer.batch()
        await anyio.wait_all_tasks_blocked()
        assert 10 < sent < 70
        number = 1
        got = list(first.columns.payloads)
        await peer.ack(first, number)
        while len(got) < 1000:
            batch = await peer.batch()
            got += batch.columns.payloads
            await peer.ack(batch, len(got) - batch.header.count + 1)
        assert got == [b"%01000d" % i for i in range(1000)]
        await eventually(lambda: bus.statistics().acked == 1000)


@on_both_loops
async def test_the_window_is_bounded_in_batches_too() -> None:
    async with visit(window_batches=3) as (bus, peer, _), anyio.create_task_group() as tasks:
        for i in range(5):
            tasks.start_soon(partial(bus.publish, f"/t{i}", b"x", persistent=True))
        batches = [await peer.batch() for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        assert bus.statistics().unacked == 3
        for batch in batches:
            await peer.ack(batch, 1)
        for _ in range(2):
            await peer.ack(await peer.batch(), 1)
        await eventually(lambda: bus.statistics().acked == 5)


@on_both_loops
async def test_a_full_buffer_makes_publishing_wait_and_cancelling_takes_nothing() -> None:
    async with visit(buffer_bytes=64 * 1024) as (bus, peer, _):
        sent = 0
        block = bytes(32 * 1024)
        for patience_s in (0.3, 0.01, 0.01, 0.01):  # who gave up holds no room
            with anyio.move_on_after(patience_s) as scope:
                while True:  # until the kernel's buffers and ours are full
                    await bus.publish("/t", block)
                    sent += 1
            assert scope.cancelled_caught
        batches = await take_all(peer, sent)
        await bus.publish("/end", b"")
        while batches[-1].topic != "/end":
            batches.append(await peer.batch())
        assert len(payloads(batches)) == sent + 1
        assert bus.statistics().lost == 0


@on_both_loops
async def test_a_cancelled_publish_stays_on_its_way_and_harms_nobody() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        receipts: list[Receipt] = []

        async def publish() -> None:
            receipts.append(await bus.publish("/t", b"second", persistent=True))

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(partial(bus.publish, "/t", b"first", persistent=True))
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        tasks.start_soon(publish)
        batches = await take_all(peer, 2)
        assert payloads(batches) == [b"first", b"second"]
        number = 1
        for batch in batches:
            await peer.ack(batch, number)
            number += batch.header.count
        await eventually(lambda: receipts == [Receipt(BROKER, MsgNo(2), "local")])
        assert bus.statistics().unacked == 0


@on_both_loops
async def test_a_publisher_and_publish_to_one_topic_keep_their_order() -> None:
    async with visit() as (bus, peer, _):
        async with bus.publisher("/t") as out, bus.publisher("/t") as other:
            for i in range(300):
                await out.send(b"%d a" % i)
                await bus.publish("/t", b"%d b" % i)
                if i % 7 == 0:
                    await other.send_many([b"%d c" % i, b"%d d" % i])
        wanted = [
            b"%d %c" % (i, kind) for i in range(300) for kind in (b"abcd" if i % 7 == 0 else b"ab")
        ]
        assert payloads(await take_all(peer, len(wanted))) == wanted


@on_both_loops
async def test_a_flush_names_what_was_not_acked() -> None:
    async with visit() as (bus, peer, _):
        out = bus.publisher("/t", persistent=True)
        for i in range(4000):
            await out.send(b"%0500d" % i)
        batches = await take_all(peer, 4000)
        first = batches[0].header.count
        second = batches[1].header.count
        await peer.send(control.Ack(BROKER, "local", [(1, 1, 1)]))
        await peer.send(refused(batches[1], "NOT_MIRRORED"))
        number = first + 1
        for batch in batches[2:]:
            await peer.ack(batch, number)
            number += batch.header.count
        with pytest.raises(NotMirrored) as caught:
            await out.flush()
        assert f"numbers {first + 1} to {first + second} were not acked" in caught.value.text
        [row] = out.not_acked
        assert (row.first, row.last, row.error.code) == (first + 1, first + second, "NOT_MIRRORED")
        # The next flush begins anew.
        await out.send(b"another")
        await peer.ack(await peer.batch(), number)
        receipts = await out.flush()
        assert [*receipts] == [Receipt(BROKER, MsgNo(number), "local")]
        assert out.not_acked == []


@on_both_loops
async def test_receipts_of_a_topic_that_others_use_are_ranges() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        async with bus.publisher("/t", persistent=True) as out:
            await out.send_many([b"1", b"2"])
            tasks.start_soon(partial(bus.publish, "/t", b"3", persistent=True))
            await anyio.wait_all_tasks_blocked()
            await out.send(b"4")
            number = 10
            for batch in await take_all(peer, 4):
                await peer.send(
                    control.Ack(OTHER, "local", [(batch.header.producer_seq, 1, number)])
                )
                number += batch.header.count
            receipts = await out.flush()
        assert [(r.broker_id, r.msg_no) for r in receipts] == [
            (OTHER, 10),
            (OTHER, 11),
            (OTHER, 13),
        ]
        assert len(receipts.ranges) == 2


@on_both_loops
async def test_leaving_a_publisher_by_an_exception_does_not_wait() -> None:
    async with visit() as (bus, peer, _):

        async def publish_and_fail() -> None:
            async with bus.publisher("/t", persistent=True) as out:
                await out.send(b"on its way")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await publish_and_fail()
        batch = await peer.batch()
        assert batch.columns.payloads == [b"on its way"]
        await peer.ack(batch, 1)
        await eventually(lambda: bus.statistics().acked == 1)


@on_both_loops
async def test_without_a_node_calls_give_up_in_time_and_the_messages_do_not() -> None:
    async with visit(deadline_s=0.1, window_bytes=2000) as (bus, peer, node):
        out = bus.publisher("/b", persistent=True)
        await out.send(b"two")
        batches = [await peer.batch()]

        async def publish_in_vain() -> None:
            with pytest.raises(Disconnected, match="no node for"):
                await bus.publish("/a", b"one", persistent=True)

        async def vanish() -> None:
            batches.append(await peer.batch())
            peer.close()
            dead = await node.accept(greet=False)  # it answers nothing
            with pytest.raises(Disconnected, match="1 messages to /b are not acked and still"):
                await out.flush()
            with pytest.raises(Disconnected):
                await out.send_many([bytes(1000), bytes(1000)])  # there is no room for both
            dead.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_in_vain)
            tasks.start_soon(vanish)
        again = await node.accept()
        for number, wanted in enumerate(batches, start=1):
            sent_again = await again.batch()
            assert sent_again.frame == wanted.frame
            await again.ack(sent_again, number)
        assert [receipt.msg_no for receipt in await out.flush()] == [1]
        again.close()


@on_both_loops
async def test_messages_that_are_not_persistent_wait_for_a_node_and_are_counted_when_lost() -> None:
    async with visit() as (bus, peer, node):
        await bus.publish("/t", b"first")
        await peer.batch()
        peer.close()
        await eventually(lambda: bus.statistics().home is None)
        await bus.publish("/t", b"second")
        again = await node.accept()
        assert (await again.batch()).columns.payloads == [b"second"]
        # Fill the socket, so that something is in it when the connection breaks.
        sent = 0
        with anyio.move_on_after(0.2):
            while True:
                await bus.publish("/t", bytes(100_000))
                sent += 1
        again.close()
        await eventually(lambda: bus.statistics().home is None)
        lost = bus.statistics().lost
        assert 0 < lost < sent
        last = await node.accept()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_all, last, sent)
            await eventually(lambda: bus.statistics().sent + lost == sent + 2)
            tasks.cancel_scope.cancel()
        last.close()


@on_both_loops
async def test_lingering_gathers_a_batch_and_who_waits_is_not_kept_waiting() -> None:
    async with visit(linger_s=0.05) as (bus, peer, _):
        for i in range(5):
            await bus.publish("/t", b"%d" % i)
            await anyio.wait_all_tasks_blocked()
        assert (await peer.batch()).columns.payloads == [b"0", b"1", b"2", b"3", b"4"]
    async with visit(linger_s=60) as (bus, peer, _), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(bus.publish, "/t", b"now", persistent=True))
        await peer.ack(await peer.batch(), 1)
        out = bus.publisher("/u")
        await out.send(b"flushed")
        tasks.start_soon(out.flush)
        assert (await peer.batch()).columns.payloads == [b"flushed"]


@on_both_loops
async def test_a_publishing_loop_lets_others_run() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async def discard() -> None:
            while True:
                await peer.batch()

        tasks.start_soon(count_turns)
        tasks.start_soon(discard)
        out = bus.publisher("/t")
        for publish in (out.send, partial(bus.publish, "/u")):
            before = turns
            for _ in range(20_000):
                await publish(b"")
            assert turns >= before + 2
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_number_of_topics_without_end_is_no_leak() -> None:
    async with visit() as (bus, peer, _):
        for i in range(5000):
            await bus.publish(f"/t/{i}", b"x")
        assert len(await take_all(peer, 5000)) == 5000
        lanes: int = len(bus._lanes)  # pyright: ignore[reportPrivateUsage]
        assert lanes <= 4096
