"""Reading a range of a log from segment files, whoever's copy each of them is.

The files are only looked at, also while a node writes them: nothing is locked and nothing changed.
So a file may be gone, or another one may have its name, since the range was planned; every record
is verified, and where one cannot be had from one copy it is taken from the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from busnode.pipeline.record_rows import Stretch
from busnode.segments.records import LogKey, Scanned, diagnose, good_header, scan
from busnode.segments.recovery import recover_segment
from busnode.segments.survey import Window
from busnode.wire.errors import DataLost
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.ids import LogId, MsgNo
from busnode.world.files import Files, ReadFile

STRETCH_BYTES: Final = 2 * 1024 * 1024
"""What is read at once: some ten thousand small messages."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file that held a range of a log when it was looked at."""

    holder: str
    path: str
    segment_no: int
    """The first number of the segment, which its name says."""
    first_no: int
    last_no: int
    position_bytes: int
    """Where the record stood that `first_no` is in, or one before it; it may have moved since."""
    end_bytes: int
    """Where the record behind `last_no` stood, or where the file ended."""


class _Bad(Exception):
    """A file does not have the next number; the text says why."""


class SegmentReading:
    """Reads one range, from file to file."""

    def __init__(
        self,
        files: Files,
        log_id: LogId,
        candidates: Sequence[SegmentFile],
        first_no: int,
        last_no: int,
        *,
        tolerant: bool,
    ) -> None:
        """The candidates may overlap; of those that hold a number the first that has it is read."""
        self._files = files
        self._log_id = log_id
        self._key = LogKey.of(log_id)
        self._candidates = candidates
        self._next_no = first_no
        self._last_no = last_no
        self._tolerant = tolerant
        self._damaged: set[str] = set()
        """Files of which more is known than their indexes say."""

    def stretches(self) -> Iterator[Stretch]:
        """All of the range. DataLost for a number that no file has, unless it is tolerant: then
        what cannot be read is left out."""
        while self._next_no <= self._last_no:
            began_no = self._next_no
            reasons: list[str] = []
            for file in self._candidates:
                if not file.first_no <= self._next_no <= file.last_no:
                    continue
                try:
                    yield from self._read(file)
                except _Bad as bad:
                    reasons.append(str(bad))
                    self._damaged.add(file.path)
                if self._next_no > began_no:
                    break
            else:
                self._give_up(reasons)

    def _read(self, file: SegmentFile) -> Iterator[Stretch]:
        """Records of one file from the next number on, to the end of the range or to damage."""
        try:
            opened = self._files.open(file.path)
            try:
                yield from self._records(file, opened)
            finally:
                opened.close()
        except FileNotFoundError:
            raise _Bad(f"{file.path} is gone: retention has dropped it") from None
        except OSError as error:
            raise _Bad(f"{file.path} cannot be read: {error.strerror or error}") from error

    def _records(self, file: SegmentFile, opened: ReadFile) -> Iterator[Stretch]:
        size_bytes = opened.size_bytes()
        position, number = self._seek(file, opened, size_bytes)
        last_no = min(self._last_no, file.last_no)
        while number <= last_no:
            # A window of its own for each stretch: who gets it keeps it.
            window = Window(opened, size_bytes, STRETCH_BYTES, tolerant=True)
            planned = file.end_bytes - position
            window.load(position, min(STRETCH_BYTES, planned if planned > 0 else STRETCH_BYTES))
            begun = Scanned(0, number, 0)
            good = scan(window.view, window.filled, window.filled, self._key, begun)
            if not good.at and window.load_record(0):
                good = scan(window.view, window.filled, window.filled, self._key, begun)
            if not good.at:
                reason = diagnose(window.view, 0, window.filled, self._key, number)
                raise _Bad(f"{file.path} at byte {position}: {reason}")
            position, number = position + good.at, good.next_no
            if number > self._next_no:
                first_no, self._next_no = self._next_no, number
                yield Stretch(file.holder, window.view[: good.at], first_no)

    def _seek(self, file: SegmentFile, opened: ReadFile, size_bytes: int) -> tuple[int, int]:
        """Byte and number of a record at or before the one that holds the next number."""
        window = Window(opened, size_bytes, HEADER_BYTES, tolerant=True)
        window.load(file.position_bytes, HEADER_BYTES)
        header = good_header(window.view, 0, window.filled, self._key)
        if header is not None and header.first_no <= self._next_no == file.first_no:
            return file.position_bytes, header.first_no
        first_no = MsgNo(file.segment_no)
        trust_index = file.path not in self._damaged
        segment = recover_segment(
            self._files, file.path, self._key, first_no, trust_index=trust_index
        )
        point = segment.index.before_number(self._next_no)
        for hole in segment.holes:  # a scan would stop there
            if point.msg_no <= hole.first_no and hole.last_no < self._next_no:
                point = point._replace(msg_no=hole.last_no + 1, position_bytes=hole.end)
        return point.position_bytes, point.msg_no

    def _give_up(self, reasons: list[str]) -> None:
        missing = f"messages from {self._next_no} on of {self._log_id} cannot be read"
        if not self._tolerant:
            raise DataLost(f"{missing}: {'; '.join(reasons) or 'no file has them'}")
        self._next_no = self._next_readable()

    def _next_readable(self) -> int:
        """The first number behind the next one that some file seems to have."""
        found = self._last_no + 1
        for file in self._candidates:
            if file.last_no <= self._next_no:
                continue
            if file.first_no > self._next_no:
                found = min(found, file.first_no)
                continue
            try:
                first_no = MsgNo(file.segment_no)
                segment = recover_segment(
                    self._files, file.path, self._key, first_no, trust_index=False
                )
            except OSError:
                continue
            number = self._next_no + 1
            for hole in segment.holes:
                if hole.first_no <= number and hole.last_no >= self._next_no:
                    number = hole.last_no + 1
            if number < segment.next_no:
                found = min(found, number)
        return found
