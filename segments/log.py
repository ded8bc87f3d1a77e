"""A log in segment files: the writing half. `log_reader` is the reading half."""

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from busnode.segments.damage import Hole, Mended, Patch
from busnode.segments.handles import Handles
from busnode.segments.index import POINT_EVERY_BYTES, Index, Point, encode_point
from busnode.segments.log_reader import FileLogReader, first_number_at
from busnode.segments.mending import SCRATCH, mend_steps
from busnode.segments.quarantine import release
from busnode.segments.records import LogKey, Scanned
from busnode.segments.recovery import write_index
from busnode.segments.segment import (
    RECORDS_AT,
    Segment,
    SegmentHeader,
    SegmentName,
    encode_segment_header,
    index_path,
)
from busnode.segments.steps import Steps, work_off
from busnode.segments.store import Range, StoreOptions
from busnode.segments.survey import survey_steps
from busnode.wire.errors import LogPoisoned
from busnode.wire.ids import LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Bytes, Files

_BY_FIRST_NO: Final = attrgetter("first_no")


class Uncommitted:
    """What one commit must sync for one log, and how far the log is durable after it."""

    __slots__ = ("directory", "ends", "log", "paths")

    def __init__(self, log: "FileLog", segments: list[Segment], directory: str | None) -> None:
        self.log = log
        self.paths = [segment.path for segment in segments]
        self.directory = directory
        """To be synced too when it has the name of a new file of this log."""
        self.ends = [(segment, segment.end, segment.pending) for segment in segments]
        for segment in segments:
            segment.pending = []


@dataclass(slots=True)
class Pending:
    """What waits for the next commit; ordered, so that the same run does the same things."""

    logs: "dict[FileLog, None]" = field(default_factory=dict["FileLog", None])


class FileLog:
    """One log of a `FileStore`, which owns it."""

    def __init__(
        self,
        log_id: LogId,
        log_no: int,
        directory: str,
        files: Files,
        handles: Handles,
        pending: Pending,
        clock: Clock,
        options: StoreOptions,
    ) -> None:
        self.log_id = log_id
        self.log_no = log_no
        self.key = LogKey.of(log_id)
        self.segments: list[Segment] = []
        self.next_no = MsgNo(1)
        self.committed_no = MsgNo(0)
        self.committed_bytes = 0
        """The durable end of the last segment that has a durable end."""
        self.committed_segment: Segment | None = None
        self.poisoned: str | None = None
        self.directory = directory
        self._files = files
        self._handles = handles
        self._pending = pending
        self._clock = clock
        self._options = options
        self.active: Segment | None = None
        """Where the next message goes, unless it is full."""
        self._unsynced: list[Segment] = []
        self._unnamed = False
        """Whether a new file of this log has a name that is not durable yet."""
        self._committing = False
        """Whether a commit is under way that has taken something of this log."""

    # Taking up ------------------------------------------------------------------------------------

    def adopt(self, segments: list[Segment]) -> None:
        """Start with what recovery found. Later appends go to a file of their own."""
        self.segments = segments
        last = segments[-1]
        self.next_no = last.next_no
        self.committed_no = MsgNo(last.next_no - 1)
        self.committed_bytes = last.size_bytes
        self.committed_segment = last

    @property
    def first_no(self) -> MsgNo:
        return self.segments[0].first_no if self.segments else self.next_no

    @property
    def stored_us(self) -> int:
        return self.segments[-1].stored_us if self.segments else 0

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # Writing --------------------------------------------------------------------------------------

    def append(
        self, records: Bytes, count: int, utc_us_max: int, stored_us: int | None = None
    ) -> None:
        if self.poisoned is not None:
            raise self._refusal()
        length = len(records)
        segment = self.active
        try:
            if segment is None or self._is_full(segment, length):
                segment = self._roll()
            file = self._handles.appending(segment.path)
            if file.size_bytes != segment.size_bytes:
                # Somebody else has written or cut it. What we would write is not where we think.
                raise OSError(f"{segment.path} has changed under this process")
            file.append(records)
        except OSError as error:
            self.poison(f"append failed: {error}")
            raise self._refusal() from error
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
            self._handles.pin(segment.path)
            self._pending.logs[self] = None
        if segment.size_bytes - segment.pointed_bytes >= POINT_EVERY_BYTES:
            segment.pending.append(segment.end)
            segment.pointed_bytes = segment.size_bytes
        segment.size_bytes += length
        if utc_us_max > segment.utc_us_max:
            segment.utc_us_max = utc_us_max
        if stored_us is None:
            segment.copied_us = None
        elif segment.copied_us is not None and stored_us > segment.copied_us:
            segment.copied_us = stored_us
        self.next_no = segment.next_no = MsgNo(self.next_no + count)

    def _is_full(self, segment: Segment, length: int) -> bool:
        if segment.empty:
            return False
        if segment.size_bytes + length > self._options.segment_bytes_max:
            return True
        age_s = (self._clock.utc_us() - segment.created_us) / 1e6
        return age_s > self._options.segment_age_s_max

    def _roll(self) -> Segment:
        """Begin a new segment. The one before is finished; the next commit seals its index."""
        self._seal(self.active)
        now_us = self._clock.utc_us()
        path = f"{self.directory}/{SegmentName(self.log_no, self.next_no)}"
        if self._files.exists(path):
            # Left without a record, by retention or by a process that died while making it.
            self._put_aside(path)
            if self.segments and self.segments[-1].path == path:
                self.segments.pop()
        if self._files.exists(index_path(path)):
            # Of a segment that is gone: what it says of durable bytes is not true of this one.
            self._files.remove(index_path(path))
        segment = Segment(path, self.next_no, now_us, RECORDS_AT, self.next_no)
        segment.stored_us = now_us
        segment.index.add(segment.end)
        header = SegmentHeader(self.log_id, self.next_no, now_us, self.log_no)
        self._handles.appending(path).append(encode_segment_header(header))
        self._unnamed = True
        self.segments.append(segment)
        self.active = segment
        return segment

    def _put_aside(self, path: str) -> None:
        """Keep a file out of the way, under a name that nothing has. After a power loss a file may
        still have two names, and renaming one to the other would do nothing."""
        aside = (f"{path}.torn{n}" for n in itertools.count(1))
        self._files.rename(path, next(p for p in aside if not self._files.exists(p)))
        self._handles.forget([path])

    def take_up_again(self) -> None:
        if self._committing or self.poisoned is None:
            raise self._refusal()
        # Of the last file that has something durable, what lies behind that stays where it is:
        # recovery does not look behind the beginning of the next file. Files without are put aside,
        # the last one first, so that a crash in between leaves no hole. The commit of what comes
        # next makes it durable; only between two it must be so at once, and nearly always there is
        # one at most.
        try:
            count = 0
            while self.segments and self.segments[-1].first_no > self.committed_no:
                if count:
                    self._files.sync_directory(self.directory)
                self._put_aside(self.segments[-1].path)
                self.segments.pop()
                count += 1
        except OSError as error:
            raise LogPoisoned(f"log {self.log_id} cannot be taken up again: {error}") from error
        if self.segments:
            last = self.segments[-1]
            self._end_where_durable(last)
            self._write_index(last, [last.end])
        self._unnamed = False
        self._pending.logs.pop(self, None)
        self.next_no = MsgNo(self.committed_no + 1)
        self.poisoned = None

    def _end_where_durable(self, last: Segment) -> None:
        """What lies behind that in the file of a log that takes no more is no part of the log."""
        if last is self.committed_segment:
            last.size_bytes = self.committed_bytes
        last.next_no = MsgNo(self.committed_no + 1)
        last.pending = []

    def _seal(self, segment: Segment | None) -> None:
        """Write down that all of a finished segment is durable, if it is; else its commit does."""
        if segment is None or segment is not self.committed_segment:
            return
        end = segment.end
        if self.committed_bytes == end.position_bytes > segment.index[-1].position_bytes:
            self._write_index(segment, [end])

    def skip_to(self, next_no: MsgNo) -> None:
        assert next_no >= self.next_no
        if next_no > self.next_no:
            self._seal(self.active)
            self.active = None
            self.next_no = next_no

    def poison(self, reason: str) -> None:
        """Take no more, for good: nobody knows what the failed write or sync has left behind."""
        if self.poisoned is None:
            self.poisoned = reason
        for segment in self._unsynced:
            self._handles.unpin(segment.path)
        self._unsynced = []
        self.active = None

    def _refusal(self) -> LogPoisoned:
        return LogPoisoned(f"log {self.log_id} takes no more messages: {self.poisoned}")

    # Committing -----------------------------------------------------------------------------------

    def take_uncommitted(self) -> Uncommitted:
        """What is appended and not durable yet, for one commit."""
        directory = self.directory if self._unnamed else None
        uncommitted = Uncommitted(self, self._unsynced, directory)
        self._committing = True
        self._unsynced = []
        self._unnamed = False
        return uncommitted

    def committed(self, done: Uncommitted, now_us: int) -> None:
        """The commit has synced it: readers may see it, and the index may say so."""
        self._committing = False
        for path in done.paths:
            self._handles.unpin(path)
        for segment, end, pending in done.ends:
            copied_us = segment.copied_us
            stored_us = now_us if copied_us is None else min(now_us, copied_us)
            segment.stored_us = stored_us
            points = pending
            if segment is not self.active:
                points = [*pending, end]
            if points:
                self._write_index(segment, [p._replace(stored_us=stored_us) for p in points])
        segment, end, _ = done.ends[-1]
        self.committed_no = MsgNo(end.msg_no - 1)
        self.committed_bytes = end.position_bytes
        self.committed_segment = segment

    def not_committed(self, done: Uncommitted, reason: str) -> None:
        self._committing = False
        for path in done.paths:
            self._handles.unpin(path)
        self.poison(reason)

    def _write_index(self, segment: Segment, points: list[Point]) -> None:
        """Add points to the index. Losing them costs a scan, so a failure is no more than noted."""
        for point in points:
            segment.index.add(point)
        seed = self.key.seed ^ segment.first_no
        self._append_index(segment, b"".join(encode_point(point, seed) for point in points))

    def _append_index(self, segment: Segment, entries: bytes) -> None:
        if not segment.indexed:
            return
        path = index_path(segment.path)
        try:
            self._handles.appending(path).append(entries)
        except OSError:
            segment.indexed = False
        if segment is not self.active:
            self._handles.forget([path])

    def close(self) -> None:
        """Write down that the last segment is durable, so that the next start reads nothing."""
        if self.poisoned is None:
            self._seal(self.active)

    # Reading --------------------------------------------------------------------------------------

    def reader(self, after_no: int, *, ahead: bool = False) -> FileLogReader:
        return FileLogReader(self, self._handles, after_no, ahead=ahead)

    @property
    def appended_no(self) -> MsgNo:
        return MsgNo(self.segments[-1].next_no - 1) if self.segments else MsgNo(0)

    def first_at(self, utc_us: int) -> MsgNo:
        for segment in self.segments:
            if segment.first_no > self.committed_no:
                break
            if segment.utc_us_max >= utc_us:
                number = first_number_at(self, self._handles, segment, utc_us)
                return self._damage_before(number)
        return self._damage_before(MsgNo(self.committed_no + 1))

    def _damage_before(self, number: MsgNo) -> MsgNo:
        """Where damage begins that ends right before a number; that number when there is none.

        Nobody knows how old damaged records were: they may be what was looked for.
        """
        damaged = (hole for hole in self.holes() if hole.length and hole.last_no + 1 == number)
        return next((hole.first_no for hole in damaged), number)

    def tail_after(self, size_bytes: int) -> MsgNo:
        for segment in reversed(self.segments):
            length = segment.size_bytes - RECORDS_AT
            if length >= size_bytes:
                point = segment.index.before_position(segment.size_bytes - size_bytes)
                return MsgNo(point.msg_no - 1)
            size_bytes -= length
        return MsgNo(self.first_no - 1)

    def segment_of(self, msg_no: int) -> Segment:
        """The segment that holds a number, or the last before it."""
        place = bisect_right(self.segments, msg_no, key=_BY_FIRST_NO) - 1
        return self.segments[max(place, 0)]

    def segment_after(self, segment: Segment) -> Segment | None:
        place = bisect_right(self.segments, segment.first_no, key=_BY_FIRST_NO)
        return self.segments[place] if place < len(self.segments) else None

    def durable_end(self, segment: Segment) -> Point:
        """How far a segment may be read."""
        if segment is self.committed_segment:
            return segment.end._replace(
                msg_no=self.committed_no + 1, position_bytes=self.committed_bytes
            )
        return segment.end

    def examine(self, offset: Range) -> list[Hole]:
        if offset.first_no < self.first_no:
            return []  # it has expired since
        return self.survey_again(self.segment_of(offset.first_no))

    def examine_steps(self, msg_no: int) -> Steps[list[Hole]]:
        if msg_no < self.first_no or not self.segments:
            return []
        return (yield from self._survey_again(self.segment_of(msg_no)))

    def survey_again(self, segment: Segment) -> list[Hole]:
        """Check all records of a segment; the holes that were not known before."""
        return work_off(self._files, self._survey_again(segment))

    def _survey_again(self, segment: Segment) -> Steps[list[Hole]]:
        """All records: what is found takes the place of all that was known. Damage grows, and runs
        into damage that is known; and an index may be wrong about where records stand."""
        end = self.durable_end(segment)
        start = Point(segment.first_no, RECORDS_AT, 0, segment.stored_us)
        file = self._handles.reading(segment.path)
        begun = Scanned(RECORDS_AT, start.msg_no, 0)
        found = yield from survey_steps(file, end.position_bytes, self.key, begun, end)
        if not self.holds(segment):
            return []  # it has expired, or was mended
        points = [start, *(point._replace(stored_us=segment.stored_us) for point in found.points)]
        if found.next_no < end.msg_no:
            first, last = MsgNo(found.next_no), MsgNo(end.msg_no - 1)
            reason = "the file is cut"
            found.holes.append(Hole(first, last, segment.path, end.position_bytes, 0, reason))
            points.append(end)
        known = {(hole.offset, hole.first_no, hole.last_no) for hole in segment.holes}
        new = [h for h in found.holes if (h.offset, h.first_no, h.last_no) not in known]
        if new or len(found.holes) != len(segment.holes):
            segment.holes = found.holes
            segment.index = Index(points)
            self._handles.forget([index_path(segment.path)])
            if segment.indexed:
                write_index(self._files, segment, self.key)
        return [hole for hole in new if not hole.costs_nothing]

    def holes(self) -> list[Hole]:
        found: list[Hole] = []
        before: Segment | None = None
        for segment in self.segments:
            if before is not None and before.next_no < segment.first_no:
                found.append(missing_between(before, segment))
            found += [hole for hole in segment.holes if not hole.costs_nothing]
            before = segment
        return found

    def missing(self) -> list[Hole]:
        """Of the holes those that lie between two segments."""
        pairs = zip(self.segments, self.segments[1:], strict=False)
        return [missing_between(a, b) for a, b in pairs if a.next_no < b.first_no]

    # Mending --------------------------------------------------------------------------------------

    def mend(self, patches: Sequence[Patch]) -> Steps[list[Mended]]:
        return mend_steps(self, self._files, self._handles, patches)

    def holds(self, segment: Segment) -> bool:
        return any(each is segment for each in self.segments)

    def settle(self, segment: Segment) -> bool:
        """Append no more to a segment; whether all of it is durable. What a log that takes no more
        has written behind its durable end never will be."""
        if segment is self.active:
            self._seal(segment)
            self.active = None
        is_last = segment is self.committed_segment is self.segments[-1]
        if is_last and self.poisoned is not None and not self._committing:
            self._end_where_durable(segment)
        waiting = any(each is segment for each in self._unsynced)
        return segment.next_no <= self.committed_no + 1 and not waiting

    def replaced(self, old: Segment, new: Segment) -> None:
        """A segment was mended: its file is another one now, and readers seek again."""
        old.replaced = True
        self.segments[next(i for i, each in enumerate(self.segments) if each is old)] = new
        if self.committed_segment is old:
            self.committed_segment = new
            self.committed_bytes = new.size_bytes

    def inserted(self, segment: Segment) -> None:
        """A segment that was missing is there."""
        insort(self.segments, segment, key=_BY_FIRST_NO)

    # Retention ------------------------------------------------------------------------------------

    def drop_first(self) -> None:
        """Remove the oldest segment. Before a log loses its last one it gets an empty one, so that
        the store still knows how far it went and a cursor in it is not unknown."""
        segment = self.segments[0]
        if len(self.segments) == 1 and not segment.empty:
            self.active = None
            successor = self._roll()
            try:
                self._handles.appending(successor.path).sync()
                self._files.sync_directory(self.directory)
            except OSError as error:
                self.poison(f"sync failed: {error}")
                raise
        self._handles.forget([segment.path, index_path(segment.path)])
        release(self._files, segment.path)
        self._files.remove(segment.path)
        self.segments.pop(0)
        if self._files.exists(segment.path + SCRATCH):  # the power went while it was mended
            self._files.remove(segment.path + SCRATCH)
        if self.committed_segment is segment:
            self.committed_segment = None
        if self._files.exists(index_path(segment.path)):
            self._files.remove(index_path(segment.path))


def missing_between(before: Segment, after: Segment) -> Hole:
    """The numbers that neither of two neighbours has."""
    first, last = before.next_no, MsgNo(after.first_no - 1)
    return Hole(first, last, before.path, before.size_bytes, 0, "missing between two segments")
