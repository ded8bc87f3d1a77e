"""What goes out on one connection: control frames first, then the subscriptions in turn.

Everything is sent at once, inline, where the socket takes it; only what it does not take is kept,
and a task of its own waits for the socket. A slow reader therefore costs one unsent piece and
never holds up whoever has something for it.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

from busnode.node.memory_budget import MemoryBudget
from busnode.segments.store import Cold, Range
from busnode.wire.errors import BusnodeError, LimitReached
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

CONTROL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Control frames waiting for a peer that does not read. Answers are small: one that makes us keep
this much asks without listening, and is let go."""

QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What all subscriptions of one client, of which there may be thousands, may keep in memory."""

PIECES_BEFORE_YIELD: Final = 32
"""Pieces that one connection may send before others have their turn."""

BYTES_BEFORE_YIELD: Final = 8 * 1024 * 1024
"""And bytes. Measured by sendfile to a reader in another process, on 2 cores that others used too:
1.5 to 10 ms, median 5."""

FETCHES_MAX: Final = 4
"""Ranges that are fetched from the disk at once for one connection: one that comes back to ten
thousand logs keeps the disk busy, and leaves threads for others."""

STALE_S: Final = 1.0
"""When a reader has stopped in the middle of a range for so long, the rest is fetched anew: what
was in memory may have given way to something else."""

OF_THE_SOCKET: Final = (ConnectionError, TimeoutError)
"""Errors of a sendfile that say nothing about the file."""


class Piece:
    """A stretch of bytes to send: some in memory, then perhaps a range of a file.

    `suspect` is told of a range whose file fails: what was announced must follow, so this ends the
    connection, and whoever comes again should not be promised the same. `share` is how many pieces
    it counts for where others wait for their turn: to make one of many small parts takes longer.
    """

    __slots__ = ("data", "range", "share", "suspect")

    def __init__(
        self,
        data: bytes,
        range_: Range | None = None,
        suspect: Callable[[Range], None] | None = None,
        share: int = 1,
    ) -> None:
        self.data = data
        self.share = share
        self.range = range_
        self.suspect = suspect


class Source(Protocol):
    """Something with more to send than one piece: a subscription."""

    def next_piece(self) -> Piece | None:
        """The next piece, or None when there is nothing now; the source then wakes us later."""
        ...


class Outgoing:
    """The sending half of one connection."""

    def __init__(self, stream: Stream, budget: MemoryBudget | None = None) -> None:
        self._stream = stream
        self._budget = budget or MemoryBudget()
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._sources: OrderedDict[Source, None] = OrderedDict()
        """Those that have something, in turn; one of many thousands can leave at once."""
        self._pieces_left = 0
        self._bytes_left = 0
        self._ended = False
        self._waiting = trio.CancelScope()
        self._idle: trio.Event | None = None
        self._unsent: memoryview | None = None
        self._range: Range | None = None
        self._range_sent = 0
        self._suspect: Callable[[Range], None] | None = None
        self._blocked = False
        self._pumping = False
        self._unblock = trio.Event()
        self._cold: deque[tuple[Cold, Callable[[OSError | None], None]]] = deque()
        self._fetching = 0
        self._fetchers: trio.Nursery | None = None
        self.failure: OSError | BusnodeError | None = None
        """Why nothing can be sent any more."""
        self.sent_bytes = 0
        self.queued_bytes = 0
        """What its sources keep in memory, all together."""
        self._without_room: dict[Callable[[], None], None] = {}

    @property
    def blocked(self) -> bool:
        """Whether the socket takes no more for now."""
        return self._blocked

    @property
    def idle(self) -> bool:
        """Whether all that there was has been given to the system."""
        return not (self._control or self._sources or self._unsent or self._range)

    @property
    def has_ended(self) -> bool:
        """Whether there are control frames only from here on."""
        return self._ended

    @property
    def _is_clear(self) -> bool:
        """Whether what is sent now overtakes nothing but what sources may have."""
        return not (self._blocked or self._pumping or self._control or self._unsent or self._range)

    @property
    def is_full(self) -> bool:
        """Whether its sources keep as much in memory as one connection may."""
        return self.queued_bytes >= QUEUED_BYTES_MAX

    def queue(self, change_bytes: int) -> None:
        """Its sources keep so much more, or less, in memory."""
        was_full = self.is_full
        self.queued_bytes += change_bytes
        self._budget.add(change_bytes)
        if was_full and not self.is_full:
            waiting, self._without_room = self._without_room, {}
            for tell in waiting:
                tell()

    def when_room(self, tell: Callable[[], None]) -> None:
        """Call back once when sources may keep more: somebody else may have taken all there was."""
        self._without_room[tell] = None

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much for others' sake still leaves room for answers."""
        return self._control_bytes + size_bytes <= CONTROL_BYTES_MAX // 2

    def send(self, frame: bytes) -> None:
        """Send a control frame, now or as soon as the socket takes it."""
        if self.failure is not None:
            return
        if self._is_clear and not self._sources:  # nearly always, and nothing need be kept
            try:
                sent = self._stream.send(frame)
            except OSError as error:
                self._fail(error)
                return
            self.sent_bytes += sent
            if sent < len(frame):
                self._unsent = memoryview(frame)[sent:]
                self._block()
            return
        self._control.append(frame)
        self._control_bytes += len(frame)
        self._budget.add(len(frame))
        if self._control_bytes > CONTROL_BYTES_MAX:
            self._fail(LimitReached(f"{self._control_bytes} bytes of answers were not read"))
        self.pump()

    def send_at_once(self, header: bytes, data: memoryview) -> bool:
        """Send bytes that are valid only now, if nothing waits; what is not taken is copied.

        So a message that is not persistent goes from the buffer that received it to the sockets of
        those who want it. False, and nothing is sent, when it would overtake something.
        """
        if not self._is_clear or self._sources or self._ended or self.failure is not None:
            return False
        try:
            sent = self._stream.send_both(header, data)
        except OSError as error:
            self._fail(error)
            return True
        self.sent_bytes += sent
        if sent < len(header):
            self._unsent = memoryview(header[sent:] + bytes(data))
        elif sent < len(header) + len(data):
            self._unsent = memoryview(bytes(data[sent - len(header) :]))
        else:
            return True
        self._block()
        return True

    def wake(self, source: Source) -> None:
        """The source has something; it is asked in its turn."""
        if source not in self._sources and not self._ended:
            self._sources[source] = None

    def forget(self, source: Source) -> None:
        """The source is gone; a piece of it that is on its way still goes out whole."""
        self._sources.pop(source, None)

    def end_sources(self) -> None:
        """No source is asked any more: from here on there are control frames only."""
        self._ended = True
        self._sources.clear()

    def release(self) -> None:
        """The connection is gone: what it kept counts no more, whoever still holds on to it."""
        self._budget.add(-self.queued_bytes - self._control_bytes)
        self._budget = MemoryBudget()

    async def wait_idle(self) -> None:
        """Wait until all has been given to the system, or cannot be."""
        while not self.idle and self.failure is None:
            self._idle = trio.Event()
            await self._idle.wait()

    def pump(self) -> None:
        """Send as much as the socket takes. Never raises, never waits."""
        if self._blocked or self._pumping or self.failure is not None:
            return
        self._pumping = True  # a source may send a control frame while it is asked
        self._pieces_left = PIECES_BEFORE_YIELD
        self._bytes_left = BYTES_BEFORE_YIELD
        try:
            while self._send_some():
                pass
        except OSError as error:
            self._fail(error)
        except Exception as error:
            # Whoever pumps may be anybody, the committer for one: a source's fault is its own.
            logger.exception("a source failed")
            self._fail(BusnodeError(f"a source failed: {error!r:.200}"))
        finally:
            self._pumping = False
        if self._idle is not None and self.idle:
            self._idle.set()

    def _send_some(self) -> bool:
        """Send one piece; False when there is none or the socket takes no more."""
        if self._unsent is not None:
            sent = self._stream.send(self._unsent)
            self.sent_bytes += sent
            if sent < len(self._unsent):
                self._unsent = self._unsent[sent:]
                return self._block()
            self._unsent = None
        elif self._range is not None:
            left = self._range.length - self._range_sent
            at = self._range.offset + self._range_sent
            try:
                sent = self._stream.send_range(self._range.file, at, left)
            except OSError as error:
                if self._suspect is not None and not isinstance(error, OF_THE_SOCKET):
                    self._suspect(self._range)
                raise
            self.sent_bytes += sent
            self._range_sent += sent
            if not sent:
                return self._block()
            if sent == left:
                self._range = None
        elif self._control:
            self._unsent = memoryview(b"".join(self._control))
            self._control.clear()
            self._budget.add(-self._control_bytes)
            self._control_bytes = 0
        elif self._sources:
            if self._pieces_left <= 0 or self._bytes_left <= 0:
                return self._block()
            source = next(iter(self._sources))
            piece = source.next_piece()
            self._pieces_left -= 1 if piece is None else piece.share
            if piece is None:
                del self._sources[source]
            else:
                self._sources.move_to_end(source)
                self._unsent = memoryview(piece.data)
                self._range, self._range_sent = piece.range, 0
                self._bytes_left -= len(piece.data) + (piece.range.length if piece.range else 0)
                self._suspect = piece.suspect
        else:
            return False
        return True

    def _block(self) -> bool:
        self._blocked = True
        self._unblock.set()
        return False

    def _fail(self, failure: OSError | BusnodeError) -> None:
        if self.failure is None:
            self.failure = failure
        self._unblock.set()
        self._waiting.cancel()  # who never reads would be waited for without end
        if self._idle is not None:
            self._idle.set()

    def fetch(self, cold: Cold, then: Callable[[OSError | None], None]) -> None:
        """Fetch a range from the disk while others are sent, and tell how it went."""
        self._cold.append((cold, then))
        self._start_fetching()

    def _start_fetching(self) -> None:
        if self._cold and self._fetchers is not None and self._fetching < FETCHES_MAX:
            self._fetching += 1
            self._fetchers.start_soon(self._fetch_some)

    async def _fetch_some(self) -> None:
        while self._cold:
            cold, then = self._cold.popleft()
            failure: OSError | None = None
            try:
                await cold.range.file.fetch(cold.range.offset, cold.range.length)
            except OSError as error:
                logger.warning("%d bytes cannot be sent: %s", cold.range.length, error)
                failure = error
            try:
                then(failure)
            except OSError as error:
                self._fail(error)
            self.pump()
        self._fetching -= 1

    async def run(self) -> None:
        """Wait for the socket whenever it is full; returns when nothing can be sent any more."""
        async with trio.open_nursery() as nursery:
            self._fetchers = nursery
            try:
                self._start_fetching()
                await self._wait_again_and_again()
            finally:
                self._fetchers = None
            nursery.cancel_scope.cancel()

    async def _wait_again_and_again(self) -> None:
        while True:
            await self._unblock.wait()
            self._unblock = trio.Event()
            with trio.CancelScope() as self._waiting:
                if self.failure is not None:
                    return
                blocked_at = trio.current_time()
                try:
                    await self._stream.wait_writable()
                    if self._range is not None and trio.current_time() > blocked_at + STALE_S:
                        at, left = self._range_sent, self._range.length - self._range_sent
                        await self._range.file.fetch(self._range.offset + at, left)
                except OSError as error:
                    self._fail(error)
            self._blocked = False
            self.pump()
