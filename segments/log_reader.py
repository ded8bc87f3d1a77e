"""Reading a log that lies in segment files: by number, by time, as ranges."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from busnode.segments.damage import EXPIRED, UNREADABLE, Hole
from busnode.segments.handles import Handles
from busnode.segments.index import Index, Point
from busnode.segments.records import good_header
from busnode.segments.segment import Segment
from busnode.segments.store import Cold, Range
from busnode.segments.survey import Window
from busnode.wire.errors import BadRecord
from busnode.wire.frames import HEADER_BYTES, BatchHeader
from busnode.wire.ids import MsgNo
from busnode.world.files import ReadFile

if TYPE_CHECKING:
    from busnode.segments.log import FileLog

WALK_BYTES: Final = 64 * 1024
"""What a walk from header to header reads at once: a quarter of the distance between points."""

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of this process, not of a disk: what they keep from being read is there."""


class FileLogReader:
    """A place in a log. It knows the byte at which the next record stands, so that going on costs
    no search."""

    _fetched: Cold | Hole | None = None
    """What comes next, after it was fetched or could not be."""

    def __init__(
        self, log: "FileLog", handles: Handles, after_no: int, *, ahead: bool = False
    ) -> None:
        self._log = log
        self._ahead = ahead
        self._handles = handles
        self.next_no = MsgNo(after_no + 1)
        self._segment: Segment | None = None
        self._position = 0

    def next_range(self, bytes_max: int) -> Range | Hole | None:
        try:
            found = self._next(bytes_max, None)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # Which records it is that the disk cannot read is found out, and they are a hole.
            self._log.survey_again(self._log.segment_of(self.next_no))
            found = self._next(bytes_max, None)
        assert not isinstance(found, Cold)
        return found

    def next_in_memory(self, bytes_max: int, data_max: int) -> Range | Hole | Cold | None:
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Hole) and self._segment is not None and self._segment.replaced:
            fetched = None  # it was mended meanwhile
        try:
            match fetched:
                case None:
                    return self._next(bytes_max, data_max)
                case Hole():
                    return self._pass_by(fetched)
                case Cold(found) if self._segment is not None and self._is_here(found):
                    self._position += found.length
                    self.next_no = MsgNo(found.last_no + 1)
                    # It may have been committed since it was found to be cold.
                    return replace(found, stored_us=self._segment.stored_us)
                case Cold():  # where the place to begin is searched for
                    return self._next(bytes_max, None)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            return self._pass_by(self._unsearchable(error.strerror or str(error)))
        except BadRecord as error:
            return self._pass_by(self._unsearchable(error.text))

    def fetched(self, cold: Cold, error: OSError | None) -> None:
        found = cold.range
        if error is None:
            self._fetched = cold
            return
        if error.errno in SHORTAGES:
            raise error
        self.suspect(found)
        self._fetched = _unreadable(
            found.file.path, found.offset, found.length, found.first_no, found.last_no,
            error.strerror or str(error),
        )  # fmt: skip

    def suspect(self, found: Range) -> None:
        segment = self._log.segment_of(found.first_no)
        if segment.path == found.file.path:
            segment.suspect = True

    def _next(self, bytes_max: int, data_max: int | None) -> Range | Hole | Cold | None:
        """What comes next. Waits for the disk when `data_max` is None."""
        log = self._log
        while self.next_no <= (log.appended_no if self._ahead else log.committed_no):
            if self.next_no < log.first_no:
                return self._skip(Hole(self.next_no, _before(log.first_no), "", 0, 0, EXPIRED))
            segment = self._segment
            if segment is None or self.next_no >= segment.next_no or segment.replaced:
                found = self._enter(log.segment_of(self.next_no), wait=data_max is None)
                if found is not None:
                    return found
                continue
            hole = self._next_hole(segment)
            if hole is None or hole.offset > self._position:
                return self._range(segment, bytes_max, hole, data_max)
            self._position = hole.end
            if hole.last_no >= self.next_no:
                return self._skip(replace(hole, first_no=self.next_no))
        return None

    def _enter(self, segment: Segment, *, wait: bool) -> Hole | Cold | None:
        """Go to the record that holds the next number; a hole where there is none."""
        after = self._log.segment_after(segment)
        if self.next_no >= segment.next_no:
            # Only the next segment has more, and it begins later: nobody has what is between.
            assert after is not None
            return self._skip(
                Hole(
                    self.next_no, _before(after.first_no), segment.path, segment.size_bytes, 0,
                    "missing between two segments",
                )
            )  # fmt: skip
        known = (hole for hole in segment.holes if hole.first_no <= self.next_no <= hole.last_no)
        hole = next(known, None)
        if hole is not None:  # there is nothing to search for
            self._position, self._segment = hole.offset, segment
            return None
        if not wait:
            file = self._handles.reading(segment.path)
            offset, length, last_no = _stretch(self._log, segment, self.next_no)
            if not _is_there(segment, file, offset, length):
                return Cold(Range(file, offset, length, self.next_no, last_no))
        self._position = seek(self._log, self._handles, segment, self.next_no)
        self._segment = segment
        return None

    def _next_hole(self, segment: Segment) -> Hole | None:
        here = (self._position, self.next_no - 1)
        return next((hole for hole in segment.holes if (hole.end, hole.last_no) > here), None)

    def _skip(self, hole: Hole) -> Hole:
        self.next_no = MsgNo(hole.last_no + 1)
        return hole

    def _range(
        self, segment: Segment, bytes_max: int, hole: Hole | None, data_max: int | None
    ) -> Range | Cold:
        end = segment.end if self._ahead else self._log.durable_end(segment)
        if hole is not None:
            end = end._replace(msg_no=hole.first_no, position_bytes=hole.offset)
        if end.position_bytes - self._position > bytes_max:
            end = _shorter(segment, self._position, bytes_max, end)
        file = self._handles.reading(segment.path)
        length = end.position_bytes - self._position
        last_no = MsgNo(end.msg_no - 1)
        data, there = None, True
        if data_max is not None:
            if length <= data_max:
                data = file.read_in_memory(self._position, length)
                there = data is not None
            else:
                there = _is_there(segment, file, self._position, length)
        found = Range(file, self._position, length, self.next_no, last_no, data, segment.stored_us)
        if not there:
            return Cold(found)
        self._position = end.position_bytes
        self.next_no = MsgNo(end.msg_no)
        return found

    def _is_here(self, found: Range) -> bool:
        segment = self._segment
        return (
            segment is not None
            and segment.path == found.file.path
            and found.offset == self._position
        )

    def _unsearchable(self, text: str) -> Hole:
        """The next number cannot be found: then nor can any up to the next point."""
        segment = self._log.segment_of(self.next_no)
        offset, length, last_no = _stretch(self._log, segment, self.next_no)
        text = f"{text}, at byte {offset} or behind it"
        return _unreadable(segment.path, offset, length, self.next_no, last_no, text)

    def _pass_by(self, hole: Hole) -> Hole:
        """Go on behind what cannot be read."""
        segment = self._log.segment_of(hole.first_no)
        self._segment = segment if segment.path == hole.path else None
        self._position = hole.end
        return self._skip(hole)


def _before(msg_no: int) -> MsgNo:
    return MsgNo(msg_no - 1)


def _is_there(segment: Segment, file: ReadFile, offset: int, length: int) -> bool:
    return not segment.suspect and file.is_in_memory(offset, length)


def _unreadable(
    path: str, offset: int, length: int, first_no: MsgNo, last_no: MsgNo, text: str
) -> Hole:
    return Hole(first_no, last_no, path, offset, length, f"{UNREADABLE}: {text}")


def _stretch(log: "FileLog", segment: Segment, msg_no: int) -> tuple[int, int, MsgNo]:
    """Where a number is searched for: byte, length and last number. From one point to the next, or
    up to damage that is known."""
    start = segment.index.before_number(msg_no).position_bytes
    end = log.durable_end(segment)
    point = segment.index.after_position(start)
    if point is not None and point.position_bytes < end.position_bytes:
        end = point
    for hole in segment.holes:
        if hole.first_no > msg_no and start < hole.offset < end.position_bytes:
            end = end._replace(msg_no=hole.first_no, position_bytes=hole.offset)
            break
    return start, end.position_bytes - start, MsgNo(end.msg_no - 1)


def _shorter(segment: Segment, position: int, bytes_max: int, end: Point) -> Point:
    """The last point that keeps the range within `bytes_max`, or the first behind `position`."""
    point = segment.index.before_position(position + bytes_max)
    if point.position_bytes <= position:
        point = segment.index.after_position(position) or end
    return point if point.position_bytes < end.position_bytes else end


def seek(log: "FileLog", handles: Handles, segment: Segment, msg_no: int) -> int:
    """The byte at which the record that holds `msg_no` stands, or the damage that took it."""

    def begin(index: Index) -> Point:
        return index.before_number(msg_no)

    def reached(header: BatchHeader) -> bool:
        return header.last_no >= msg_no

    return _walk(log, handles, segment, begin, reached).position_bytes


def first_number_at(log: "FileLog", handles: Handles, segment: Segment, utc_us: int) -> MsgNo:
    """The first number of a segment from which on all that is not older than a moment is found.

    If nothing is found though something was there, it is where the first damage begins.
    """

    def begin(index: Index) -> Point:
        return index.before_time(utc_us)

    def reached(header: BatchHeader) -> bool:
        return header.utc_us >= utc_us

    found = _walk(log, handles, segment, begin, reached)
    if found.msg_no > log.durable_end(segment).msg_no - 1:
        lost = (hole.first_no for hole in segment.holes if not hole.costs_nothing)
        return next(lost, MsgNo(found.msg_no))
    return MsgNo(found.msg_no)


class _Place(NamedTuple):
    position_bytes: int
    msg_no: int


def _walk(
    log: "FileLog",
    handles: Handles,
    segment: Segment,
    begin: Callable[[Index], Point],
    reached: Callable[[BatchHeader], bool],
) -> _Place:
    """Go from header to header until one is reached: where it stands, and its first number.

    If damage stands right before it, then where that begins: there may be two holes in a row, and a
    reader names each. Damage that was not known is examined first.
    """
    end = log.durable_end(segment)
    window = Window(handles.reading(segment.path), end.position_bytes, WALK_BYTES)
    place = _Place(*begin(segment.index)[1::-1])
    damage: _Place | None = None
    examined = False
    while True:
        position, number = place
        if position >= end.position_bytes:
            if place == (end.position_bytes, end.msg_no) or examined:
                break
            # A length, which no hash covers, has led behind the end.
            log.survey_again(segment)
            examined = True
            place, damage = _Place(*begin(segment.index)[1::-1]), None
            continue
        hole = next((h for h in segment.holes if (h.offset, h.first_no) == place), None)
        if hole is not None:
            damage = damage or place
            place = _Place(hole.end, hole.last_no + 1)
            continue
        at = position - window.base
        if not 0 <= at <= window.filled - HEADER_BYTES:
            window.load(position, WALK_BYTES)
            at = 0
        header = good_header(window.view, at, window.filled, log.key)
        if header is None or header.first_no != number:
            if examined:
                raise BadRecord(f"{segment.path} at byte {position} does not read twice the same")
            log.survey_again(segment)
            examined = True
            place, damage = _Place(*begin(segment.index)[1::-1]), None
            continue
        if reached(header):
            return damage or place
        damage = None
        place = _Place(position + header.length, header.last_no + 1)
    return damage or _Place(end.position_bytes, end.msg_no)
