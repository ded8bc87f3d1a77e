"""The store in memory: for tests, for trying things out, and as the model that files are held to.

It keeps the same promises but one: it does not outlive its process. A log is one growing buffer
of records with their places beside it; nothing is indexed, rolled or recovered.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import UnsupportedOperation

from busnode.segments.damage import EXPIRED, Flaw, Hole, Mended, Patch
from busnode.segments.mending import check_records
from busnode.segments.records import LogKey
from busnode.segments.retention import Candidate, Expired, RetentionRules, choose_expired
from busnode.segments.steps import Steps
from busnode.segments.store import Cold, Committed, Range, StoreOptions
from busnode.wire.errors import LogPoisoned, SecondWriter
from busnode.wire.frames import read_header
from busnode.wire.ids import BrokerId, LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Bytes, Files


class _Piece:
    """Records appended at one time: the unit of retention here. It is read like a file."""

    __slots__ = ("data", "first_no", "next_no", "stored_us", "utc_us_max")

    def __init__(
        self, data: bytes, first_no: MsgNo, next_no: MsgNo, stored_us: int, utc_us_max: int
    ) -> None:
        self.data = data
        self.first_no = first_no
        self.next_no = next_no
        self.stored_us = stored_us
        self.utc_us_max = utc_us_max

    @property
    def path(self) -> str:
        return "memory"

    def size_bytes(self) -> int:
        return len(self.data)

    def read_into(self, view: memoryview, offset: int) -> int:
        part = self.data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def read_in_memory(self, offset: int, length: int) -> Bytes | None:
        return self.data[offset : offset + length]

    def is_in_memory(self, offset: int, length: int) -> bool:
        return offset + length <= len(self.data)

    async def fetch(self, offset: int, length: int) -> None:
        raise AssertionError(f"{length} bytes at {offset} are in memory")

    def fileno(self) -> int:
        raise UnsupportedOperation("memory has no descriptor")

    def close(self) -> None:
        pass

    def records(self) -> Iterator[tuple[int, MsgNo, MsgNo, int]]:
        """Place, first and last number and utc of each record."""
        at = 0
        with memoryview(self.data) as view:
            while at < len(view):
                header = read_header(view, at)
                yield at, header.first_no, header.last_no, header.utc_us
                at += header.length


class MemoryLog:
    def __init__(self, log_id: LogId, clock: Clock) -> None:
        self.log_id = log_id
        self.pieces: list[_Piece] = []
        self.next_no = MsgNo(1)
        self.committed_no = MsgNo(0)
        self.first_no = MsgNo(1)
        self.poisoned: str | None = None
        self._clock = clock

    @property
    def stored_us(self) -> int:
        return self.pieces[-1].stored_us if self.pieces else 0

    @property
    def size_bytes(self) -> int:
        return sum(len(piece.data) for piece in self.pieces)

    def append(
        self, records: Bytes, count: int, utc_us_max: int, stored_us: int | None = None
    ) -> None:
        if self.poisoned is not None:
            raise LogPoisoned(f"log {self.log_id} takes no more messages: {self.poisoned}")
        next_no = MsgNo(self.next_no + count)
        now_us = self._clock.utc_us()
        stored_us = now_us if stored_us is None else min(now_us, stored_us)
        self.pieces.append(_Piece(bytes(records), self.next_no, next_no, stored_us, utc_us_max))
        self.next_no = next_no

    def take_up_again(self) -> None:
        while self.pieces and self.pieces[-1].first_no > self.committed_no:
            self.pieces.pop()
        self.next_no = MsgNo(self.committed_no + 1)
        self.poisoned = None

    def skip_to(self, next_no: MsgNo) -> None:
        assert next_no >= self.next_no
        self.next_no = next_no
        if not self.pieces:
            self.first_no = next_no

    @property
    def appended_no(self) -> MsgNo:
        """The last number that a message has: a skip alone gives none."""
        return MsgNo(self.pieces[-1].next_no - 1) if self.pieces else self.committed_no

    def reader(self, after_no: int, *, ahead: bool = False) -> "MemoryLogReader":
        return MemoryLogReader(self, after_no, ahead=ahead)

    def first_at(self, utc_us: int) -> MsgNo:
        for piece in self.pieces:
            if piece.first_no > self.committed_no:
                break
            if piece.utc_us_max >= utc_us:
                return next(first for _, first, _, utc in piece.records() if utc >= utc_us)
        return MsgNo(self.committed_no + 1)

    def tail_after(self, size_bytes: int) -> MsgNo:
        for piece in reversed(self.pieces):
            size_bytes -= len(piece.data)
            if size_bytes <= 0:
                return MsgNo(piece.first_no - 1)
        return MsgNo(self.first_no - 1)

    def examine(self, offset: Range) -> list[Hole]:  # noqa: ARG002 - memory does not rot
        return []

    def examine_steps(self, msg_no: int) -> Steps[list[Hole]]:  # noqa: ARG002 - as above
        yield None
        return []

    def mend(self, patches: Sequence[Patch]) -> Steps[list[Mended]]:
        done: list[Mended] = []
        for patch in patches:
            first_no, last_no = check_records(LogKey.of(self.log_id), *patch)
            yield None
            place = bisect_right(self.pieces, patch.hole.first_no, key=lambda each: each.first_no)
            if patch.hole in self.holes():
                after = self.pieces[place]
                utc_us = after.utc_us_max
                self.pieces.insert(
                    place,
                    _Piece(
                        patch.records, first_no, MsgNo(last_no + 1), after.stored_us, utc_us,
                    ),
                )  # fmt: skip
                done.append(Mended(patch.hole, first_no, last_no, None))
        return done

    def holes(self) -> list[Hole]:
        found: list[Hole] = []
        for before, after in zip(self.pieces, self.pieces[1:], strict=False):
            if before.next_no < after.first_no:
                found.append(_missing(before.next_no, after.first_no))
        return found

    def drop_first(self) -> None:
        piece = self.pieces.pop(0)
        self.first_no = self.pieces[0].first_no if self.pieces else piece.next_no


class MemoryLogReader:
    def __init__(self, log: MemoryLog, after_no: int, *, ahead: bool = False) -> None:
        self._log = log
        self._ahead = ahead
        self.next_no = MsgNo(after_no + 1)

    def next_range(self, bytes_max: int) -> Range | Hole | None:
        log = self._log
        if self.next_no > (log.appended_no if self._ahead else log.committed_no):
            return None
        if self.next_no < log.first_no:
            return self._skip(Hole(self.next_no, MsgNo(log.first_no - 1), "", 0, 0, EXPIRED))
        place = bisect_right(log.pieces, self.next_no, key=lambda piece: piece.first_no) - 1
        piece = log.pieces[place]
        if self.next_no >= piece.next_no:
            return self._skip(_missing(self.next_no, log.pieces[place + 1].first_no))
        return self._range(piece, bytes_max)

    def next_in_memory(self, bytes_max: int, data_max: int) -> Range | Hole | Cold | None:
        found = self.next_range(bytes_max)
        if isinstance(found, Range) and found.length <= data_max:
            return replace(found, data=found.file.read_in_memory(found.offset, found.length))
        return found

    def fetched(self, cold: Cold, error: OSError | None) -> None:
        raise AssertionError(f"{cold} was in memory: {error}")

    def suspect(self, found: Range) -> None:
        """Memory can be read; it was the socket."""

    def _skip(self, hole: Hole) -> Hole:
        self.next_no = MsgNo(hole.last_no + 1)
        return hole

    def _range(self, piece: _Piece, bytes_max: int) -> Range:
        start = end = None
        last_no = self.next_no
        for at, _, last, _ in piece.records():
            if last < self.next_no:
                continue
            if start is None:
                start = at
            elif at - start >= bytes_max:
                end = at
                break
            last_no = last
        assert start is not None
        length = (len(piece.data) if end is None else end) - start
        found = Range(piece, start, length, self.next_no, last_no, stored_us=piece.stored_us)
        self.next_no = MsgNo(last_no + 1)
        return found


def _missing(first_no: MsgNo, next_no: MsgNo) -> Hole:
    return Hole(first_no, MsgNo(next_no - 1), "memory", 0, 0, "missing: it was skipped")


class MemoryStore:
    """All logs in this process's memory."""

    def __init__(
        self,
        files: Files,  # noqa: ARG002 - the shape of every storage
        clock: Clock,
        directory: str = "",  # noqa: ARG002
        options: StoreOptions | None = None,  # noqa: ARG002
    ) -> None:
        self._clock = clock
        self._logs: dict[LogId, MemoryLog] = {}
        self._begun: set[BrokerId] = set()

    def begin(self, broker_id: BrokerId) -> None:
        if broker_id in self._begun or any(key.broker_id == broker_id for key in self._logs):
            raise SecondWriter(f"this store already holds logs of {broker_id.hex()}")
        self._begun.add(broker_id)

    def create(self, log_id: LogId) -> MemoryLog:
        log = self._logs.get(log_id)
        if log is None:
            log = self._logs[log_id] = MemoryLog(log_id, self._clock)
        return log

    def get(self, log_id: LogId) -> MemoryLog | None:
        return self._logs.get(log_id)

    def logs(self) -> Iterator[MemoryLog]:
        return iter(list(self._logs.values()))

    def dirty(self) -> bool:
        return any(log.committed_no < log.appended_no for log in self._logs.values())

    async def commit(self) -> Committed:
        moved = [log for log in self._logs.values() if log.committed_no < log.appended_no]
        for log in moved:
            log.committed_no = log.appended_no
        return Committed([*moved])

    def expire(self, rules: RetentionRules, most: int | None = None) -> list[Expired]:
        candidates = (
            Candidate(
                log.log_id, piece.first_no, piece.next_no, len(piece.data), piece.stored_us,
                writable=False,
            )
            for log in self._logs.values()
            for piece in log.pieces
            if piece.next_no <= log.committed_no + 1
        )  # fmt: skip
        done: list[Expired] = []
        chosen = choose_expired(candidates, rules, self._clock.utc_us())
        for candidate, reason in chosen[:most]:
            self._logs[candidate.log_id].drop_first()
            last_no = MsgNo(candidate.next_no - 1)
            size = candidate.size_bytes
            done.append(Expired(candidate.log_id, candidate.first_no, last_no, size, reason))
        return done

    def flaws(self) -> list[Flaw]:
        return []

    def close(self) -> None:
        self._logs.clear()
