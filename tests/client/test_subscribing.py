"""What a consumer gets, in which order, and what it is told of the rest."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from busnode.client import (
    Bus,
    Gap,
    MemoryCursorStore,
    Message,
    MessageBatch,
    Position,
    Subscription,
)
from busnode.client.inbox import Delivery, Hole, Inbox
from busnode.wire import control
from busnode.wire.batches import Columns
from busnode.wire.errors import (
    BadHash,
    BadPattern,
    Disconnected,
    Forbidden,
    Refused,
    StorageFailed,
)
from busnode.wire.frames import STAMP_AT, Flags, FrameType
from busnode.wire.ids import MsgNo, Topic
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import DELIVERED_KINDS
from tests.client.scripted_node import (
    BROKER,
    OTHER,
    Peer,
    ScriptedNode,
    chunk,
    eventually,
    on_both_loops,
    record,
    visit,
)

LOG = (BROKER, Topic("/t"))
OTHER_LOG = (OTHER, Topic("/t"))


@asynccontextmanager
async def subscribed(
    position: dict[Any, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Bus, Subscription, Peer, ScriptedNode, control.Subscribe]]:
    """A client with one subscription to /t, and its node."""
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:
        asked: list[control.Subscribe] = []

        async def answer() -> None:
            asked.append(await peer.subscribed(position or {}))

        tasks.start_soon(answer)
        async with bus.subscribe("/t", **options) as messages:
            yield bus, messages, peer, node, asked[0]


async def take(messages: Subscription, count: int) -> list[Message]:
    return [await anext(messages) for _ in range(count)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


@on_both_loops
async def test_messages_come_in_the_order_of_their_log_with_all_that_belongs_to_them() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, asked):
        assert (asked.pattern, asked.start, asked.position) == ("/t", "earliest", {})
        columns = Columns([b"one", b"two"], [5, 0], ["i1", None], [{"k": "v"}, None])
        await peer.send(
            chunk(1, record(1, [b"one", b"two"], columns=columns, utc_us=1_000_005)),
            chunk(1, record(0, [b"live"], topic="/t")),
        )
        one, two, live = await take(messages, 3)
        assert tuple(one) == ("/t", b"one", {"k": "v"}, BROKER, 1, 1_000_000, "i1")
        assert tuple(two) == ("/t", b"two", {}, BROKER, 2, 1_000_005, None)
        assert one.utc == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert (live.payload, live.broker_id, live.msg_no) == (b"live", None, None)
        assert one.persistent
        assert not live.persistent


@on_both_loops
async def test_batches_are_the_same_messages_in_columns() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        columns = Columns([b"one", b"two"], [5, 0], ["i1", None], [{"k": "v"}, None])
        await peer.send(
            chunk(1, record(1, [b"1", b"2"], columns=columns), record(3, [b"three"])),
        )
        batches = messages.batches()
        first = await anext(batches)
        assert (first.topic, first.broker_id, first.first_no, first.last_no) == ("/t", BROKER, 1, 2)
        assert (first.payloads, first.ids) == ([b"one", b"two"], ["i1", None])
        assert first.headers == [{"k": "v"}, {}]
        assert first.utc_us[1] - first.utc_us[0] == 5
        assert messages.position == {}
        second = await anext(batches)
        assert messages.position == {LOG: 2}
        assert [message.msg_no for message in second] == [3]
        messages.done()
        assert messages.position == {LOG: 3}


@on_both_loops
async def test_a_batch_that_was_begun_message_by_message_is_gone_on_with_as_a_batch() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(chunk(1, record(1, [b"%d" % i for i in range(1, 201)])))
        assert payloads(await take(messages, 3)) == [b"1", b"2", b"3"]
        rest = await anext(messages.batches())
        assert (rest.first_no, len(rest), rest.payloads[0]) == (4, 197, b"4")
        assert messages.position == {LOG: 3}
        await peer.send(chunk(1, record(201, [b"201", b"202"])))
        assert payloads(await take(messages, 2)) == [b"201", b"202"]
        assert messages.position == {LOG: 201}


@on_both_loops
async def test_a_message_is_done_when_the_next_one_is_asked_for() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(chunk(1, record(1, [b"1", b"2"]), record(3, [b"3"])))
        wanted = 0
        async for message in messages:
            assert messages.position.get(LOG, 0) == wanted
            wanted += 1
            if message.msg_no == 3:
                break  # so the third is not done
        assert messages.position == {LOG: 2}
        with anyio.move_on_after(0.01):
            await anext(messages)  # there is none, but it was asked for
        assert messages.position == {LOG: 3}


@on_both_loops
async def test_done_tells_that_a_message_is_done_before_the_next_is_asked_for() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(chunk(1, record(1, [b"1", b"2", b"3"])))
        await anext(messages)
        messages.done()
        assert messages.position == {LOG: 1}
        assert (await anext(messages)).payload == b"2"
        assert messages.position == {LOG: 1}
        assert (await anext(messages)).payload == b"3"
        assert messages.position == {LOG: 2}


@on_both_loops
async def test_a_cancelled_wait_loses_nothing() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        got: list[bytes] = []
        number = 1
        for _ in range(50):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel_after, scope, number % 5)
                    await peer.send(chunk(1, record(number, [b"%d" % number])))
                    number += 1
                    while True:
                        got.append((await anext(messages)).payload)
        while len(got) < number - 1:
            got.append((await anext(messages)).payload)
        assert got == [b"%d" % i for i in range(1, number)]


@on_both_loops
async def test_a_consumer_with_a_full_inbox_can_be_cancelled_and_lets_others_run() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(
            *(chunk(1, record(1 + 4000 * i, [b"x"] * 4000)) for i in range(5)),
        )
        await eventually(lambda: messages.statistics().received == 20_000)
        taken: list[int] = []
        for iterate in (messages, messages.batches()):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel_after, scope, 0)
                    async for some in iterate:
                        taken.extend(
                            [some.msg_no or 0] if isinstance(some, Message) else numbers(some)
                        )
            assert scope.cancelled_caught
            assert len(taken) < 9000
        taken += [message.msg_no or 0 for message in await take(messages, 20_000 - len(taken))]
        assert taken == list(range(1, 20_001))


def numbers(batch: MessageBatch) -> list[int]:
    return [message.msg_no or 0 for message in batch]


async def cancel_after(scope: anyio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


@on_both_loops
async def test_after_a_reconnect_the_subscription_goes_on_where_it_was() -> None:
    async with subscribed(start="latest", position={BROKER: {"/t": 10}}) as (
        _, messages, peer, node, first,
    ):  # fmt: skip
        assert first.start == "latest"
        await peer.send(
            chunk(1, record(11, [b"11", b"12"]), record(13, [b"13"])),
            chunk(1, record(0, [b"live"])),
        )
        assert payloads(await take(messages, 1)) == [b"11"]
        await eventually(lambda: messages.statistics().received == 4)
        peer.close()
        again = await node.accept()
        asked = await again.subscribed()
        # What is in the inbox stays there: it is not asked for again.
        assert (asked.start, asked.position) == (None, {BROKER: {"/t": 13}})
        held = messages.statistics().inbox_bytes
        assert asked.credit_bytes == 8 * 1024 * 1024 - held
        await again.send(chunk(asked.subscription, record(12, [b"12", b"13", b"14"])))
        assert payloads(await take(messages, 4)) == [b"12", b"13", b"live", b"14"]
        assert messages.position == {LOG: 13}
        again.close()


@on_both_loops
async def test_what_was_had_already_is_passed_over_message_by_message() -> None:
    async with subscribed(start=Position({LOG: MsgNo(3)})) as (_, messages, peer, _, asked):
        assert (asked.start, asked.position) == (None, {BROKER: {"/t": 3}})
    async with subscribed({BROKER: {"/t": 3}}, start=Position({LOG: MsgNo(3)})) as (
        _, messages, peer, _, _,
    ):  # fmt: skip
        columns = Columns(
            [b"%d" % i for i in range(1, 6)],
            [5, 4, 3, 2, 0],
            [f"i{i}" for i in range(1, 6)],
            [{"n": f"{i}"} for i in range(1, 6)],
        )
        await peer.send(
            chunk(1, record(1, [b"1", b"2"])),
            chunk(1, record(1, [b""] * 5, columns=columns, utc_us=100)),
            chunk(1, record(3, [b"3"] * 3), record(6, [b"6"])),
        )
        four, five, six = await take(messages, 3)
        assert (four.payload, four.msg_no, four.utc_us, four.id) == (b"4", 4, 98, "i4")
        assert four.headers == {"n": "4"}
        assert (five.payload, five.msg_no, five.utc_us) == (b"5", 5, 100)
        assert (six.payload, six.msg_no) == (b"6", 6)
        assert messages.statistics().received == 3


@on_both_loops
async def test_a_hole_is_never_skipped_but_asked_for() -> None:
    async with subscribed(start="earliest") as (bus, messages, peer, node, _):
        await peer.send(
            chunk(1, record(1, [b"1"]), record(3, [b"3"])),
            chunk(1, record(4, [b"4"])),  # on its way before we could say anything
        )
        assert (await peer.expect(control.Unsubscribe)).subscription == 1
        asked = await peer.subscribed()
        assert (asked.subscription, asked.position) == (2, {BROKER: {"/t": 1}})
        await peer.send(chunk(2, record(2, [b"2"]), record(3, [b"3"])))
        assert payloads(await take(messages, 3)) == [b"1", b"2", b"3"]
        assert messages.statistics().holes == 1
        # A node that leaves out the same again cannot serve us.
        await peer.send(chunk(2, record(5, [b"5"])))
        asked = await peer.subscribed()
        await peer.send(chunk(3, record(5, [b"5"])))
        again = await node.accept()
        asked = await again.subscribed()
        assert asked.position == {BROKER: {"/t": 3}}
        await again.send(chunk(asked.subscription, record(4, [b"4"])))
        assert payloads(await take(messages, 1)) == [b"4"]
        assert bus.statistics().connections == 2
        again.close()


def test_what_is_refused_takes_no_credit() -> None:
    """It comes again, after the connection was made anew."""
    inbox = Inbox(1000)
    bad = bytearray(record(3, [b"3"]))
    bad[STAMP_AT + 24] ^= 1  # the hash of the header
    for records in ([record(2, [b"2"]), bytes(bad)], [record(9, [b"9"])]):
        inbox.received[LOG] = MsgNo(1)
        reader = FrameReader(DELIVERED_KINDS)
        data = chunk(1, record(1, [b"1"]), *records)
        reader.space()[: len(data)] = data
        reader.received(len(data))
        (runs,) = [event for event in reader.events() if isinstance(event, Runs)]
        assert runs.chunk is not None
        for run in runs.runs:
            with pytest.raises((BadHash, Hole)):
                inbox.take(reader.view, run, runs.chunk)
        while (entry := inbox.next_entry()) is not None:
            assert isinstance(entry, Delivery)
            inbox.finish(entry)
        assert inbox.held_bytes == 0


@on_both_loops
async def test_a_gap_names_only_what_has_not_come() -> None:
    """A home that goes by a durable position may begin it before that."""
    gaps: list[Gap] = []
    async with subscribed(start="earliest", on_gap=gaps.append) as (_, messages, peer, _, _):
        await peer.send(
            chunk(1, record(1, [b"1", b"2"])),
            control.Gap(1, BROKER, "/t", 2, 5, "expired"),
            chunk(1, record(6, [b"6"])),
        )
        assert payloads(await take(messages, 3)) == [b"1", b"2", b"6"]
        assert [(gap.first, gap.last) for gap in gaps] == [(3, 5)]


@on_both_loops
async def test_a_gap_is_told_in_its_place_and_moves_the_position() -> None:
    gaps: list[Gap] = []
    async with subscribed(start="earliest", on_gap=gaps.append) as (_, messages, peer, _, _):
        await peer.send(
            chunk(1, record(1, [b"1"])),
            control.Gap(1, BROKER, "/t", 2, 9, "expired"),
            chunk(1, record(10, [b"10"])),
        )
        assert payloads(await take(messages, 1)) == [b"1"]
        assert gaps == []
        assert payloads(await take(messages, 1)) == [b"10"]
        [gap] = gaps
        assert (gap.broker_id, gap.topic, gap.first, gap.last) == (BROKER, "/t", 2, 9)
        assert (gap.reason, gap.code) == ("expired", "GAP")
        assert messages.position == {LOG: 9}
        # One that we are past already is no news; one that leaves a hole is none that we believe.
        await peer.send(control.Gap(1, BROKER, "/t", 2, 9, "expired"))
        await peer.send(control.Gap(1, BROKER, "/t", 20, 30, "expired"))
        asked = await peer.subscribed()
        assert asked.position == {BROKER: {"/t": 10}}
        assert len(gaps) == 1


@on_both_loops
async def test_what_a_log_holds_for_clients_of_other_nodes_is_passed_over_in_turn() -> None:
    persistent, local, remote = Flags.PERSISTENT, Flags.LOCAL, Flags.REMOTE
    for is_remote, expected in ((False, [b"1", b"3"]), (True, [b"2", b"3"])):
        async with subscribed(start="earliest") as (_, messages, peer, _, _):
            records = (
                record(1, [b"1"], flags=persistent | local),
                record(2, [b"2"], flags=persistent | remote),
                record(3, [b"3"], flags=persistent | local | remote),
            )
            await peer.send(chunk(1, *records, remote=is_remote))
            assert payloads(await take(messages, 2)) == expected
            assert messages.position == {LOG: 2}
            await peer.send(chunk(1, record(4, [b"4"]), remote=is_remote))
            assert payloads(await take(messages, 1)) == [b"4"]


@on_both_loops
async def test_a_log_that_came_up_late_begins_where_the_node_says() -> None:
    other = (OTHER, Topic("/t"))
    async with subscribed({BROKER: {"/t": 5}}) as (_, messages, peer, _, _):
        await peer.send(
            control.Chunk(1, 1, OTHER, "/t", 10, 9, 0, False, True),
            chunk(1, record(10, [b"10"], broker_id=OTHER), broker_id=OTHER, remote=True),
        )
        assert payloads(await take(messages, 1)) == [b"10"]
        assert messages.position == {LOG: 5, other: 9}
        # Where we have a place already it stays.
        await peer.send(
            control.Chunk(1, 1, OTHER, "/t", 21, 20, 0, False, True),
            chunk(1, record(11, [b"11"], broker_id=OTHER), broker_id=OTHER, remote=True),
        )
        assert payloads(await take(messages, 1)) == [b"11"]


@on_both_loops
async def test_a_gap_can_be_raised_and_reading_goes_on_behind_it() -> None:
    async with subscribed(start="earliest", on_gap="raise") as (_, messages, peer, _, _):
        await peer.send(
            control.Gap(1, BROKER, "/t", 1, 9, "expired"),
            chunk(1, record(10, [b"10"])),
        )
        with pytest.raises(Gap, match="1 to 9 cannot be had: expired"):
            await anext(messages)
        assert messages.position == {LOG: 9}
        assert payloads(await take(messages, 1)) == [b"10"]


@on_both_loops
async def test_a_gap_whose_end_nobody_knows_moves_nothing() -> None:
    gaps: list[Gap] = []
    async with subscribed({BROKER: {"/t": 5}}, on_gap=gaps.append) as (_, messages, peer, _, _):
        await peer.send(
            control.Gap(1, BROKER, "/t", 6, 0, "unknown: no copy of this log is left"),
            chunk(1, record(1, [b"1"], broker_id=OTHER), broker_id=OTHER),
        )
        await anext(messages)
        assert [gap.first for gap in gaps] == [6]
        assert messages.position == {LOG: 5}


@on_both_loops
async def test_a_batch_that_nobody_can_read_is_a_gap() -> None:
    gaps: list[Gap] = []
    async with subscribed(start="earliest", on_gap=gaps.append) as (_, messages, peer, _, _):
        await peer.send(
            chunk(1, record(1, [b"1"]), record(2, [b"", b""], body=b"\x94\xc0\xc0\xc0\x91\x01")),
            chunk(1, record(0, [b""], body=b"nonsense")),
            chunk(1, record(4, [b"4"])),
        )
        assert payloads(await take(messages, 2)) == [b"1", b"4"]
        [gap] = gaps
        assert (gap.first, gap.last) == (2, 3)
        assert gap.reason.startswith("unreadable")
        assert messages.position == {LOG: 3}


@on_both_loops
async def test_dropped_messages_are_told() -> None:
    dropped: list[int] = []
    async with subscribed(on_dropped=dropped.append) as (_, messages, peer, _, _):
        await peer.send(control.Dropped(1, 5), control.Dropped(1, 7), chunk(1, record(0, [b"x"])))
        await eventually(lambda: messages.statistics().received == 1)
        assert dropped == []
        await anext(messages)
        assert sum(dropped) == 12
        assert messages.statistics().dropped == 12


@on_both_loops
async def test_the_same_batch_in_another_log_is_dropped_and_moves_its_cursor() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(
            chunk(1, record(1, [b"a", b"b"], seq=5), record(3, [b"c"], seq=6)),
            chunk(
                1,
                record(1, [b"x"], seq=4, broker_id=OTHER),
                record(2, [b"a", b"b"], seq=5, broker_id=OTHER),
                record(4, [b"y"], seq=5, producer_id=8, broker_id=OTHER),
                record(5, [b"c"], seq=6, broker_id=OTHER),
                broker_id=OTHER,
            ),
        )
        # 4 was not seen before 5 and 6 were, and still it is new.
        assert payloads(await take(messages, 5)) == [b"a", b"b", b"c", b"x", b"y"]
        with anyio.move_on_after(0.02):
            await anext(messages)
        assert messages.position == {LOG: 3, OTHER_LOG: 5}
        assert messages.statistics().repeats == 3


@on_both_loops
async def test_what_has_no_number_of_its_producer_is_never_taken_for_a_repeat() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, _, _):
        await peer.send(
            chunk(1, record(0, [b"x"])),
            chunk(1, record(0, [b"x"])),
            chunk(1, record(1, [b"x"], seq=0), record(2, [b"x"], seq=0)),
        )
        assert payloads(await take(messages, 4)) == [b"x"] * 4


@on_both_loops
async def test_credit_is_returned_in_bulk_when_the_consumer_is_done() -> None:
    async with subscribed(start="earliest", credit_bytes=40_000) as (_, messages, peer, _, asked):
        assert asked.credit_bytes == 40_000
        size = len(record(1, [bytes(1000)]))
        for number in range(1, 21):
            await peer.send(chunk(1, record(number, [bytes(1000)])))
        await eventually(lambda: messages.statistics().received == 20)
        assert messages.statistics().inbox_bytes == 20 * size
        await take(messages, 10)  # nine of them are done: not worth a frame yet
        await take(messages, 1)
        credit = await peer.expect(control.Credit)
        assert (credit.subscription, credit.credit_bytes) == (1, 10 * size)
        assert messages.statistics().inbox_bytes == 10 * size


@on_both_loops
async def test_repeats_return_their_credit_without_the_consumer() -> None:
    async with subscribed({BROKER: {"/t": 20}}, credit_bytes=40_000) as (_, _, peer, _, _):
        await peer.send(*(chunk(1, record(n, [bytes(1000)])) for n in range(1, 15)))
        assert (await peer.expect(control.Credit)).credit_bytes >= 10_000


@on_both_loops
async def test_what_is_passed_over_returns_its_credit_while_the_consumer_waits_for_more() -> None:
    """Else a node that has used up all credit for it would never send what comes behind."""
    flags = Flags.PERSISTENT | Flags.LOCAL
    async with (
        subscribed(start="earliest", credit_bytes=14_000) as (_, messages, peer, _, _),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(anext, messages)
        for_others = (record(n, [bytes(1000)], flags=flags) for n in range(1, 14))
        await peer.send(*(chunk(1, each, remote=True) for each in for_others))
        with anyio.fail_after(5):
            assert (await peer.expect(control.Credit)).credit_bytes >= 3500
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_member_gives_a_new_home_no_credit_for_what_another_one_has_sent() -> None:
    """Credit says what is done, from the front of what that home has sent."""
    async with subscribed(queue="workers", credit_bytes=40_000) as (_, messages, peer, node, _):
        await peer.send(*(chunk(1, record(n, [bytes(1000)])) for n in (1, 2, 3)))
        await take(messages, 1)
        peer.close()
        again = await node.accept()
        asked = await again.subscribed()
        assert asked.credit_bytes == 0
        await take(messages, 2)
        assert messages.statistics().inbox_bytes > 0, "the last one is not done"
        messages.done()
        with anyio.move_on_after(0.1):
            await anext(messages)
        assert (await again.expect(control.Credit)).credit_bytes == 40_000
        again.close()


@on_both_loops
async def test_a_node_that_sends_more_than_its_credit_is_left() -> None:
    async with subscribed(start="earliest", credit_bytes=1000) as (bus, _, peer, node, _):
        block = bytes(1_000_000)
        with anyio.move_on_after(5):
            for number in range(1, 20):
                try:
                    await peer.send(chunk(1, record(number, [block])))
                except OSError:
                    break
        again = await node.accept()
        await eventually(lambda: bus.statistics().connections == 2)
        asked = await again.subscribed()
        assert 5 < asked.position[BROKER]["/t"] < 15
        assert asked.credit_bytes == 0
        again.close()


@on_both_loops
async def test_cursors_in_a_file_go_before_the_start_and_are_kept_at_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.cursors"
    async with subscribed({BROKER: {"/t": 7}}, cursors=path) as (_, messages, peer, _, asked):
        assert asked.start == "latest"
        # Before the first message: who crashes now comes back to the same place.
        assert Position.decode(path.read_bytes()) == {LOG: 7}
        await peer.send(chunk(1, record(8, [b"8", b"9"])))
        await take(messages, 2)
    assert Position.decode(path.read_bytes()) == {LOG: 8}
    async with subscribed({BROKER: {"/t": 8}}, cursors=str(path)) as (_, _, _, _, asked):
        assert (asked.start, asked.position) == (None, {BROKER: {"/t": 8}})
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.cursors"]


@on_both_loops
async def test_cursors_are_kept_while_messages_are_worked_off() -> None:
    store = MemoryCursorStore()
    async with subscribed(start="earliest", cursors=store) as (_, messages, peer, _, _):
        assert store.position is None  # an empty position has not moved
        await peer.send(chunk(1, record(1, [b"1", b"2", b"3"])))
        await take(messages, 3)
        await eventually(lambda: store.position == {LOG: 2})


@on_both_loops
async def test_an_empty_position_that_was_kept_means_the_very_beginning() -> None:
    store = MemoryCursorStore(Position())
    async with subscribed(cursors=store) as (_, _, _, _, asked):
        assert (asked.start, asked.position) == (None, {})


@on_both_loops
async def test_a_store_that_fails_stops_the_consumer() -> None:
    class Broken(MemoryCursorStore):
        async def save(self, position: Position) -> None:
            raise ZeroDivisionError

    with pytest.raises(BaseExceptionGroup) as caught:
        async with subscribed({BROKER: {"/t": 7}}, cursors=Broken()):
            pytest.fail("it went on")
    assert caught.group_contains(StorageFailed, match="ZeroDivisionError")

    class Breaking(MemoryCursorStore):
        broken = False

        async def save(self, position: Position) -> None:
            if self.broken:
                raise ZeroDivisionError

    store = Breaking()

    async def consume() -> None:
        async with subscribed({BROKER: {"/t": 7}}, cursors=store) as (_, messages, peer, _, _):
            store.broken = True
            await peer.send(chunk(1, record(8, [b"8", b"9"])))
            await take(messages, 2)
            with pytest.raises(StorageFailed):
                await anext(messages)

    with pytest.raises(BaseExceptionGroup) as caught:
        await consume()
    assert caught.group_contains(StorageFailed)  # and again for the last save


@on_both_loops
async def test_a_durable_subscription_tells_the_node_what_has_moved() -> None:
    async with subscribed({BROKER: {"/t": 7}, OTHER: {"/t": 3}}, durable="billing") as (
        _, messages, peer, node, first_asked,
    ):  # fmt: skip
        assert first_asked.durable == "billing"
        first = await peer.expect(control.SavePosition)
        assert first.position == {BROKER: {"/t": 7}, OTHER: {"/t": 3}}
        await peer.send(chunk(1, record(8, [b"8", b"9"])))
        await take(messages, 2)
        moved = await peer.expect(control.SavePosition)
        assert (moved.subscription, moved.position) == (1, {BROKER: {"/t": 8}})
        # Another consumer under the same name has been further than we are.
        peer.close()
        again = await node.accept()
        asked = await again.subscribed({BROKER: {"/t": 20}, OTHER: {"/t": 3}})
        await again.send(chunk(asked.subscription, record(21, [b"21"])))
        assert payloads(await take(messages, 1)) == [b"21"]
        assert messages.statistics().holes == 0
        await again.expect(control.SavePosition)
        again.close()


@on_both_loops
async def test_members_of_a_queue_take_numbers_as_they_come() -> None:
    async with subscribed(queue="workers") as (_, messages, peer, _, asked):
        assert asked.queue == "workers"
        await peer.send(
            chunk(1, record(5, [b"5"])), chunk(1, record(9, [b"9"])), chunk(1, record(2, [b"2"]))
        )
        assert payloads(await take(messages, 3)) == [b"5", b"9", b"2"]
        assert messages.statistics().holes == 0
        assert messages.position == {}


@on_both_loops
async def test_a_refused_subscription_raises_and_a_passing_refusal_is_tried_elsewhere() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:

        async def refuse() -> None:
            asked = await peer.expect(control.Subscribe)
            kind = int(FrameType.SUBSCRIBE)
            await peer.send(control.Error("FORBIDDEN", "no", kind, asked.subscription, None))
            asked = await peer.expect(control.Subscribe)
            await peer.send(control.Error("DRAINING", "bye", kind, asked.subscription, None))
            peer.close()
            again = await node.accept()
            await again.subscribed({})
            await again.expect(control.Unsubscribe)
            again.close()

        tasks.start_soon(refuse)
        with pytest.raises(Forbidden):
            async with bus.subscribe("/t"):
                pytest.fail("it was let in")
        async with bus.subscribe("/t"):
            assert bus.statistics().subscriptions == 1
        assert bus.statistics().subscriptions == 0


@on_both_loops
async def test_a_refusal_after_a_reconnect_reaches_the_consumer_behind_what_it_has() -> None:
    async with subscribed(start="earliest") as (_, messages, peer, node, _):
        await peer.send(chunk(1, record(1, [b"1"])))
        await eventually(lambda: messages.statistics().received == 1)
        peer.close()
        again = await node.accept()
        asked = await again.expect(control.Subscribe)
        kind = int(FrameType.SUBSCRIBE)
        await again.send(control.Error("FORBIDDEN", "no more", kind, asked.subscription, None))
        assert payloads(await take(messages, 1)) == [b"1"]
        with pytest.raises(Forbidden):
            await anext(messages)
        again.close()


@on_both_loops
async def test_wrong_patterns_and_starts_are_refused_at_once() -> None:
    async with visit() as (bus, _, _):
        for pattern in ("t", "/t/*/u", "/t+"):
            with pytest.raises(BadPattern):
                bus.subscribe(pattern)
        with pytest.raises(Refused, match="time zone"):
            bus.subscribe("/t", start=datetime(2024, 1, 1))
        with pytest.raises(Refused, match="start"):
            bus.subscribe("/t", start="yesterday")  # type: ignore[arg-type]


@on_both_loops
async def test_a_time_to_start_from_is_sent_in_microseconds() -> None:
    moment = datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    async with subscribed(start=moment) as (_, _, _, _, asked):
        assert asked.start == 1_704_067_200_000_005


@on_both_loops
async def test_a_node_that_sends_messages_before_the_position_is_left() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:

        async def serve() -> None:
            asked = await peer.expect(control.Subscribe)
            await peer.send(chunk(asked.subscription, record(1, [b"x"])))
            assert (await peer.expect(control.Error)).code == "UNEXPECTED_FRAME"
            again = await node.accept()
            await again.subscribed({})
            await again.expect(control.Unsubscribe)
            again.close()

        tasks.start_soon(serve)
        async with bus.subscribe("/t") as messages:
            assert messages.statistics().received == 0


@on_both_loops
async def test_two_tasks_cannot_read_one_subscription() -> None:
    async with subscribed() as (_, messages, _, _, _), anyio.create_task_group() as tasks:
        tasks.start_soon(anext, messages)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Refused, match="two tasks"):
            await anext(messages)
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_subscription_that_nobody_answers_gives_up_when_the_node_is_gone() -> None:
    async with visit(deadline_s=0.1) as (bus, peer, node), anyio.create_task_group() as tasks:

        async def vanish() -> None:
            await peer.expect(control.Subscribe)
            peer.close()
            await node.accept(greet=False)

        tasks.start_soon(vanish)
        with pytest.raises(Disconnected):
            async with bus.subscribe("/t"):
                pytest.fail("it was let in")
        assert bus.statistics().subscriptions == 0
