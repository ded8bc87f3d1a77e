"""Logs in the data directories of nodes, which may be down or running.

A log may lie in several of them: its origin's, and those of its mirrors. Each of its messages is
read once, from the first directory that has it; what that one lacks, or turns out to be damaged
when it is read, is taken from the next. With `every_copy` each copy is a log of its own instead.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from busnode.pipeline.logs import Cursors, Extent, LogRange, equal_spans
from busnode.pipeline.record_rows import Span, Stretch
from busnode.pipeline.segment_files import SegmentFile, SegmentReading
from busnode.pipeline.segment_pieces import Copy, begins_by, overlapping, pieces_of
from busnode.segments.bucket import LOGS, Bucket, broker_ids, check_data_directory
from busnode.segments.damage import EXPIRED
from busnode.segments.records import LogKey
from busnode.segments.recovery import recover_segment
from busnode.segments.segment import RECORDS_AT, Segment, SegmentName, index_path
from busnode.wire.errors import DataLost
from busnode.wire.ids import BrokerId, LogId, Pattern
from busnode.wire.topics import matches
from busnode.world.files import Files, read_whole
from busnode.world.real_files import RealFiles

NAME_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileRange(LogRange):
    """Where a range lies: the files that have some of it, the best first."""

    files: tuple[SegmentFile, ...]


class _Known(NamedTuple):
    """What was found in a segment, for as long as its files stay as they are."""

    stamp: tuple[int, ...]
    segment: Segment


class Directories:
    """The logs in data directories that match a pattern."""

    def __init__(
        self,
        directories: Sequence[str],
        pattern: Pattern,
        *,
        tolerant: bool = False,
        every_copy: bool = False,
    ) -> None:
        """Raises NotADataDirectory at once for a folder that is none."""
        self._directories = list(directories)
        self._pattern = pattern
        self._tolerant = tolerant
        self._every_copy = every_copy
        self._files: Files = RealFiles()
        self._known: dict[str, _Known] = {}
        self._copies: dict[LogId, list[Copy]] = {}
        for directory in self._directories:
            check_data_directory(self._files, directory)

    def __getstate__(self) -> dict[str, object]:
        """Tasks read what they are given and need to know nothing else."""
        return {**self.__dict__, "_known": {}, "_copies": {}}

    # Planning -------------------------------------------------------------------------------------

    def extents(self) -> dict[LogId, Extent]:
        self._copies = {}
        known: dict[str, _Known] = {}
        for directory in self._directories:
            holder = holder_of(self._files, directory)
            for broker_id in broker_ids(self._files, directory):
                path = f"{directory}/{LOGS}/{broker_id.hex()}"
                for log_id, names in self._bucket(path, broker_id).items():
                    if not matches(self._pattern, log_id.topic):
                        continue
                    segments = self._segments(path, LogKey.of(log_id), names, known)
                    if segments:
                        self._copies.setdefault(log_id, []).append(Copy(holder, segments))
        self._known = known
        return {
            log_id: Extent(
                min(copy.segments[0].first_no for copy in copies),
                max(copy.segments[-1].next_no for copy in copies) - 1,
            )
            for log_id, copies in self._copies.items()
        }

    def _bucket(self, path: str, broker_id: BrokerId) -> dict[LogId, list[SegmentName]]:
        bucket = Bucket(self._files, path, broker_id)
        for flaw in bucket.flaws:
            file = self._files.open(flaw.path)
            size_bytes = file.size_bytes()
            file.close()
            if size_bytes > RECORDS_AT and not self._tolerant:
                raise DataLost(f"{flaw.path} has {size_bytes} bytes: {flaw.reason}")
        return bucket.logs

    def _segments(
        self, path: str, key: LogKey, names: list[SegmentName], known: dict[str, _Known]
    ) -> list[Segment]:
        """Those that are still there; of what has not changed nothing is read again."""
        found: list[Segment] = []
        for name in names:
            segment_path = f"{path}/{name}"
            try:
                stamp = self._stamp(segment_path)
                kept = self._known.get(segment_path)
                if kept is None or kept.stamp != stamp:
                    segment = recover_segment(self._files, segment_path, key, name.first_no)
                    kept = _Known(stamp, segment)
            except FileNotFoundError:
                continue  # retention was faster
            known[segment_path] = kept
            found.append(kept.segment)
        return found

    def _stamp(self, path: str) -> tuple[int, ...]:
        """By which a change of a segment or of its index is known."""
        stamp: list[int] = []
        for each in (path, index_path(path)):
            if each != path and not self._files.exists(each):
                continue
            file = self._files.open(each)
            stamp += [file.size_bytes(), self._files.modified_us(each)]
            file.close()
        return tuple(stamp)

    def at_time(self, utc_us: int) -> Cursors:
        """By the indexes alone: what is older and lies behind a point's distance is left out later,
        message by message."""
        found: Cursors = {}
        for log_id, extent in self.extents().items():
            firsts = [
                next(
                    (
                        segment.index.before_time(utc_us).msg_no
                        for segment in copy.segments
                        if segment.utc_us_max >= utc_us
                    ),
                    extent.last_no + 1,
                )
                for copy in self._copies[log_id]
            ]
            found[log_id] = max(min(firsts), extent.first_no) - 1
        return found

    def closed_ends(self, before_us: int) -> Cursors:
        """Of what `extents` has found: the last message of each log in a segment that has a
        successor, or that was last written to before a moment. 0 where there is none."""
        found: Cursors = {}
        for log_id, copies in self._copies.items():
            ends = [0]
            for copy in copies:
                for place, segment in enumerate(copy.segments):
                    is_last = place + 1 == len(copy.segments)
                    if not is_last or self._files.modified_us(segment.path) < before_us:
                        ends.append(segment.next_no - 1)
            found[log_id] = max(ends)
        return found

    def ranges(self, log_id: LogId, span: Span, rows_max: int | None) -> list[LogRange]:
        if not self._copies:
            self.extents()
        copies = self._copies.get(log_id, [])
        if self._every_copy:
            return [part for copy in copies for part in self._cover(log_id, span, [copy], rows_max)]
        return self._cover(log_id, span, copies, rows_max)

    def _cover(
        self, log_id: LogId, span: Span, copies: list[Copy], rows_max: int | None
    ) -> list[LogRange]:
        pieces = [piece for copy in copies for piece in pieces_of(copy, rows_max is None)]
        if self._every_copy:
            first_no = max(span.first_no, min((piece.first_no for piece in pieces), default=1))
            last_no = min(span.last_no, max((piece.last_no for piece in pieces), default=0))
            span = Span(first_no, last_no, span.since_us, span.before_us)
        if rows_max is not None:
            self._check_covered(log_id, span, pieces, copies)
            return [
                FileRange(log_id, part, overlapping(pieces, part))
                for part in equal_spans(span, rows_max)
            ]
        return list(self._chosen(log_id, span, pieces, copies))

    def _chosen(
        self, log_id: LogId, span: Span, pieces: list[SegmentFile], copies: list[Copy]
    ) -> Iterator[FileRange]:
        """A part for each piece that is the first to have a number, with what else has some of it.

        All pieces are gone over once: there are some ten thousand in a large archive.
        """
        rank = {piece: place for place, piece in enumerate(pieces)}
        ahead = deque(sorted(pieces, key=lambda each: each.first_no))
        here: list[SegmentFile] = []
        number = span.first_no
        while number <= span.last_no:
            here = [each for each in here if each.last_no >= number]
            while ahead and ahead[0].first_no <= number:
                here.append(ahead.popleft())
            here = [each for each in here if each.last_no >= number]
            if not here:
                after_no = min(ahead[0].first_no if ahead else span.last_no + 1, span.last_no + 1)
                self._missing(log_id, number, after_no - 1, copies)
                number = after_no
                continue
            best = min(here, key=rank.__getitem__)
            last_no = min(best.last_no, span.last_no)
            others = [each for each in here if each is not best]
            others += takewhile(partial(begins_by, last_no), ahead)
            part = Span(number, last_no, span.since_us, span.before_us)
            yield FileRange(log_id, part, (best, *others))
            number = last_no + 1

    def _check_covered(
        self, log_id: LogId, span: Span, pieces: list[SegmentFile], copies: list[Copy]
    ) -> None:
        number = span.first_no
        for piece in sorted(pieces, key=lambda each: each.first_no):
            if number > span.last_no:
                return
            if piece.first_no > number:
                self._missing(log_id, number, min(piece.first_no - 1, span.last_no), copies)
            number = max(number, piece.last_no + 1)
        if number <= span.last_no:
            self._missing(log_id, number, span.last_no, copies)

    def _missing(self, log_id: LogId, first_no: int, last_no: int, copies: list[Copy]) -> None:
        """No file has a range: say where it should be."""
        if self._tolerant:
            return
        reasons = [
            str(hole)
            for copy in copies
            for segment in copy.segments
            for hole in segment.holes
            if hole.first_no <= last_no and hole.last_no >= first_no
        ]
        firsts = [copy.segments[0].first_no for copy in copies]
        if not reasons and firsts and last_no < min(firsts):
            reasons = [EXPIRED]
        raise DataLost(
            f"messages {first_no}–{last_no} of {log_id.topic} ({log_id.broker_id.hex()}) are in "
            f"none of {', '.join(self._directories)}: {'; '.join(reasons) or 'no file has them'}"
        )

    # Reading --------------------------------------------------------------------------------------

    def read(self, part: LogRange) -> Iterator[Stretch]:
        assert isinstance(part, FileRange)
        return SegmentReading(
            self._files, part.log_id, part.files, part.span.first_no, part.span.last_no,
            tolerant=self._tolerant,
        ).stretches()  # fmt: skip


def holder_of(files: Files, directory: str) -> str:
    """The name of the node whose directory it is; that of the folder when it does not say."""
    path = f"{directory}/node.json"
    try:
        name = json.loads(read_whole(files, path, NAME_BYTES_MAX))["name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    return name if isinstance(name, str) and name else directory.rstrip("/").rpartition("/")[2]
