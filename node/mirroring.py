"""Our own logs at their mirrors: chosen, sent as they are appended, and waited for.

A mirror is a place in each of our logs, like any reader, but one that reads ahead of the commit:
what is appended goes there at once, from the page that was just written, while our own disk syncs
it. Catching up is the same thing from further back.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import trio

from busnode.node.event_kinds import (
    CATCHUP_BEGUN,
    CATCHUP_DONE,
    MIRROR_CHOSEN,
    MIRROR_IN_FORCE,
    MIRROR_LET_GO,
    MIRRORS_NOT_KEPT,
)
from busnode.node.events import Tell, log_only
from busnode.node.outgoing import FETCHES_MAX, Piece
from busnode.node.peer_link import PeerLink
from busnode.node.receipts import LOCAL
from busnode.node.subscription import INLINE_BYTES, Mender
from busnode.replication.mirror_choice import choose_mirrors
from busnode.replication.mirror_progress import SILENT_S, MirrorProgress
from busnode.replication.throttle import Throttle
from busnode.segments.damage import Hole
from busnode.segments.store import Cold, Log, LogReader, Range, Store
from busnode.wire.control import Chunk, Mirror, Mirrored, encode_trusted
from busnode.wire.errors import StorageError
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.world.clock import Clock

PIECE_BYTES: Final = 1024 * 1024
"""What goes of one log before the next has its turn: each piece costs both sides some 50 µs, which
was a fifth of catching up with 256 KiB."""

THROTTLED_PIECE_BYTES: Final = 128 * 1024
"""Smaller where it must be slow, so that it is even; but not smaller than that. At a gigabyte a
second they cost the mirror 1.4 to 1.5 s of processor in place of 0.7 to 0.8."""

LOOKS_BEFORE_YIELD: Final = 200
"""Logs that are compared with what a mirror has before others have their turn: 1 ms."""

WATCH_EVERY_S: Final = 0.25
RESUME_EVERY_S: Final = 0.02
"""Less than a throttle's burst, so that pausing costs no speed."""

MIRRORED: Final = "mirrored"

AGAIN_S: Final = 10.0
"""A mirror that was silent is not chosen again sooner: it may be slow for a while."""


LAG_LOGS_MAX: Final = 2000
"""Logs whose lags are added up: 2 ms. More are rarely written at the same moment."""


class Lag(NamedTuple):
    """What a mirror has not synced of what was appended."""

    messages: int
    size_bytes: int
    """As far as messages of one log are alike."""
    waiting_s: float
    """For how long no answer has come about a log of which something was sent."""


class MirrorCursor:
    """A mirror's place in one log."""

    __slots__ = ("log", "queued", "reader")

    def __init__(self, log: Log, reader: LogReader) -> None:
        self.log = log
        self.reader = reader
        self.queued = False


class MirrorStream:
    """What goes to one mirror. It is a `Source` of the link to it."""

    def __init__(
        self,
        link: PeerLink,
        broker_id: BrokerId,
        store: Store,
        clock: Clock,
        retain_s: float,
        throttle: Throttle | None = None,
        mender: Mender | None = None,
    ) -> None:
        """The copies are to be kept for `retain_s`. With a `throttle` it catches up no faster than
        that allows. With a `mender` a hole here is one there only when nobody can fill it."""
        self.link = link
        self._throttle = throttle
        self._piece_bytes = PIECE_BYTES
        if throttle is not None:
            self._piece_bytes = throttle.piece_bytes(THROTTLED_PIECE_BYTES, PIECE_BYTES)
        self._is_paused = False
        self.broker_id = broker_id
        """Of the incarnation whose logs it gets."""
        self.progress = MirrorProgress()
        self.sent_bytes = 0
        self.is_broken = False
        """Whether something that it must have cannot be sent: it is no mirror any more."""
        self._store = store
        self._clock = clock
        self._cursors: dict[LogId, MirrorCursor] = {}
        self._ready: deque[MirrorCursor] = deque()
        self._fetching = 0
        self._mender = mender
        self.has_begun = False
        self._is_looking = False
        """Whether it is still being found out what it lacks; nothing is sent meanwhile."""
        self._has_ended = False
        self.began_at = clock.monotonic()
        """When it was asked, and then when it has told what it has."""
        self.is_told_of = False
        """Whether it was said that it is in force."""
        link.send(encode_trusted(Mirror, broker_id, retain_s))
        self.progress.asked(clock.monotonic())

    def appended(self, log: Log) -> None:
        """A log of ours has more."""
        if not self.has_begun:
            return
        cursor = self._cursors.get(log.log_id)
        if cursor is None:
            cursor = self._add(log)
        if not cursor.queued:
            cursor.queued = True
            self._ready.append(cursor)
            if self.progress.in_force:
                # Acks wait from now on, also where something else keeps it from being sent.
                self.progress.sent(log.log_id, log.appended_no, self._clock.monotonic())
            self._wake()

    def whole(self, log: Log) -> None:
        """Something of a log can be read that could not be when it was sent: if the copy ends
        before it, it goes on there."""
        cursor = self._cursors.get(log.log_id)
        if cursor is None or cursor.queued or log.log_id in self.progress.unanswered:
            return
        safe_no = self.progress.safe_no(log.log_id)
        if safe_no < log.committed_no:
            cursor.reader = _reader(log, safe_no)
            self.appended(log)
            self.link.outgoing.pump()

    def _wake(self) -> None:
        if not self._is_looking and not self._has_ended:
            self.link.outgoing.wake(self)

    def _add(self, log: Log) -> MirrorCursor:
        after_no = min(self.progress.safe_no(log.log_id), log.committed_no)
        cursor = MirrorCursor(log, _reader(log, after_no))
        self._cursors[log.log_id] = cursor
        return cursor

    async def answered(self, message: Mirrored) -> None:
        """It tells what it has: at first all, and then what it has synced."""
        now = self._clock.monotonic()
        for topic, safe_no in message.safe:
            self.progress.synced(LogId(self.broker_id, Topic(topic)), safe_no, now)
        if not self.has_begun and not message.safe:
            await self._begin()
        self.progress.heard(self._clock.monotonic(), begun=self.has_begun)

    async def _begin(self) -> None:
        """It has told all: send what it lacks."""
        self.has_begun = self._is_looking = True
        self.began_at = self._clock.monotonic()
        for step, log in enumerate(self._store.logs(), start=1):
            log_id = log.log_id
            if log_id.broker_id == self.broker_id:
                self.progress.lacks(log_id, log.committed_no, log.first_no, _message_bytes(log))
                end_no = log.appended_no if log.poisoned is None else log.committed_no
                if end_no > self.progress.safe_no(log_id):
                    self.appended(log)
            if step % LOOKS_BEFORE_YIELD == 0:
                self.progress.heard(self._clock.monotonic(), begun=False)  # it waits for us now
                await trio.lowlevel.checkpoint()
        self._is_looking = False
        if self._ready:
            self._wake()
            self.link.outgoing.pump()

    def end(self) -> None:
        """It is no mirror any more; what is on its way to it still arrives."""
        self._has_ended = True
        self.link.outgoing.forget(self)

    def next_piece(self) -> Piece | None:
        if self.is_broken:
            return None  # what lies behind the hole would be called mirrored, and the hole with it
        if self._throttle is not None and not self.progress.in_force:
            self._is_paused = self._throttle.wait_s(self._clock.monotonic()) > 0
            if self._is_paused:
                return None
        while self._ready and self._fetching < FETCHES_MAX:
            cursor = self._ready[0]
            found = cursor.reader.next_in_memory(self._piece_bytes, INLINE_BYTES)
            if found is None:
                cursor.queued = False
                self._ready.popleft()
                continue
            if isinstance(found, Cold):
                self._fetching += 1
                self._ready.popleft()
                self.link.outgoing.fetch(found, partial(self._fetched, cursor, found))
                continue
            self._ready.rotate(-1)
            log_id = cursor.log.log_id
            if isinstance(found, Hole):
                if self._breaks(cursor.log, found):
                    return None
                if not self._waits_for(cursor, found):
                    # The next range begins behind it, and the copy has the same hole.
                    self.progress.absent(log_id, found.first_no, found.last_no)
                continue
            self.progress.sent(log_id, found.last_no, self._clock.monotonic())
            return self._piece(log_id, cursor, found)
        return None

    def _breaks(self, log: Log, hole: Hole) -> bool:
        """Whether acks wait for what is in a hole, or are about to: with the numbers behind it they
        would be called mirrored."""
        if self.progress.in_force or hole.last_no > log.committed_no:
            self.is_broken |= hole.last_no > self.progress.safe_no(log.log_id)
        return self.is_broken

    def _waits_for(self, cursor: MirrorCursor, hole: Hole) -> bool:
        """Whether a hole may be filled; then nothing of this log is sent before it is known."""
        then = partial(self._mended, cursor, hole)
        if self._mender is None or not self._mender.ask(cursor.log, hole, then):
            return False
        self._ready.remove(cursor)
        return True

    def _mended(self, cursor: MirrorCursor, hole: Hole, readable: bool) -> None:
        if readable:
            cursor.reader = _reader(cursor.log, hole.first_no - 1)
        elif self._breaks(cursor.log, hole):  # it may have come into force meanwhile
            return
        else:
            self.progress.absent(cursor.log.log_id, hole.first_no, hole.last_no)
        self._ready.append(cursor)
        if not self._has_ended:
            self.link.outgoing.wake(self)
            self.link.outgoing.pump()

    def _piece(self, log_id: LogId, cursor: MirrorCursor, found: Range) -> Piece:
        self.sent_bytes += found.length
        if self._throttle is not None:
            self._throttle.sent(found.length, self._clock.monotonic())
        header = encode_trusted(
            Chunk, 0, 0, log_id.broker_id, log_id.topic, found.first_no, found.last_no,
            found.length, False, True, self._age_us(cursor.log, found),
        )  # fmt: skip
        if found.data is None:
            return Piece(header, found, cursor.reader.suspect)
        return Piece(b"".join((header, found.data)))

    def _age_us(self, log: Log, found: Range) -> int:
        """How long ago a range was stored; 0 for what is being stored now."""
        if found.last_no > log.committed_no:
            return 0
        return max(0, self._clock.utc_us() - found.stored_us)

    def lag(self) -> Lag:
        now = self._clock.monotonic()
        progress = self.progress
        if not progress.in_force:
            behind = progress.behind, round(progress.behind_bytes)
            return Lag(*behind, progress.waiting_s(now))
        sent = (self._cursors[log_id].log for log_id in progress.unanswered)
        logs = dict.fromkeys(islice(sent, LAG_LOGS_MAX))
        logs |= dict.fromkeys(cursor.log for cursor in islice(self._ready, LAG_LOGS_MAX))
        messages, size_bytes = 0, 0.0
        for log in logs:
            missing = max(0, log.appended_no - progress.safe_no(log.log_id))
            messages += missing
            size_bytes += missing * _message_bytes(log)
        return Lag(messages, round(size_bytes), progress.waiting_s(now))

    def resume(self) -> bool:
        """Go on if it has paused for long enough; whether it pauses still."""
        if self._is_paused:
            self._wake()
            self.link.outgoing.pump()
        return self._is_paused

    def _fetched(self, cursor: MirrorCursor, cold: Cold, error: OSError | None) -> None:
        self._fetching -= 1
        cursor.reader.fetched(cold, error)
        self._ready.append(cursor)
        self._wake()


def _reader(log: Log, after_no: int) -> LogReader:
    """What is sent to a mirror is read ahead of the commit. Of a log that is lost to writing nobody
    knows what lies behind what was committed."""
    return log.reader(after_no, ahead=log.poisoned is None)


def _message_bytes(log: Log) -> float:
    return log.size_bytes / max(1, log.appended_no + 1 - log.first_no)


class Mirroring:
    """The mirrors of this node, and the level that acks may name."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        broker_id: BrokerId,
        count: int,
        named: str | None,
        record: Callable[[list[str]], None],
        retain_s: float,
        throttle: Throttle | None = None,
        tell: Tell = log_only,
    ) -> None:
        """`record` makes durable who the mirrors are, before an ack is given under them; when it
        raises a StorageError, nobody is a mirror yet."""
        self.throttle = throttle
        self.mender: Mender | None = None
        """Set by whoever puts the node together."""
        self._retain_s = retain_s
        self._tell = tell
        self.streams: dict[BrokerId, MirrorStream] = {}
        self.on_safe: Callable[[list[Log]], None] = _nobody
        """Told of logs that may be acked further."""
        self.on_let_go: Callable[[], None] = _nothing
        """Told when acks wait for a mirror no longer, of whichever logs."""
        self._store = store
        self._clock = clock
        self._origin = broker_id
        self._broker_id = broker_id
        self._count = count
        self._named = named
        self._record = record
        self._links: dict[BrokerId, PeerLink] = {}
        self._let_go: dict[BrokerId, float] = {}

    # Who ------------------------------------------------------------------------------------------

    def linked(self, link: PeerLink) -> None:
        self._links[link.broker_id] = link
        self._choose()

    def unlinked(self, link: PeerLink) -> None:
        del self._links[link.broker_id]
        self._let_go.pop(link.broker_id, None)
        self._drop(link.broker_id, "the link to it is gone")
        self._choose()

    def begin(self, broker_id: BrokerId) -> None:
        """From here on our logs are those of a new incarnation."""
        self._broker_id = broker_id
        for member in list(self.streams):
            self._drop(member, "a new incarnation begins with its mirror anew")
        self._choose()

    def _choose(self) -> None:
        live = [each for each in self._links if each not in self._let_go]
        named = next((i for i, link in self._links.items() if link.name == self._named), None)
        chosen = choose_mirrors(self._origin, list(self.streams), live, self._count, named)
        for member in [each for each in self.streams if each not in chosen]:
            self._drop(member, "another one is to be")
        added = [member for member in chosen if member not in self.streams]
        if added:
            try:
                self._record([self._links[member].name for member in chosen])
            except StorageError as error:
                # Without it there is no mirror; `watch` tries again.
                self._tell(MIRRORS_NOT_KEPT, error=error)
                return
        for member in added:
            link = self._links[member]
            self.streams[member] = MirrorStream(
                link, self._broker_id, self._store, self._clock, self._retain_s, self.throttle,
                self.mender,
            )  # fmt: skip
            self._tell(MIRROR_CHOSEN, name=link.name)

    def _drop(self, member: BrokerId, why: str) -> None:
        stream = self.streams.pop(member, None)
        if stream is not None:
            stream.end()
            self._tell(MIRROR_LET_GO, name=stream.link.name, why=why)
            self.on_let_go()

    def refused(self, link: PeerLink) -> None:
        """A node does not want to be our mirror, unless it has begun: then what it refuses are the
        logs of somebody else."""
        if link.broker_id in self.streams and not self.streams[link.broker_id].has_begun:
            self._let_go[link.broker_id] = self._clock.monotonic()
            self._drop(link.broker_id, "it refuses")
            self._choose()

    def resume(self) -> bool:
        """Let those go on who pause in catching up; whether somebody pauses still."""
        pausing = [stream.resume() for stream in self.streams.values()]  # all of them, each time
        return any(pausing)

    def watch(self) -> None:
        """Let go of those who are silent; look at them again after a while."""
        now = self._clock.monotonic()
        for member, since in list(self._let_go.items()):
            if now - since > AGAIN_S:
                del self._let_go[member]
        for stream in self.streams.values():
            self._tell_when_in_force(stream)
        silent = [
            member
            for member, stream in self.streams.items()
            if stream.is_broken or stream.progress.is_silent(now)
        ]
        for member in silent:
            is_broken = self.streams[member].is_broken
            why = "it cannot have what it must" if is_broken else f"silent for {SILENT_S:g} s"
            self._let_go[member] = now
            self._drop(member, why)
        if silent or len(self.streams) < self._count:
            self._choose()

    # What -----------------------------------------------------------------------------------------

    def appended(self, log: Log) -> None:
        for stream in self.streams.values():
            stream.appended(log)

    def whole(self, log_id: LogId) -> None:
        """Something of a log can be read that could not be."""
        log = self._store.get(log_id)
        if log is not None and log_id.broker_id == self._broker_id:
            for stream in self.streams.values():
                stream.whole(log)

    def pump(self) -> None:
        for stream in self.streams.values():
            stream.link.outgoing.pump()

    async def answered(self, link: PeerLink, message: Mirrored) -> None:
        stream = self.streams.get(link.broker_id)
        if stream is None or message.broker_id != stream.broker_id:
            return
        had_begun = stream.has_begun
        await stream.answered(message)
        if self.streams.get(link.broker_id) is not stream:
            return  # it was let go meanwhile
        progress = stream.progress
        if stream.has_begun and not had_begun and progress.behind:
            what = {"messages": progress.total, "bytes": round(progress.total_bytes)}
            self._tell(CATCHUP_BEGUN, name=link.name, logs=progress.logs_behind, **what)
        self._tell_when_in_force(stream)
        logs = (self._store.get(LogId(message.broker_id, Topic(t))) for t, _ in message.safe)
        self.on_safe([log for log in logs if log is not None])

    def _tell_when_in_force(self, stream: MirrorStream) -> None:
        if stream.is_told_of or not stream.progress.in_force:
            return
        stream.is_told_of = True
        if stream.progress.total:
            seconds = round(self._clock.monotonic() - stream.began_at, 3)
            self._tell(CATCHUP_DONE, name=stream.link.name, seconds=seconds)
        self._tell(MIRROR_IN_FORCE, name=stream.link.name)

    # Levels ---------------------------------------------------------------------------------------

    @property
    def in_force(self) -> bool:
        """Whether acks wait for a mirror."""
        return any(stream.progress.in_force for stream in self.streams.values())

    def safe(self, log: Log) -> tuple[int, str]:
        """Up to which number a log may be acked now, and with which level."""
        committed_no = log.committed_no
        if log.log_id.broker_id != self._broker_id:
            return committed_no, LOCAL
        reached = [
            stream.progress.safe_no(log.log_id)
            for stream in self.streams.values()
            if stream.progress.in_force
        ]
        if not reached:
            return committed_no, LOCAL
        return min(committed_no, max(reached)), MIRRORED


def _nothing() -> None:
    pass


def _nobody(logs: list[Log]) -> None:
    del logs
