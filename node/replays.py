"""What another node has asked for of the logs that this one holds."""

from collections import deque
from functools import partial

from busnode.node.event_kinds import LOG_UNREADABLE
from busnode.node.events import Tell, log_only
from busnode.node.mending import Mending
from busnode.node.outgoing import FETCHES_MAX, Outgoing, Piece
from busnode.segments.damage import Hole
from busnode.segments.store import Cold, Log, LogReader, Store
from busnode.wire.control import Chunk, Gap, Replay, encode_control, encode_trusted
from busnode.wire.errors import StorageError
from busnode.wire.ids import LogId, Topic


class Replays:
    """A source of what another node has asked for, one answer each."""

    def __init__(
        self, store: Store, outgoing: Outgoing, mending: Mending, tell: Tell = log_only
    ) -> None:
        self._tell = tell
        self.waiting: deque[tuple[Replay, LogReader | Hole | None]] = deque()
        """With a reader: what was fetched from the disk for it is in memory now. With a hole: it
        was looked at again, and is one."""
        self.served = 0
        self._store = store
        self._outgoing = outgoing
        self._fetching = 0
        self._mending = mending

    def next_piece(self) -> Piece | None:
        while self.waiting and self._fetching < FETCHES_MAX:
            asked, found = self.waiting.popleft()
            if isinstance(found, Hole):
                piece: Piece | None = _gap(asked, found.first_no, found.last_no, found.told)
            else:
                piece = self._try(asked, found)
            if piece is not None:
                self.served += 1
                return piece
        return None

    def _try(self, asked: Replay, reader: LogReader | None) -> Piece | None:
        """The answer, or None while it must be fetched first."""
        try:
            return self._answer(asked, reader)
        except (OSError, StorageError) as error:
            log_id = LogId(asked.broker_id, Topic(asked.topic))
            self._tell(LOG_UNREADABLE, log=log_id, error=error)
            return _gap(asked, asked.after_no + 1, 0, f"cannot be read: {error}")

    def _answer(self, asked: Replay, reader: LogReader | None) -> Piece | None:
        log = self._store.get(LogId(asked.broker_id, Topic(asked.topic)))
        if log is None:
            return _gap(asked, asked.after_no + 1, 0, "unknown: this node has no such log")
        if not asked.length:
            after_no = (
                asked.after_no if asked.since_us is None else log.first_at(asked.since_us) - 1
            )
            return _chunk(asked, after_no + 1, after_no, 0, last=False)
        reader = reader or log.reader(asked.after_no)
        found = reader.next_in_memory(asked.length, 0)
        if found is None:
            return _chunk(asked, asked.after_no + 1, log.committed_no, 0, last=True)
        if isinstance(found, Cold):
            self._fetching += 1
            self._outgoing.fetch(found, partial(self._fetched, asked, reader, found))
            return None
        if isinstance(found, Hole):
            if not _is_known(log, found) and self._mending.ask(
                log, found, partial(self._looked_at, asked, found)
            ):
                return None  # it may only be that the disk hesitates
            self._mending.noticed(log, found)  # who asks goes elsewhere meanwhile
            return _gap(asked, found.first_no, found.last_no, found.told)
        last = found.last_no >= log.committed_no
        piece = _chunk(asked, found.first_no, found.last_no, found.length, last=last)
        piece.range, piece.suspect = found, reader.suspect
        return piece

    def _looked_at(self, asked: Replay, hole: Hole, readable: bool) -> None:
        self.waiting.append((asked, None if readable else hole))
        self._outgoing.wake(self)
        self._outgoing.pump()

    def _fetched(self, asked: Replay, reader: LogReader, cold: Cold, error: OSError | None) -> None:
        self._fetching -= 1
        reader.fetched(cold, error)
        self.waiting.appendleft((asked, reader))
        self._outgoing.wake(self)


def _is_known(log: Log, hole: Hole) -> bool:
    return any(known.first_no <= hole.first_no <= known.last_no for known in log.holes())


def _chunk(asked: Replay, first_no: int, last_no: int, length: int, *, last: bool) -> Piece:
    where = asked.client_no, asked.subscription, asked.broker_id, asked.topic
    return Piece(encode_trusted(Chunk, *where, first_no, last_no, length, last, True))


def _gap(asked: Replay, first_no: int, last_no: int, reason: str) -> Piece:
    log = asked.broker_id, asked.topic
    gap = Gap(asked.subscription, *log, first_no, last_no, reason[:500], asked.client_no)
    return Piece(encode_control(gap))
