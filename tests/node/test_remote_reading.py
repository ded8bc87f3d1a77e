"""Reading other nodes' logs: every number from its place on, in order, whoever holds the log.

The other nodes are a model: copies of logs behind links on which nothing overtakes. All else is
real: the subscription, the connection's outgoing half, and a simulated stream to its client.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from unittest import mock

import pytest
import trio
import trio.testing

from busnode.node import subscription as subscription_module
from busnode.node.handed import Handed
from busnode.node.outgoing import QUEUED_BYTES_MAX, Outgoing
from busnode.node.remote_reading import FETCHES_MAX, PLACINGS_MAX, RemoteReading, Start
from busnode.node.subscription import Subscription
from busnode.replication.remote_cursor import PIECE_BYTES
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate
from busnode.wire.control import Chunk, Gap
from busnode.wire.frames import read_header
from busnode.wire.ids import BrokerId, ClientNo, LogId, MsgNo, Pattern, Topic
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import DELIVERED_KINDS
from busnode.world.network import Address

from ..segments.samples import record

ORIGIN = BrokerId(bytes([7]) * 16)
LOGS = [LogId(ORIGIN, Topic(f"/log/{number}")) for number in range(7)]
BEGAN_US = 1_000_000
"""When the subscription began: what was written before is older."""

AMPLE = 1 << 30


# The other nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    first_no: int
    last_no: int
    utc_us: int
    data: bytes


@dataclass
class TrueLog:
    """A log as its origin has it."""

    log_id: LogId
    batches: list[Batch] = field(default_factory=list[Batch])
    first_no: int = 1
    """What lies below has expired, everywhere."""

    @property
    def end_no(self) -> int:
        return self.batches[-1].last_no if self.batches else 0

    def append(self, count: int, utc_us: int) -> Batch:
        first_no = self.end_no + 1
        payloads = [b"%d" % number for number in range(first_no, first_no + count)]
        data = record(self.log_id, first_no, payloads)
        batch = Batch(first_no, first_no + count - 1, utc_us, data)
        self.batches.append(batch)
        return batch


Event = Callable[[], None]


@dataclass(eq=False)
class Copy:
    """A node that holds logs, and the link to it."""

    held: dict[LogId, int] = field(default_factory=dict[LogId, int])
    """How far each log reaches here."""
    told: dict[LogId, int] = field(default_factory=dict[LogId, int])
    """The same as the reader's home knows it."""
    up: bool = False
    asked: deque[tuple[LogId, int, int | None, int]] = field(
        default_factory=deque[tuple[LogId, int, int | None, int]]
    )
    coming: deque[Event] = field(default_factory=deque[Event])


class Nodes:
    """All other nodes; the first one has written the logs and tells what it commits."""

    def __init__(self, copies: int) -> None:
        self.logs = {log_id: TrueLog(log_id) for log_id in LOGS}
        self.copies = [Copy() for _ in range(copies)]
        self.fetches: dict[LogId, tuple[Copy, int]] = {}
        self.reading: RemoteReading
        self.now_us = 0

    # As a Fetcher

    def reach(self, log_id: LogId) -> int | None:
        ends = [copy.told[log_id] for copy in self.copies if copy.up and log_id in copy.told]
        return max(ends, default=None)

    def fetch(
        self,
        reading: RemoteReading,
        log_id: LogId,
        after_no: int,
        since_us: int | None,
        length: int,
    ) -> bool:
        assert reading is self.reading
        assert not reading.closed
        assert log_id not in self.fetches, f"{log_id} is fetched twice at once"
        assert bool(length) == (since_us is None)
        holders = [copy for copy in self.copies if copy.up and log_id in copy.told]
        if not holders:
            return False
        holder = max(holders, key=lambda copy: (copy.told[log_id], copy is self.copies[0]))
        self.fetches[log_id] = holder, length
        pieces = sum(bool(length) for _, length in self.fetches.values())
        assert pieces <= FETCHES_MAX
        assert len(self.fetches) - pieces <= PLACINGS_MAX
        holder.asked.append((log_id, after_no, since_us, length))
        return True

    # What happens

    def append(self, log_id: LogId, count: int) -> None:
        origin, log = self.copies[0], self.logs[log_id]
        batch = log.append(count, self.now_us)
        origin.held[log_id] = batch.last_no
        if origin.up:
            self.feed(origin, Handed(log_id, batch.first_no, batch.last_no, batch.data, True))

    def feed(self, origin: Copy, handed: Handed) -> None:
        def arrives() -> None:
            log_id = handed.log_id
            origin.told[log_id] = max(origin.told.get(log_id, 0), handed.last_no)
            self.reading.arrived(handed)

        origin.coming.append(arrives)

    def mirror(self, copy: Copy, log_id: LogId, batches: int) -> None:
        """A mirror gets some more of a log. It tells nobody."""
        ends = [each.last_no for each in self.logs[log_id].batches]
        behind = [end for end in ends if end > copy.held.get(log_id, 0)]
        if behind:
            copy.held[log_id] = behind[min(batches, len(behind)) - 1]

    def link(self, copy: Copy) -> None:
        """A link comes up: the node tells what it has."""
        if copy.up:
            return
        copy.up = True
        for log_id, end_no in copy.held.items():
            copy.coming.append(self.extent(copy, log_id, end_no))

    def extent(self, copy: Copy, log_id: LogId, end_no: int) -> Event:
        first_no = self.logs[log_id].first_no

        def told() -> None:
            copy.told[log_id] = max(copy.told.get(log_id, 0), end_no)
            self.reading.reaches(log_id, first_no, end_no)

        return told

    def lose(self, copy: Copy) -> None:
        copy.up = False
        copy.told.clear()
        copy.asked.clear()
        copy.coming.clear()
        lost = [log_id for log_id, (holder, _) in self.fetches.items() if holder is copy]
        for log_id in lost:
            del self.fetches[log_id]
        for log_id in lost:
            self.reading.lost(log_id)

    def deliver(self, copy: Copy) -> None:
        """The next that has come over a link."""
        if copy.coming:
            copy.coming.popleft()()
            self.reading.subscription.pump()

    def serve(self, copy: Copy, batches: int, run: int) -> None:
        """Answer the next request as a node does, with so many batches, a few in a run."""
        if not copy.asked:
            return
        log_id, after_no, since_us, length = copy.asked.popleft()
        log, reading = self.logs[log_id], self.reading
        there = [each for each in log.batches if each.last_no <= copy.held.get(log_id, 0)]
        end_no = there[-1].last_no if there else 0

        def answer(tell: Event) -> None:
            def told() -> None:
                del self.fetches[log_id]
                tell()

            copy.coming.append(told)

        if log_id not in copy.held:

            def lacks() -> None:
                copy.told.pop(log_id, None)
                reading.lacked(log_id, after_no + 1, 0, "unknown")

            answer(lacks)
        elif not length:
            assert since_us is not None
            new = [each for each in there if each.utc_us >= since_us]
            before = new[0].first_no - 1 if new else end_no
            answer(lambda: reading.placed(log_id, max(before, log.first_no - 1)))
        elif after_no + 1 < log.first_no:
            answer(lambda: reading.lacked(log_id, after_no + 1, log.first_no - 1, "expired"))
        else:
            found = [each for each in there if each.last_no > after_no][:batches]
            for at in range(0, len(found), run):
                part = found[at : at + run]
                data = b"".join(each.data for each in part)
                handed = Handed(log_id, part[0].first_no, part[-1].last_no, data, True)
                copy.coming.append(lambda handed=handed: reading.fetched(handed))  # type: ignore[misc]
            is_last = not found or found[-1].last_no >= end_no
            answer(lambda: reading.ended(log_id, end_no if is_last else None))


# The client ---------------------------------------------------------------------------------------


class Client:
    """Reads what its home sends, and judges it."""

    def __init__(self, buffer_bytes: int = 64 * 1024, credit_bytes: int = AMPLE) -> None:
        network = SimNetwork(1, buffer_bytes=buffer_bytes)
        near, self._far = network.connect(Address("node", 1), Address("client", 2))
        self.outgoing = Outgoing(near)
        self.subscription = Subscription(
            3, ClientNo(9), Pattern("/log/*"), self.outgoing, credit_bytes
        )
        self.next_no: dict[LogId, int] = {}
        self.gaps: dict[LogId, list[tuple[int, int]]] = {}
        self.late_from_its_beginning: Callable[[LogId], bool] = lambda _: True
        self._reader = FrameReader(DELIVERED_KINDS)

    def read(self) -> bool:
        count = self._far.receive_into(self._reader.space())
        if not count:
            return False
        self._reader.received(count)
        for event in self._reader.events():
            if isinstance(event, Runs):
                assert event.chunk is not None
                log_id = LogId(event.chunk.broker_id, Topic(event.chunk.topic))
                for run in event.runs:
                    for at, *_ in run.batches:
                        header = read_header(self._reader.view, at)
                        self._got(log_id, header.first_no, header.last_no)
            elif isinstance(event, Gap):
                log_id = LogId(event.broker_id, Topic(event.topic))
                assert event.first_no == self._expected(log_id), "a gap beside its place"
                self.next_no[log_id] = event.last_no + 1
                self.gaps.setdefault(log_id, []).append((event.first_no, event.last_no))
            elif isinstance(event, Chunk):
                if not event.length:
                    log_id = LogId(event.broker_id, Topic(event.topic))
                    assert log_id not in self.next_no, "a place in a log that it knows"
                    self.next_no[log_id] = event.last_no + 1
            else:
                raise AssertionError(event)
        return True

    def _got(self, log_id: LogId, first_no: int, last_no: int) -> None:
        expected = self._expected(log_id)
        assert first_no <= expected, f"{log_id}: {first_no} where {expected} is next: a hole"
        assert expected <= last_no, f"{log_id}: {first_no} to {last_no} again; {expected} is next"
        self.next_no[log_id] = last_no + 1

    def _expected(self, log_id: LogId) -> int:
        if log_id not in self.next_no:
            assert self.late_from_its_beginning(log_id), f"no word of where {log_id} begins"
        return self.next_no.get(log_id, 1)

    def open(self, position: dict[LogId, MsgNo]) -> None:
        """It is answered with its position: from here on messages come."""
        self.next_no = {log_id: msg_no + 1 for log_id, msg_no in position.items()}
        self.subscription.open()
        self.subscription.pump()


def begin(
    nodes: Nodes, client: Client, start: Start, given: dict[LogId, MsgNo] | None = None
) -> RemoteReading:
    """A subscription begins: all logs of which is known are taken up."""
    reading = nodes.reading = RemoteReading(
        client.subscription, nodes, start, given or {}, BEGAN_US
    )
    for copy in nodes.copies:
        while copy.coming:
            copy.coming.popleft()()
    for log_id, log in nodes.logs.items():
        ends = [copy.told[log_id] for copy in nodes.copies if log_id in copy.told]
        if ends:
            reading.take_up(log_id, log.first_no, max(ends))
    return reading


# The model ----------------------------------------------------------------------------------------

STEPS = {
    "append": 8, "serve": 8, "deliver": 14, "read": 6, "credit": 3, "wait": 3,
    "mirror": 6, "link": 6, "lose": 3, "expire": 1,
}  # fmt: skip
"""What happens, and how often."""

NUMBERS = (0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6)
"""Some logs are busier than others, and there are more than are fetched from at once."""


@dataclass
class Story:
    """What there was, how the subscription began, and what happened then."""

    start: Start
    before: list[tuple[int, int]]
    given: list[int]
    copies: int
    steps: list[tuple[str, int, int]]
    credit_bytes: int
    buffer_bytes: int
    heals: bool
    """Whether all nodes are there at the end."""

    @staticmethod
    def draw(random: Random) -> "Story":
        def step() -> tuple[str, int, int]:
            (what,) = random.choices(list(STEPS), list(STEPS.values()))
            return what, random.choice(NUMBERS), random.randint(1, 5)

        opens_at = random.choice([0, 0, 5, 50])
        steps = [step() for _ in range(200)]
        return Story(
            random.choice([None, None, "latest", "earliest", 1000 * random.randint(1, 30)]),
            [(random.choice(NUMBERS), random.randint(1, 4)) for _ in range(random.randint(0, 30))],
            [random.randint(0, 4) for _ in range(random.randint(0, 3))],
            random.randint(1, 3),
            [*steps[:opens_at], ("open", 0, 0), *steps[opens_at:]],
            random.choice([0, 300, AMPLE]),
            random.choice([100, 300, 64 * 1024]),
            random.random() < 0.5,
        )


async def perform(story: Story) -> None:
    nodes = Nodes(story.copies)
    client = Client(story.buffer_bytes, story.credit_bytes)
    nodes.reading = RemoteReading(client.subscription, nodes, "latest", {}, 0)  # hears nothing
    for number, count in story.before:
        nodes.now_us += 1000
        nodes.append(LOGS[number], count)
    for copy in nodes.copies[1:]:
        for log_id in nodes.copies[0].held:
            nodes.mirror(copy, log_id, 2)
    nodes.link(nodes.copies[0])
    ends = {log_id: log.end_no for log_id, log in nodes.logs.items()}
    given_no = {
        LOGS[number]: MsgNo(min(msg_no, ends[LOGS[number]]))
        for number, msg_no in enumerate(story.given)
    }
    given_no = given_no if story.start is None else {}
    reading = begin(nodes, client, story.start, given_no)
    nodes.now_us = BEGAN_US
    if isinstance(story.start, int) or story.start == "latest":
        # What came up late has a place before anything of it comes, unless it has just begun.
        client.late_from_its_beginning = lambda log_id: not ends[log_id]

    def open_up() -> None:
        if not client.subscription.opened:
            client.open({**given_no, **dict(reading.position())})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.outgoing.run)
        nursery.start_soon(reading.begin)
        await trio.testing.wait_all_tasks_blocked()
        for step in story.steps:
            await take(step, nodes, client, open_up)
            assert client.outgoing.queued_bytes >= 0
        open_up()
        client.subscription.add_credit(AMPLE)
        for copy in nodes.copies if story.heals else ():
            nodes.link(copy)
        busy = True
        while busy:
            busy = False
            for copy in nodes.copies:
                while copy.asked or copy.coming:
                    busy = True
                    nodes.deliver(copy)
                    nodes.serve(copy, 100, 100)
            client.subscription.pump()
            await trio.sleep(1)
            while client.read():
                busy = True
                await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert nodes.fetches == {}
    assert client.outgoing.queued_bytes == 0
    for log_id, log in nodes.logs.items():
        told = [copy.told.get(log_id, 0) for copy in nodes.copies if copy.up]
        if any(told):
            complete = client.next_no.get(log_id, 1) > max(told)
            assert complete, f"{log_id}: {client.next_no.get(log_id)} is next, {told} is there"
        if story.heals:
            assert max(told) == log.end_no
    if story.heals:
        assert reading.behind == 0


async def take(step: tuple[str, int, int], nodes: Nodes, client: Client, open_up: Event) -> None:
    match step:
        case "append", number, count:
            nodes.now_us += 1000
            nodes.append(LOGS[number], count)
        case "serve", number, count:
            nodes.serve(nodes.copies[number % len(nodes.copies)], count, 1 + count % 2)
        case "deliver", number, count:
            for _ in range(count):
                nodes.deliver(nodes.copies[number % len(nodes.copies)])
        case "mirror", number, count:
            for copy in nodes.copies[1:]:
                nodes.mirror(copy, LOGS[number], count)
        case "link", number, _:
            nodes.link(nodes.copies[number % len(nodes.copies)])
        case "lose", number, _:
            nodes.lose(nodes.copies[number % len(nodes.copies)])
        case "expire", number, count:
            log = nodes.logs[LOGS[number]]
            starts = [each.first_no for each in log.batches]
            log.first_no = max([log.first_no, *starts[:count]])
        case "read", _, _:
            client.read()
        case "credit", _, count:
            client.subscription.add_credit(count * 100)
            client.subscription.pump()
        case "open", _, _:
            open_up()
        case _:
            await trio.sleep(0.01)


@pytest.mark.parametrize("seed", range(120))
def test_every_number_comes_from_its_place_on_in_order_whoever_is_lost(seed: int) -> None:
    story = Story.draw(Random(seed))
    # Limits so low that they are met: otherwise there is always room.
    with (
        mock.patch.object(subscription_module, "LIVE_BYTES_MAX", 700),
        mock.patch.object(subscription_module, "PIECE_BYTES", 400),
    ):
        simulate(seed, lambda: perform(story))


# One by one ---------------------------------------------------------------------------------------


class Scene:
    """A subscription to logs that one other node holds."""

    def __init__(
        self,
        nursery: trio.Nursery,
        logs: dict[LogId, int],
        start: Start = None,
        given: dict[LogId, MsgNo] | None = None,
        credit_bytes: int = AMPLE,
        buffer_bytes: int = 64 * 1024,
    ) -> None:
        self.nodes = Nodes(1)
        self.origin = self.nodes.copies[0]
        self.nodes.logs |= {log_id: TrueLog(log_id) for log_id in logs}
        for log_id, count in logs.items():
            self.nodes.append(log_id, count)
        self.client = Client(buffer_bytes, credit_bytes)
        self.subscription = self.client.subscription
        self.nodes.reading = RemoteReading(self.subscription, self.nodes, "latest", {}, 0)
        self.nodes.link(self.origin)
        self.given = given or {}
        self.reading = begin(self.nodes, self.client, start, self.given)
        nursery.start_soon(self.reading.begin)

    def open(self) -> None:
        self.client.open({**self.given, **dict(self.reading.position())})

    def answer(self, requests: int = 1000, batches: int = 100) -> None:
        """Answer what was asked for, and what is asked for then."""
        while requests and (self.origin.asked or self.origin.coming):
            requests -= bool(self.origin.asked)
            self.nodes.serve(self.origin, batches, 100)
            while self.origin.coming:
                self.nodes.deliver(self.origin)

    async def read(self) -> dict[LogId, int]:
        """The next number in each log when all was read that was sent."""
        await trio.sleep(1)
        while self.client.read():
            await trio.sleep(1)
        return self.client.next_no


def play(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def with_nursery() -> None:
        async with trio.open_nursery() as nursery:
            await main(nursery)
            nursery.cancel_scope.cancel()

    simulate(1, with_nursery)


def many_logs(count: int) -> dict[LogId, int]:
    return {LogId(ORIGIN, Topic(f"/log/many/{number}")): 1 for number in range(count)}


def test_what_comes_before_the_client_knows_its_position_is_not_counted_as_received() -> None:
    """One log has its place and goes on while another one's is still looked for."""

    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {LOGS[0]: 2, LOGS[1]: 2}, start=10**9)
        await trio.testing.wait_all_tasks_blocked()
        scene.answer(requests=1)
        scene.nodes.append(LOGS[0], 3)
        scene.nodes.deliver(scene.origin)
        assert dict(scene.reading.position()) == {LOGS[0]: 2}
        scene.open()
        scene.answer()
        assert await scene.read() == {LOGS[0]: 6, LOGS[1]: 3}

    play(main)


def test_a_place_that_is_found_while_the_client_is_answered_is_told_behind_the_answer() -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {LOGS[0]: 3}, start=10**9)
        await trio.testing.wait_all_tasks_blocked()
        position = dict(scene.reading.position())
        assert position == {}
        scene.answer()
        assert await scene.read() == {}
        scene.client.open(position)
        assert await scene.read() == {LOGS[0]: 4}

    play(main)


def test_a_gap_does_not_overtake_what_lies_before_it() -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {LOGS[0]: 100}, buffer_bytes=300)
        for count in (1, 4, 1):
            scene.nodes.append(LOGS[0], count)
        await trio.testing.wait_all_tasks_blocked()
        scene.open()
        scene.answer(requests=1, batches=1)  # more than the socket takes
        scene.answer(requests=1, batches=1)
        scene.nodes.logs[LOGS[0]].first_no = 106
        scene.answer()
        assert scene.subscription.waiting
        nursery.start_soon(scene.client.outgoing.run)
        while scene.origin.asked or await scene.read() != {LOGS[0]: 107}:
            scene.answer()
        assert scene.client.gaps == {LOGS[0]: [(102, 105)]}

    play(main)


def test_places_are_looked_for_in_many_logs_at_once_but_not_in_all() -> None:
    async def main(nursery: trio.Nursery) -> None:
        logs = many_logs(3 * PLACINGS_MAX)
        scene = Scene(nursery, logs, start=0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.nodes.fetches) == PLACINGS_MAX
        assert scene.client.outgoing.queued_bytes == 0, "a place takes no room"
        scene.answer()
        scene.open()
        assert len(scene.nodes.fetches) == FETCHES_MAX
        scene.answer()
        assert await scene.read() == dict.fromkeys(logs, 2)
        assert scene.client.outgoing.queued_bytes == 0

    play(main)


def test_logs_take_turns_when_there_is_more_to_fetch_than_may_be_fetched_at_once() -> None:
    async def main(nursery: trio.Nursery) -> None:
        logs = many_logs(2 * FETCHES_MAX)
        scene = Scene(nursery, logs)
        await trio.testing.wait_all_tasks_blocked()
        for log_id in logs:
            scene.nodes.append(log_id, 1)
        scene.open()
        first = list(scene.nodes.fetches)
        assert first == list(logs)[:FETCHES_MAX]
        for _ in range(FETCHES_MAX):
            scene.nodes.serve(scene.origin, 1, 1)  # each has more
        while scene.origin.coming:
            scene.nodes.deliver(scene.origin)
        assert list(scene.nodes.fetches) == list(logs)[FETCHES_MAX:]

    play(main)


def test_room_that_other_subscriptions_have_taken_is_used_when_it_is_free_again() -> None:
    async def main(nursery: trio.Nursery) -> None:
        logs = many_logs(1)
        scene = Scene(nursery, logs)
        await trio.testing.wait_all_tasks_blocked()
        scene.client.outgoing.queue(QUEUED_BYTES_MAX)
        scene.open()
        assert not scene.nodes.fetches
        scene.client.outgoing.queue(-QUEUED_BYTES_MAX)
        assert list(scene.nodes.fetches) == list(logs)

    play(main)


def test_what_was_reserved_is_given_back_when_the_subscription_ends() -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, many_logs(10))
        await trio.testing.wait_all_tasks_blocked()
        scene.open()
        assert scene.client.outgoing.queued_bytes == FETCHES_MAX * PIECE_BYTES
        scene.reading.close()
        scene.subscription.give_back()
        assert scene.client.outgoing.queued_bytes == 0
        assert scene.reading.closed

    play(main)


def test_nothing_is_fetched_before_the_client_knows_its_position_nor_without_credit() -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {LOGS[0]: 5}, credit_bytes=0)
        await trio.testing.wait_all_tasks_blocked()
        assert scene.nodes.fetches == {}
        scene.open()
        assert scene.nodes.fetches == {}
        scene.subscription.add_credit(1)
        assert list(scene.nodes.fetches) == [LOGS[0]]

    play(main)


def test_a_log_that_nobody_holds_any_more_is_fetched_from_who_turns_up_with_it() -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {LOGS[0]: 5})
        await trio.testing.wait_all_tasks_blocked()
        scene.nodes.lose(scene.origin)
        scene.open()
        assert scene.nodes.fetches == {}
        scene.nodes.link(scene.origin)
        scene.answer()
        assert await scene.read() == {LOGS[0]: 6}

    play(main)


@pytest.mark.parametrize("comes_by_itself", [True, False])
def test_the_client_is_told_where_a_log_begins_that_came_up_late_and_whose_first_are_gone(
    comes_by_itself: bool,
) -> None:
    async def main(nursery: trio.Nursery) -> None:
        scene = Scene(nursery, {}, start="earliest")
        await trio.testing.wait_all_tasks_blocked()
        scene.open()
        scene.nodes.append(LOGS[0], 5)
        scene.nodes.append(LOGS[0], 1)
        scene.nodes.logs[LOGS[0]].first_no = 6
        if comes_by_itself:
            scene.origin.coming.popleft()
        else:
            scene.origin.coming.clear()
            scene.origin.coming.append(scene.nodes.extent(scene.origin, LOGS[0], 6))
        scene.nodes.deliver(scene.origin)
        scene.answer()
        assert await scene.read() == {LOGS[0]: 7}
        assert scene.client.gaps == {}

    play(main)
