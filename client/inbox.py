"""What has come for one subscription and was not worked off yet, and how far both have got.

Pure: runs and gaps go in, deliveries come out, and it says what credit to return. It has two
positions. *Received* is how far the logs have come in; from there a subscription goes on after a
reconnect, because what is in the inbox stays there. *Done* is how far the consumer has worked them
off; that is what is kept in a cursor store.
"""

from collections import deque
from typing import Final

from xxhash import xxh3_64_intdigest

from busnode.client.deduplication import KEPT_MASKS_MAX, Deduplication, Seen
from busnode.client.gaps import Gap
from busnode.client.messages import MessageBatch
from busnode.client.positions import Position
from busnode.wire.batches import decode_columns
from busnode.wire.control import Chunk
from busnode.wire.errors import BadFrame, BadHash, ProtocolError
from busnode.wire.frames import (
    HASHED_HEADER_AT,
    HEADER,
    HEADER_BYTES,
    PRODUCER,
    PRODUCER_AT,
    Flags,
    broker_seed,
)
from busnode.wire.ids import BrokerId, MsgNo, Topic
from busnode.wire.limits import FRAME_BYTES_MAX, MIB
from busnode.wire.runs import Run

CREDIT_BYTES: Final = 8 * MIB
"""What a node may send ahead of the consumer: a few milliseconds of its work at full speed, and
one batch of the largest size."""

NOTICES_MAX: Final = 65_536
"""Gaps that wait in one inbox: they cost no credit, so they have a bound of their own."""

Log = tuple[BrokerId, Topic]


class Delivery:
    """One batch in the inbox, still encoded, or the place of one that is passed over."""

    __slots__ = ("at", "count", "first_no", "length", "log", "raw", "skip", "topic", "utc_us")

    def __init__(
        self,
        log: Log | None,
        topic: Topic,
        first_no: int,
        count: int,
        skip: int,
        utc_us: int,
        raw: bytes,
        at: int,
        length: int,
    ) -> None:
        self.log = log
        """None when it is not persistent."""
        self.topic = topic
        self.first_no = first_no
        self.count = count
        self.skip = skip
        """How many of its first messages were had before; all of them in a repeat."""
        self.utc_us = utc_us
        self.raw = raw
        self.at = at
        self.length = length

    def open(self) -> MessageBatch:
        """Its messages. Raises BadBatch for columns that make no sense."""
        body_at = self.at + HEADER_BYTES + len(self.topic.encode())
        body = memoryview(self.raw)[body_at : self.at + self.length]
        columns = decode_columns(body, self.count)
        if self.log is None:
            return MessageBatch(self.topic, None, None, self.utc_us, columns)
        first_no = MsgNo(self.first_no + self.skip)
        return MessageBatch(self.topic, self.log[0], first_no, self.utc_us, columns, self.skip)


class Hole(Exception):
    """A number that cannot come next: whoever owns the subscription asks for what is missing."""


class Inbox:
    """The receiving side of one subscription."""

    def __init__(self, credit_bytes: int, *, cursors: bool = True, whole: bool = False) -> None:
        """Without `cursors` (a queue group) numbers have holes by nature: others got the rest.
        With `whole` nothing of a log is passed over: neither repeats nor what is for others."""
        self.credit_bytes = credit_bytes
        self.held_bytes = 0
        """Of the credit: what is in the inbox or with the consumer."""
        self.received = Position()
        self.done = Position()
        self.moved: set[Log] = set()
        """Logs whose cursors have moved since somebody last looked and cleared it."""
        self.entries: deque[Delivery | Gap] = deque()
        self.dropped = 0
        """Messages that the node had to drop, and that were not reported yet."""
        self.repeats = 0
        self.received_messages = 0
        self._cursors = cursors
        self._whole = whole
        self._returnable_bytes = 0
        self._taken_bytes = 0
        """Of what is just coming in."""
        self._withheld = False
        """Whether what was held when the subscription began anew is not done yet."""
        self._notices = 0
        self._seen = Deduplication()
        """Of what has come."""
        self._finished_seen = Deduplication(KEPT_MASKS_MAX)
        """Of what is done: what has come and is not done would be lost, were it kept as seen."""
        self._topics: dict[bytes, Topic] = {}
        self._seeds: dict[BrokerId, int] = {}

    # What comes in --------------------------------------------------------------------------------

    def begin(self, position: Position, *, again: bool) -> None:
        """The node's answer to a subscription: the complete position in force.

        `again`: it was asked to go on from `received`. It may only be further on where another
        consumer moved a durable position meanwhile.
        """
        if not again:
            self.received = Position(position)
            self.done = Position(position)
            self.moved.update(position)
            return
        for log, msg_no in position.items():
            if msg_no > self.received.get(log, 0):
                self.received[log] = msg_no

    def take(self, view: memoryview, run: Run, chunk: Chunk) -> None:
        """Batches have come. Raises Hole, or a ProtocolError for what cannot be."""
        size = run.end - run.start
        self.held_bytes += size
        if self.held_bytes > self.credit_bytes + FRAME_BYTES_MAX:
            raise BadFrame(
                f"{self.held_bytes} bytes for one subscription; its credit is {self.credit_bytes}"
            )
        raw = bytes(view[run.start : run.end])  # the reader's buffer is about to be filled again
        if not chunk.first_no:
            self._take_live(raw, run)
            return
        self._taken_bytes = 0
        try:
            self._take_log(raw, run, chunk)
        except (Hole, ProtocolError):
            self.held_bytes -= size - self._taken_bytes  # what was not taken comes again
            raise

    def _take_live(self, raw: bytes, run: Run) -> None:
        topic = self._topic(run.topic)
        for batch_at, count, _, _, _ in run.batches:
            at = batch_at - run.start
            header = HEADER.unpack_from(raw, at)
            self.received_messages += count
            delivery = Delivery(None, topic, 0, count, 0, header[9], raw, at, header[0])
            self.entries.append(delivery)

    def _take_log(self, raw: bytes, run: Run, chunk: Chunk) -> None:
        broker_id = chunk.broker_id
        topic = self._topic(run.topic)
        if topic != chunk.topic:
            raise BadFrame(f"batch of {topic} in a chunk of {chunk.topic}")
        log = (broker_id, topic)
        seed = self._seed(broker_id)
        view = memoryview(raw)
        # A log is sent as it lies: what is in it for other nodes' clients alone is passed over.
        ours = self._whole or run.flags & (Flags.REMOTE if chunk.remote else Flags.LOCAL)
        for batch_at, count, _, producer_id, producer_seq in run.batches:
            at = batch_at - run.start
            header = HEADER.unpack_from(raw, at)
            length, _, owner, first_no, header_hash, _, _, _, _, utc_us, _, _ = header
            half = view[at + HASHED_HEADER_AT : at + HEADER_BYTES]
            if owner != broker_id or xxh3_64_intdigest(half, first_no ^ seed) != header_hash:
                raise BadHash(f"batch {first_no} of {topic}: its header hash does not fit")
            skip = 0
            if self._cursors:
                cursor = self.received.get(log, 0)
                last_no = first_no + count - 1
                if first_no > cursor + 1:
                    raise Hole(f"{topic} of {broker_id.hex()[:8]}: {first_no} after {cursor}")
                if last_no <= cursor:
                    self.repeats += count
                    self._taken_bytes += length
                    self._finished(length)
                    continue
                self.received[log] = MsgNo(last_no)
                skip = cursor + 1 - first_no
            if not ours:
                skip = count
            elif not self._whole and self._seen.is_repeat(producer_id, producer_seq):
                self.repeats += count - skip
                skip = count
            self.received_messages += count - skip
            self._taken_bytes += length
            self.entries.append(
                Delivery(log, topic, first_no, count, skip, utc_us, raw, at, length)
            )

    def take_place(self, chunk: Chunk) -> None:
        """Where we begin in a log that nobody knew of when the subscription began."""
        log = (chunk.broker_id, Topic(chunk.topic))
        if chunk.first_no and self._cursors and log not in self.received:
            self.received[log] = self.done[log] = MsgNo(chunk.last_no)
            self.moved.add(log)

    def take_gap(self, gap: Gap) -> None:
        """Nobody can serve a range any more. Raises Hole when it leaves one before itself."""
        log = (gap.broker_id, gap.topic)
        if gap.last and self._cursors:
            cursor = self.received.get(log, 0)
            if gap.last <= cursor:
                return
            if gap.first > cursor + 1:
                raise Hole(f"{gap.topic} of {gap.broker_id.hex()[:8]}: gap {gap.first} on {cursor}")
            if gap.first <= cursor:  # a durable position is behind what has come
                gap = Gap(*log, cursor + 1, gap.last, gap.reason)
            self.received[log] = MsgNo(gap.last)
        self._notices += 1
        if self._notices > NOTICES_MAX:
            raise BadFrame(f"{self._notices} gaps that nobody has looked at yet")
        self.entries.append(gap)

    def _topic(self, raw: bytes) -> Topic:
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) >= 4096:
                self._topics.clear()
            try:
                topic = self._topics[raw] = Topic(raw.decode())
            except UnicodeDecodeError as error:
                raise BadFrame(f"topic {raw!r:.60} is not UTF-8") from error
        return topic

    def _seed(self, broker_id: BrokerId) -> int:
        seed = self._seeds.get(broker_id)
        if seed is None:
            if len(self._seeds) >= 4096:
                self._seeds.clear()
            seed = self._seeds[broker_id] = broker_seed(broker_id)
        return seed

    # What goes out --------------------------------------------------------------------------------

    def next_entry(self) -> Delivery | Gap | None:
        """The next batch to hand out, or gap to report. Repeats are passed over here, so that
        their cursors move in turn."""
        while self.entries:
            entry = self.entries.popleft()
            if isinstance(entry, Gap):
                self._notices -= 1
                if entry.last and self._cursors:
                    self._move((entry.broker_id, entry.topic), entry.last)
                return entry
            if entry.skip < entry.count:
                return entry
            self.finish(entry)
        return None

    def finish(self, delivery: Delivery) -> None:
        """The consumer is done with a whole batch."""
        self.advance(delivery, delivery.count - delivery.skip)
        self._finished(delivery.length)
        if delivery.log is not None:
            producer = PRODUCER.unpack_from(delivery.raw, delivery.at + PRODUCER_AT)
            self._finished_seen.is_repeat(*producer)

    def remember(self, seen: Seen) -> None:
        """Batches that were done before this began, in whatever log they were."""
        self._seen.remember(seen)
        self._finished_seen.remember(seen)

    def position(self) -> Position:
        """How far the consumer has worked all off, and what it has done last: a copy."""
        return Position(self.done).having_seen(self._finished_seen.seen())

    def advance(self, delivery: Delivery, messages: int) -> None:
        """The consumer is done with the first `messages` of a batch that it has in hand."""
        if delivery.log is not None and self._cursors:
            self._move(delivery.log, delivery.first_no + delivery.skip + messages - 1)

    def _move(self, log: Log, msg_no: int) -> None:
        if msg_no > self.done.get(log, 0):
            self.done[log] = MsgNo(msg_no)
            self.moved.add(log)

    def _finished(self, size: int) -> None:
        self.held_bytes -= size
        if not self._withheld:
            self._returnable_bytes += size
        elif not self.held_bytes:
            self._withheld = False
            self._returnable_bytes = self.credit_bytes

    # Credit ---------------------------------------------------------------------------------------

    def credit_to_return(self, *, soon: bool = False) -> int:
        """What to give back to the node now: nothing until it is worth a frame, or all `soon`."""
        if self._returnable_bytes * 4 < self.credit_bytes and not soon:
            return 0
        returned, self._returnable_bytes = self._returnable_bytes, 0
        return returned

    def credit_to_begin(self) -> int:
        """What a new subscription begins with: all but what is still held here. In a queue group
        credit that is returned says what is done, from the front of what this home has sent: so it
        gets none for what another one has sent, and all when that is done."""
        self._returnable_bytes = 0
        self._withheld = bool(self.held_bytes) and not self._cursors
        return 0 if self._withheld else max(0, self.credit_bytes - self.held_bytes)
