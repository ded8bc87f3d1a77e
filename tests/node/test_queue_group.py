"""Queue groups: each batch to exactly one member, and none is lost while there is one."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
import trio

from busnode.node.handed import Handed
from busnode.node.outgoing import PIECES_BEFORE_YIELD
from busnode.node.subscription import (
    HANDED_MAX,
    HANDED_OF_A_PIECE,
    PIECE_BYTES,
    Subscription,
)
from busnode.node.unfinished import UNFINISHED_BYTES_MAX
from busnode.segments.retention import RetentionRules
from busnode.wire.control import Ack, Chunk, Credit, Gap, Unsubscribe
from busnode.wire.ids import LogId, Topic

from .raw_client import (
    AMPLE,
    LIVE,
    PERSISTENT,
    Bus,
    Delivered,
    Event,
    RawClient,
    SimulatedMachine,
    real_bus,
)

FLAGS = pytest.mark.parametrize("flags", [PERSISTENT, LIVE], ids=["persistent", "live"])


async def join(
    client: RawClient,
    pattern: str = "/jobs",
    group: str = "workers",
    number: int = 1,
    credit_bytes: int = AMPLE,
    start: str | int | None = "latest",
) -> None:
    answer = await client.subscribe(
        pattern, start, number=number, credit_bytes=credit_bytes, queue=group
    )
    assert answer.position == {}


async def got(bus: Bus, client: RawClient, number: int | None = None) -> list[bytes]:
    """All payloads that have come."""
    return payloads_of(await bus.all_sent(client), number)


def payloads_of(events: Iterable[Event], number: int | None = None) -> list[bytes]:
    return [
        payload
        for event in events
        if isinstance(event, Delivered) and number in (None, event.chunk.subscription)
        for payload in event.payloads
    ]


def credit_for(events: Iterable[Event]) -> int:
    """What a member gives back that has worked all of it off."""
    return sum(event.header.length for event in events if isinstance(event, Delivered))


async def publish(client: RawClient, count: int, flags: int = PERSISTENT, first: int = 0) -> None:
    """Publish batches of one message and wait until all have been handed on."""
    await client.send(
        *(client.batch("/jobs", [b"%d" % n], flags) for n in range(first, first + count))
    )
    acked = 0
    while flags & 1 and acked < count:
        acked += sum(batches for _, batches, _ in (await client.expect(Ack)).receipts)
    await client.barrier()


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


@FLAGS
async def test_each_batch_goes_to_exactly_one_member(tmp_path: Path, flags: int) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as one,
        bus.client(3) as two,
        bus.client(4) as three,
    ):
        for member in (one, two, three):
            await join(member)
        await publish(publisher, 300, flags)
        shares = [await got(bus, member) for member in (one, two, three)]
        assert Counter(chain(*shares)) == Counter(payloads(300))
        assert all(len(share) > 50 for share in shares), "at random, and so about the same"
        for share in shares:
            assert share == sorted(share, key=int), "each in order, though not without holes"


@FLAGS
async def test_groups_and_single_subscribers_do_not_take_from_each_other(
    tmp_path: Path, flags: int
) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as one,
        bus.client(3) as two,
        bus.client(4) as single,
    ):
        for member in (one, two):
            await join(member, group="red", number=1)
            await join(member, group="blue", number=2)
        await single.subscribe("/jobs")
        await publish(publisher, 100, flags)
        events = [await bus.all_sent(member) for member in (one, two)]
        for number in (1, 2):
            found = [
                payload
                for each in events
                for event in each
                if isinstance(event, Delivered) and event.chunk.subscription == number
                for payload in event.payloads
            ]
            assert Counter(found) == Counter(payloads(100))
        assert await got(bus, single) == payloads(100)


async def test_a_chunk_names_the_numbers_of_its_batch(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await join(member)
        await publisher.send(*(publisher.batch("/jobs", [b"x"] * 3) for _ in range(5)))
        events = await member.until(lambda e: len(e) == 10)
        for chunk, batch in zip(events[::2], events[1::2], strict=True):
            assert isinstance(chunk, Chunk)
            assert isinstance(batch, Delivered)
            assert (chunk.first_no, chunk.last_no) == (batch.numbers[0], batch.numbers[-1])
            assert (chunk.broker_id, chunk.topic) == (bus.broker_id, "/jobs")


async def test_what_nobody_has_credit_for_waits_in_the_log(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as one,
        bus.client(3) as two,
    ):
        await join(one, credit_bytes=0)
        await join(two, credit_bytes=0)
        await publish(publisher, 2000)
        assert await got(bus, one) == []
        assert await got(bus, two) == []
        (group,) = bus.node.subscriptions.groups
        assert len(group._held) == 0
        await one.credit(1)
        assert await got(bus, one) == payloads(1), "one batch, and it is in debt"
        await two.credit(AMPLE)
        found = await two.messages(1999)
        assert [payload for _, payload in found] == payloads(1999, 1)


async def test_a_member_is_not_handed_more_than_it_has_credit_for(tmp_path: Path) -> None:
    """What one cannot take now must not wait for it while another is idle."""
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as poor,
        bus.client(3) as rich,
    ):
        await join(poor, credit_bytes=150)
        await join(rich)
        await publish(publisher, 1000)
        few = await got(bus, poor)
        assert len(few) <= 3
        assert Counter(few + await got(bus, rich)) == Counter(payloads(1000))


@FLAGS
async def test_what_a_leaving_member_was_handed_goes_to_the_others(
    tmp_path: Path, flags: int
) -> None:
    """It is on no wire yet when its member goes: nobody else would ever get it."""
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as stuck,
        bus.client(3) as other,
    ):
        await join(stuck)
        # Fill its socket with something else, so that what it is handed cannot be sent.
        await stuck.subscribe("/noise", number=2)
        noise = [publisher.batch("/noise", [bytes(1 << 20)], LIVE) for _ in range(16)]
        await publisher.send(*noise)
        await publisher.barrier()
        (session,) = [each for each in bus.node.sessions.values() if each.outgoing.blocked]
        await publish(publisher, 100, flags)
        await join(other)
        assert await got(bus, other) == []
        stuck.stream.close()
        await bus.settled(lambda: session.client_no not in bus.node.sessions)
        assert await got(bus, other) == payloads(100)


async def test_a_member_that_unsubscribes_leaves_the_rest_to_the_others(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as one,
        bus.client(3) as two,
    ):
        await join(one)
        await join(two)
        await publish(publisher, 50)
        worked_off = await bus.all_sent(one)
        before = payloads_of(worked_off) + await got(bus, two)
        await one.send(Credit(1, credit_for(worked_off)), Unsubscribe(1))
        await one.barrier()
        await publish(publisher, 50, first=50)
        assert await got(bus, one) == []
        assert Counter(before + await got(bus, two)) == Counter(payloads(100))
        await two.send(Unsubscribe(1))
        await two.barrier()
        assert bus.node.subscriptions.groups == []
        assert len(bus.node.router) == 0
        await publish(publisher, 5, LIVE)


@pytest.mark.parametrize("start", ["earliest", 0])
async def test_a_group_begins_where_its_first_member_says(tmp_path: Path, start: str | int) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await publish(publisher, 20)
        await join(member, start=start)
        assert [payload for _, payload in await member.messages(20)] == payloads(20)


async def test_a_group_begins_behind_a_position_or_else_now(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await publish(publisher, 20)
        position = {bus.broker_id: {"/jobs": 15}}
        await member.subscribe("/jobs", None, position, number=1, queue="behind")
        assert [payload for _, payload in await member.messages(5)] == payloads(5, 15)
        await member.subscribe("/jobs", None, {}, number=2, queue="now")
        await publish(publisher, 1, first=20)
        assert await got(bus, member, number=2) == [b"20"]


async def test_members_with_other_patterns_are_groups_of_their_own(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await join(member, "/jobs", number=1)
        await join(member, "/*", number=2)
        await publish(publisher, 10)
        events = await member.until(lambda e: sum(isinstance(x, Delivered) for x in e) == 20)
        shares = Counter(e.chunk.subscription for e in events if isinstance(e, Delivered))
        assert shares == {1: 10, 2: 10}


async def test_no_log_of_a_group_starves(tmp_path: Path) -> None:
    """One log that always has more must not keep the others from their turn."""
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await join(member, "/+", credit_bytes=0)
        big = [publisher.batch("/big", [bytes(1000)] * 50) for _ in range(100)]  # 5 MB
        await publisher.send(*big, publisher.batch("/small", [b"me too"]))
        await publisher.barrier()
        await bus.committed()
        received: list[str] = []
        while "/small" not in received:
            await member.credit(60_000)
            batch = await member.until(lambda e: bool(e) and isinstance(e[-1], Delivered))
            received += [e.topic for e in batch if isinstance(e, Delivered)]
        assert len(received) < 50


async def test_a_hole_is_reported_to_one_member(tmp_path: Path) -> None:
    async with real_bus(tmp_path, segment_bytes_max=4000) as bus, bus.client(1) as publisher:
        for first in range(0, 100, 5):
            await publish(publisher, 5, first=first)
        bus.node.store.expire(RetentionRules(1e9, None, 5000))
        log = bus.node.store.get(LogId(bus.broker_id, Topic("/jobs")))
        assert log is not None
        assert log.first_no > 10
        async with bus.client(2) as member:
            position = {bus.broker_id: {"/jobs": 2}}
            await member.subscribe("/jobs", None, position, queue="workers")
            gap = await member.expect(Gap)
            assert (gap.first_no, gap.last_no) == (3, log.first_no - 1)
            found = await member.messages(101 - log.first_no)
            assert [number for number, _ in found] == list(range(log.first_no, 101))


@pytest.mark.parametrize("seed", range(10))
def test_members_that_come_and_go_are_done_with_each_batch_exactly_once(seed: int) -> None:
    """What its member was not done with when it went is got by another."""
    machine = SimulatedMachine(seed)

    async def main() -> None:
        found: list[bytes] = []
        async with machine.bus() as bus, bus.client(1) as publisher, bus.client(99) as steady:
            await join(steady)

            async def come_and_go(number: int) -> None:
                for _ in range(3):
                    async with bus.client(number) as member:
                        await join(member)
                        worked_off: list[Event] = []
                        with trio.move_on_after(machine.entropy.between(0.001, 0.01)):
                            while True:
                                worked_off.append(await member.receive())
                        found.extend(payloads_of(worked_off))
                        await member.send(Credit(1, credit_for(worked_off)))
                        if machine.entropy.chance(0.5):
                            await member.send(Unsubscribe(1))
                        await member.barrier()

            async with trio.open_nursery() as nursery:
                for number in range(10, 13):
                    nursery.start_soon(come_and_go, number)
                for first in range(0, 200, 10):
                    await publish(publisher, 10, first=first)
            await bus.committed()
            found.extend(await got(bus, steady))
        assert Counter(found) == Counter(payloads(200))

    machine.run(main)


@pytest.mark.parametrize("unfinished", [1, 7, 20])
async def test_what_a_member_was_not_done_with_when_it_died_goes_to_the_others(
    tmp_path: Path, unfinished: int
) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2, "doomed") as doomed,
        bus.client(3) as other,
    ):
        await join(doomed)
        await publish(publisher, 10)
        await publish(publisher, 5, LIVE, first=100)
        await publish(publisher, 10, first=10)
        events = await bus.all_sent(doomed)
        came = [event for event in events if isinstance(event, Delivered)]
        assert len(came) == 25
        logged = [event for event in came if event.header.first_no]
        done = came[: came.index(logged[-unfinished])]
        await doomed.send(Credit(1, credit_for(done)))
        await doomed.barrier()
        await join(other)
        (session,) = [each for each in bus.node.sessions.values() if each.name == "doomed"]
        doomed.stream.close()
        await bus.settled(lambda: session.client_no not in bus.node.sessions)
        assert await got(bus, other) == payloads(unfinished, 20 - unfinished)


async def test_a_member_that_finishes_nothing_gets_no_more_than_it_may_hold(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as idle,
        bus.client(3) as busy,
    ):
        await join(idle)
        batches = [publisher.batch("/jobs", [bytes(50_000)]) for _ in range(60)]
        await publisher.send(*batches)
        await publisher.barrier()
        await bus.committed()
        held = credit_for(await bus.all_sent(idle))
        assert UNFINISHED_BYTES_MAX <= held < UNFINISHED_BYTES_MAX + PIECE_BYTES + 60_000
        await join(busy)
        assert credit_for(await bus.all_sent(busy)) > 60_000, "the rest is not kept from others"


async def test_a_long_backlog_goes_on_without_new_credit_or_messages(tmp_path: Path) -> None:
    """It is handed out a piece at a time: who is done with its piece must get the next."""
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as publisher,
        bus.client(2) as one,
        bus.client(3) as two,
    ):
        for _ in range(20):
            await publisher.send(*(publisher.batch("/jobs", [bytes(10_000)]) for _ in range(20)))
            await publisher.barrier()
        await bus.committed()
        await join(one, start="earliest")
        await join(two)
        shares: Counter[str] = Counter()

        async def read(name: str, member: RawClient) -> None:
            while shares.total() < 400:
                event = await member.receive()
                if isinstance(event, Delivered):
                    shares[name] += 1
                    await member.send(Credit(1, credit_for([event])))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "one", one)
            nursery.start_soon(read, "two", two)
        assert shares.total() == 400
        assert min(shares.values()) > 20


class Steps(trio.abc.Instrument):
    """Counts what the node does within one step of a task, and has the most."""

    def __init__(self) -> None:
        self.most = self.now = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.now = 0

    def count(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)


async def test_a_member_that_comes_to_many_small_batches_does_not_keep_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3000
    steps = Steps()
    hand_over = Subscription.hand_over

    def counted(member: Subscription, handed: Handed) -> None:
        steps.count()
        hand_over(member, handed)

    monkeypatch.setattr(Subscription, "hand_over", counted)
    async with real_bus(tmp_path) as bus, bus.client(1) as publisher, bus.client(2) as member:
        await join(member, credit_bytes=0)
        await publish(publisher, count)
        trio.lowlevel.add_instrument(steps)
        await member.credit(AMPLE)
        assert [payload for _, payload in await member.messages(count)] == payloads(count)
        trio.lowlevel.remove_instrument(steps)
    assert 0 < steps.most <= PIECES_BEFORE_YIELD * HANDED_OF_A_PIECE + 2 * HANDED_MAX
