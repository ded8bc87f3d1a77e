"""A client's subscription as its home sees it: places in logs, and a bounded queue beside them.

Persistent messages are never queued. The subscription holds a place in each log that it reads, and
what is committed behind that place is sent from the log when the client has credit and its socket
room. So there is no hand-over between replay and live, no hole and no repeat to guard against, and
a consumer that is a gigabyte behind costs no memory. Messages that are not persistent wait in a
queue of shared bytes, from which the oldest are dropped, counted and reported.

What comes from logs of other nodes, or from a queue group, is handed to it piece by piece, as long
as it has room (see `remote_reading` and `queue_group`).
"""

from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Final, Protocol

from busnode.node.handed import Handed
from busnode.node.outgoing import FETCHES_MAX, Outgoing, Piece
from busnode.node.unfinished import UNFINISHED_BYTES_MAX, Unfinished
from busnode.security.rules import Rights
from busnode.segments.damage import Hole
from busnode.segments.store import Cold, Log, LogReader, Range
from busnode.wire.control import Chunk, Dropped, Gap, encode_control, encode_trusted
from busnode.wire.frames import read_topic
from busnode.wire.ids import NO_BROKER, ClientNo, LogId, Pattern, Topic

LIVE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Messages that are not persistent, waiting for one subscription: a burst of 30,000 small ones."""

DROPPED_TOPICS_MAX: Final = 1000
"""Topics of which another node is told what was dropped; of more it is told a number alone."""

PIECE_BYTES: Final = 256 * 1024
"""What one subscription sends before the next has its turn."""

INLINE_BYTES: Final = 64 * 1024
"""Ranges up to this are read and sent together with their announcement: one system call instead of
two, and at the end of a log the page is in memory because it was just written."""

HANDED_MAX: Final = 128
"""Records of a queue group that one member is handed and has not sent, however small they are: each
takes 20 µs, and a group that had 256 KiB of small ones for each kept the loop for 50 ms."""

HANDED_OF_A_PIECE: Final = 16
"""So many of them count as one piece more where others wait for their turn."""


def _nothing() -> None:
    pass


class Witness:
    """Hears what a consumer should not have to go through. This one does nothing about it."""

    def gap(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        """It was told that it cannot have a range."""

    def slow(self, what: str) -> None:
        """It does not keep up."""


class Mender(Protocol):
    """Who can have a hole in a log filled from another copy."""

    def ask(self, log: Log, hole: Hole, then: Callable[[bool], None]) -> bool:
        """Whether somebody may have it. Then `then` is called: with True when it is worth reading
        again, with False when nobody has it."""
        ...


class LogCursor:
    """A subscription's place in one log."""

    __slots__ = ("log", "queued", "reader")

    def __init__(self, log: Log, after_no: int) -> None:
        self.log = log
        self.reader: LogReader = log.reader(after_no)
        self.queued = False


class Subscription:
    """One pattern of one client. It is a `Source` of its connection's `Outgoing`."""

    def __init__(
        self,
        number: int,
        client_no: ClientNo,
        pattern: Pattern,
        outgoing: Outgoing,
        credit_bytes: int,
        durable: str | None = None,
        *,
        is_peer: bool = False,
        mender: Mender | None = None,
        rights: Rights | None = None,
    ) -> None:
        """`is_peer`: it stands for all clients of another node that want the same. With a `mender`
        a hole is a gap only when nobody can fill it."""
        self.rights = rights
        """What its client may do; None: everything."""
        self.number = number
        self.client_no = client_no
        self.pattern = pattern
        self.durable = durable
        self.is_peer = is_peer
        self._is_feed = is_peer and not number
        """Whether it has what another node's clients want that are in no group."""
        self.weight = 1
        """How many members of a queue group it stands for."""
        self.credit_bytes = credit_bytes
        self.cursors: dict[LogId, LogCursor] = {}
        self.dropped_total = 0
        self._outgoing = outgoing
        self._ready: deque[LogCursor] = deque()
        self._fetching = 0
        """Places in logs that wait for the disk."""
        self._mender = mender
        self._mending = 0
        """Places in logs that wait for a hole to be filled."""
        self._live: deque[tuple[bytes, int]] = deque()
        self._live_bytes = 0
        self._dropped: dict[str, int] = {}
        """What the other side has yet to be told, for a node by topic."""
        self._handed: deque[Handed] = deque()
        self._handed_bytes = 0
        self._turn = 0
        self.refill: Callable[[], None] = _nothing
        """Ask for more to be handed over, when it has sent what it was handed."""
        self.fetched_logs: Container[LogId] = ()
        """Those that come to it from other nodes, or in part."""
        self.witness = Witness()
        self.opened = False
        """Nothing is sent before the client knows its position."""
        self.unfinished: Unfinished | None = None
        """In a queue group: what it was sent and is not done with."""

    # What comes in --------------------------------------------------------------------------------

    def may_have(self, topic: Topic) -> bool:
        return self.rights is None or self.rights.allows("subscribe", topic)

    def offer_at_once(self, batches: memoryview, count: int) -> bool:
        """Send messages that are not persistent straight on, if nothing of ours waits before."""
        del count
        if not self.opened or self.credit_bytes <= 0 or self._live or self._dropped:
            return False
        if not self._outgoing.send_at_once(self._live_header(len(batches)), batches):
            return False
        self.credit_bytes -= len(batches)
        return True

    def _live_header(self, length: int) -> bytes:
        return encode_trusted(
            Chunk, self.client_no, self.number, NO_BROKER, "", 0, 0, length, False, False
        )

    def offer(self, batches: bytes, count: int) -> None:
        """Messages that are not persistent: queued, at the cost of the oldest when it is full."""
        self._live.append((batches, count))
        self._queue(live=len(batches))
        while self._live_bytes > LIVE_BYTES_MAX and len(self._live) > 1:
            self._drop_oldest()
        while self._live and self._outgoing.is_full:
            self._drop_oldest()
        self._wake()

    def _drop_oldest(self) -> None:
        if not self._dropped:
            self.witness.slow("messages that are not persistent are dropped")
        oldest, count = self._live.popleft()
        self._queue(live=-len(oldest))
        self._count_dropped(read_topic(memoryview(oldest), 0) if self._is_feed else "", count)

    def dropped_before(self, count: int) -> None:
        """Messages that were not persistent are gone that another node had for it, too."""
        self._count_dropped("", count)
        self._wake()

    def _count_dropped(self, topic: str, count: int) -> None:
        if topic not in self._dropped and len(self._dropped) >= DROPPED_TOPICS_MAX:
            topic = ""
        self._dropped[topic] = self._dropped.get(topic, 0) + count
        self.dropped_total += count

    def drop_live(self) -> None:
        """All that waits and is not persistent: there is no memory for it."""
        while self._live:
            self._drop_oldest()
        self._wake()

    def _queue(self, live: int = 0, handed: int = 0) -> None:
        """So many bytes more, or fewer, are kept in memory."""
        self._live_bytes += live
        self._handed_bytes += handed
        self._outgoing.queue(live + handed)

    def read(self, log: Log, after_no: int) -> None:
        """Take up a log behind a number, unless it is fetched: it would come twice."""
        if log.log_id in self.fetched_logs:
            return
        cursor = self.cursors[log.log_id] = LogCursor(log, after_no)
        self.advance(cursor)

    def let_go(self, log_id: LogId) -> tuple[Log, int]:
        """Read a log here no more; the number behind which it stood."""
        cursor = self.cursors.pop(log_id)
        if cursor in self._ready:
            self._ready.remove(cursor)
        return cursor.log, cursor.reader.next_no - 1

    def committed(self, log: Log) -> None:
        """A log has more. One that is not taken up yet is at its beginning or will be soon."""
        cursor = self.cursors.get(log.log_id)
        if cursor is not None:
            self.advance(cursor)

    def advance(self, cursor: LogCursor) -> None:
        """The log may have more for us."""
        if not cursor.queued:
            cursor.queued = True
            self._ready.append(cursor)
            self._wake()

    def has_room(self) -> bool:
        """Whether a queue group may hand it something: it has credit for more than it was handed
        already, and is not behind."""
        return (
            self.opened
            and self.credit_bytes > self._handed_bytes + self._live_bytes
            and self._handed_bytes < PIECE_BYTES
            and len(self._handed) < HANDED_MAX
            and not self._outgoing.is_full
            and (self.unfinished is None or self.unfinished.size_bytes < UNFINISHED_BYTES_MAX)
        )

    def has_space(self) -> bool:
        """Whether what comes by itself from another node's log may be handed to it."""
        return self._handed_bytes < LIVE_BYTES_MAX and not self._outgoing.is_full

    def fetch(self, cold: Cold, then: Callable[[OSError | None], None]) -> None:
        """Fetch a range of a log from the disk for who hands it records."""
        self._outgoing.fetch(cold, then)

    def reserve(self, size_bytes: int) -> None:
        """So many bytes more, or fewer, are on their way to be handed to it."""
        self._outgoing.queue(size_bytes)

    def when_room(self, tell: Callable[[], None]) -> None:
        """Call back when there is room again that other subscriptions of this client have taken."""
        if self._outgoing.is_full:
            self._outgoing.when_room(tell)

    def hand_over(self, handed: Handed) -> None:
        """Records that this one is to send."""
        self._handed.append(handed)
        self._queue(handed=len(handed.data))
        self._wake()

    def give_back(self) -> tuple[list[Handed], list[tuple[bytes, int]]]:
        """What it has not sent, when it ends, and what its client was not done with: records from
        its queue group, and live batches."""
        handed, live = list(self._handed), list(self._live)
        if self.unfinished is not None:
            self._outgoing.queue(-self.unfinished.size_bytes)
            handed = self.unfinished.take_back() + handed
        self._handed.clear()
        self._live.clear()
        self._queue(-self._live_bytes, -self._handed_bytes)
        self.refill = _nothing
        self.opened = False  # what is being fetched for it is not wanted any more
        return handed, live

    def report(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        """A hole that was met by who hands records to it."""
        self.witness.gap(log_id, first_no, last_no, reason)
        gap = Gap(self.number, *log_id, first_no, last_no, reason)
        self._outgoing.send(encode_control(gap))

    def place(self, log_id: LogId, after_no: int) -> None:
        """Tell the client where it begins in a log that came up late."""
        place = (log_id.broker_id, log_id.topic, after_no + 1, after_no, 0, False, True)
        self._outgoing.send(encode_trusted(Chunk, self.client_no, self.number, *place))

    def add_credit(self, credit_bytes: int) -> None:
        self.credit_bytes += credit_bytes
        if self.unfinished is not None and not self.is_peer:
            for handed in self.unfinished.credited(credit_bytes):
                self._finished(handed)
        self.refill()
        self._wake()

    def finished(self, log_id: LogId, first_no: int) -> None:
        """Another node's member is done with records that were sent to it."""
        handed = None if self.unfinished is None else self.unfinished.finished(log_id, first_no)
        if handed is not None:
            self.credit_bytes += len(handed.data)
            self._finished(handed)
            self.refill()
            self._wake()

    def _finished(self, handed: Handed) -> None:
        self._outgoing.queue(-len(handed.data))
        if handed.done is not None:
            handed.done()

    def open(self) -> None:
        self.opened = True
        self.refill()
        self._wake()

    def _wake(self) -> None:
        some = self._ready or self._live or self._handed or self._dropped
        if self.opened and some and self.credit_bytes > 0:
            self._outgoing.wake(self)

    def pump(self) -> None:
        """Send what can be sent now. Apart from waking, so that one run for many is sent once."""
        self._outgoing.pump()

    @property
    def waiting(self) -> bool:
        """Whether there is something that was not sent yet."""
        return bool(self._live or self._handed or self._fetching or self._mending) or any(
            cursor.log.committed_no >= cursor.reader.next_no for cursor in self._ready
        )

    @property
    def behind(self) -> int:
        """Committed messages that were not sent yet."""
        cursors = self.cursors.values()
        return sum(max(0, c.log.committed_no + 1 - c.reader.next_no) for c in cursors)

    # What goes out --------------------------------------------------------------------------------

    def next_piece(self) -> Piece | None:
        if self._dropped:
            topic, count = self._dropped.popitem()
            return Piece(encode_control(Dropped(self.number, count, topic)))
        if self.credit_bytes <= 0:
            return None
        if not self._handed:
            self.refill()
        for _ in self._KINDS:
            self._turn = (self._turn + 1) % len(self._KINDS)
            piece = self._KINDS[self._turn](self)
            if piece is not None:
                return piece
        return None

    def _next_of_logs(self) -> Piece | None:
        while self._ready and self._fetching < FETCHES_MAX:
            cursor = self._ready[0]
            found = cursor.reader.next_in_memory(PIECE_BYTES, INLINE_BYTES)
            if found is None:
                cursor.queued = False
                self._ready.popleft()
                continue
            if isinstance(found, Cold):
                self._fetching += 1
                self._ready.popleft()
                self._outgoing.fetch(found, partial(self._fetched, cursor, found))
                continue
            if isinstance(found, Hole):
                if self._waits_for(cursor, found):
                    self._ready.popleft()
                    continue
                self._ready.rotate(-1)
                return self._gap(cursor, found)
            self._ready.rotate(-1)
            return self._chunk(cursor, found)
        return None

    def _waits_for(self, cursor: LogCursor, hole: Hole) -> bool:
        """Whether a hole may be filled."""
        then = partial(self._mended, cursor, hole)
        if self._mender is None or not self._mender.ask(cursor.log, hole, then):
            return False
        self._mending += 1
        return True

    def _mended(self, cursor: LogCursor, hole: Hole, readable: bool) -> None:
        self._mending -= 1
        if not self.opened or self.cursors.get(cursor.log.log_id) is not cursor:
            return  # it has ended meanwhile, or reads this elsewhere
        if readable:
            cursor.reader = cursor.log.reader(hole.first_no - 1)
        else:
            self.report(cursor.log.log_id, hole.first_no, hole.last_no, hole.told)
        self._ready.append(cursor)
        self._wake()
        self.pump()

    def _fetched(self, cursor: LogCursor, cold: Cold, error: OSError | None) -> None:
        self._fetching -= 1
        cursor.reader.fetched(cold, error)
        if self.cursors.get(cursor.log.log_id) is cursor:
            self._ready.append(cursor)
        self._wake()

    def _next_handed(self) -> Piece | None:
        """Several at once, each with its own announcement: their numbers may have holes."""
        if not self._handed:
            return None
        parts: list[bytes] = []
        length = 0
        while self._handed and self.credit_bytes > 0 and length < INLINE_BYTES:
            handed = self._handed.popleft()
            (broker_id, topic), first_no, last_no, data, is_remote, _ = handed
            chunk = encode_trusted(
                Chunk, self.client_no, self.number, broker_id, topic,
                first_no, last_no, len(data), False, is_remote,
            )  # fmt: skip
            if self.unfinished is not None:
                self.unfinished.sent(handed)
                self._outgoing.queue(len(data))
            parts += (chunk, data)
            length += len(data)
            self.credit_bytes -= len(data)
        self._queue(handed=-length)
        return Piece(b"".join(parts), share=1 + len(parts) // 2 // HANDED_OF_A_PIECE)

    def _next_live(self) -> Piece | None:
        if not self._live:
            return None
        parts: list[bytes] = []
        length = 0
        while self._live and length < PIECE_BYTES:
            batches, _ = self._live.popleft()
            parts.append(batches)
            length += len(batches)
        self._queue(live=-length)
        self.credit_bytes -= length
        if self.unfinished is not None and not self.is_peer:
            self.unfinished.sent_live(length)
        header = self._live_header(length)
        return Piece(b"".join((header, *parts)))

    def _chunk(self, cursor: LogCursor, found: Range) -> Piece:
        self.credit_bytes -= found.length
        log = cursor.log
        header = encode_trusted(
            Chunk, self.client_no, self.number, log.log_id.broker_id, log.log_id.topic,
            found.first_no, found.last_no, found.length, found.last_no >= log.committed_no, False,
        )  # fmt: skip
        if found.data is None:
            return Piece(header, found, cursor.reader.suspect)
        return Piece(b"".join((header, found.data)))

    # Not methods of one instance: that would be a cycle, and what it had be kept when it ends.
    _KINDS = (_next_handed, _next_live, _next_of_logs)

    def _gap(self, cursor: LogCursor, hole: Hole) -> Piece:
        log_id = cursor.log.log_id
        self.witness.gap(log_id, hole.first_no, hole.last_no, hole.told)
        gap = Gap(
            self.number, log_id.broker_id, log_id.topic, hole.first_no, hole.last_no, hole.told
        )
        return Piece(encode_control(gap))
