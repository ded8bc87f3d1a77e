"""Reading a segment from some byte to its end: what is good, what is damaged, where it ends.

Recovery, `busnode log verify` and rebuilding an index are all this one walk.
"""

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from busnode.segments.damage import UNREADABLE, Flaw, Hole
from busnode.segments.index import POINT_EVERY_BYTES, Point
from busnode.segments.records import (
    LogKey,
    Scanned,
    diagnose,
    find_record,
    find_topic,
    good_header,
    good_record,
    has_length,
    hashed_header,
    scan,
    true_length,
)
from busnode.segments.steps import Fetch, Steps
from busnode.wire import limits
from busnode.wire.frames import HEADER_BYTES, BatchHeader
from busnode.wire.ids import BrokerId, MsgNo, Topic
from busnode.world.files import ReadFile

WINDOW_BYTES: Final = 1024 * 1024
"""What is read at once. It stays in the processor's cache until it is hashed: 4 MiB was slower."""

SEARCH_BYTES: Final = 2 * limits.FRAME_BYTES_MAX
"""What is read at once behind damage: a whole record fits wherever it begins in the first half."""


PAGE_BYTES: Final = 4096
"""What a disk fails to read at once, at least."""

UNREADABLE_PAGES_MAX: Final = 32
"""After so many in one stretch the rest of it counts as unreadable: a disk may take seconds for
each."""


@dataclass(slots=True)
class Survey:
    """What a walk through a segment found."""

    end_bytes: int
    """The byte after the last good record, or after damage to bytes that had been synced."""
    next_no: int
    utc_us_max: int
    points: list[Point] = field(default_factory=list[Point])
    """Boundaries on the way, and the end. They carry no stored time."""
    holes: list[Hole] = field(default_factory=list[Hole])
    """Also those that cost nothing: no range may contain their bytes."""
    torn: Flaw | None = None
    """Bytes behind the last good record that are no record: an append that was cut off."""


class Window:
    """A stretch of a file in memory."""

    __slots__ = (
        "base",
        "buffer",
        "declared_bytes",
        "file",
        "filled",
        "size_bytes",
        "tolerant",
        "unreadable_at",
        "view",
    )

    def __init__(
        self, file: ReadFile, size_bytes: int, window_bytes: int, *, tolerant: bool = False
    ) -> None:
        """A `tolerant` one has zeros where the disk cannot read, in place of raising."""
        self.tolerant = tolerant
        self.file = file
        self.size_bytes = self.declared_bytes = size_bytes
        self.unreadable_at: int | None = None
        """The first byte of what is loaded that the disk could not read."""
        self.base = 0
        self.filled = 0
        self.buffer = bytearray(min(window_bytes, max(size_bytes, 1)))
        self.view = memoryview(self.buffer)

    def load(self, position: int, length: int) -> None:
        """Hold `length` bytes from `position` on, or what the file has of them."""
        wanted = min(length, max(self.size_bytes - position, 0))
        if len(self.buffer) < wanted:
            self.buffer = bytearray(wanted)
            self.view = memoryview(self.buffer)
        self.base = position
        self.filled = 0
        self.unreadable_at = None
        while self.filled < wanted:
            count = self._read(self.view[self.filled : wanted], position + self.filled)
            if not count:
                self.size_bytes = position + self.filled  # somebody has cut it
                break
            self.filled += count

    def _read(self, view: memoryview, position: int) -> int:
        """Zeros have no hash that fits, so one bad sector costs the records that it holds a part
        of, and nothing else."""
        try:
            return self.file.read_into(view, position)
        except OSError as error:
            if error.errno != errno.EIO or not self.tolerant:
                raise
        failed = at = 0
        while at < len(view):
            page = view[at : at + PAGE_BYTES - (position + at) % PAGE_BYTES]
            at += len(page)
            try:
                if failed < UNREADABLE_PAGES_MAX:
                    count = self.file.read_into(page, position + at - len(page))
                    if count < len(page):
                        return at - len(page) + count
                    continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                failed += 1
                if self.unreadable_at is None:
                    self.unreadable_at = position + at - len(page)
            page[:] = bytes(len(page))
        return len(view)

    def fetch(self, position: int) -> Fetch:
        """What to bring into memory before a window is loaded there."""
        length = max(0, min(WINDOW_BYTES, self.size_bytes - position))
        return Fetch(self.file, position, length)

    @property
    def at_end(self) -> bool:
        return self.base + self.filled >= self.size_bytes

    def load_record(self, at: int) -> bool:
        """Load more if the record at `at` may be there and is only cut by the window."""
        if self.at_end:
            return False
        here = self.filled - at
        claimed = struct.unpack_from("<I", self.view, at)[0] if here >= HEADER_BYTES else here + 1
        if claimed <= here or claimed > limits.FRAME_BYTES_MAX:
            return False
        self.load(self.base + at, max(claimed, WINDOW_BYTES))
        return True

    def search(self, position: int) -> Iterator[None]:
        """Load stretch after stretch from `position` to the end; each record is whole in one."""
        self.load(position, WINDOW_BYTES)
        yield
        if not self.at_end:
            # Seldom: nothing near. A window in which any record fits that begins in its first half.
            self.load(position, SEARCH_BYTES)
            yield
        while not self.at_end:
            self.load(self.base + SEARCH_BYTES // 2, SEARCH_BYTES)
            yield


def survey(file: ReadFile, size_bytes: int, key: LogKey, start: Scanned, durable: Point) -> Survey:
    """Walk the records of `file` from `start` to its end, at once."""
    steps = survey_steps(file, size_bytes, key, start, durable)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: Survey = end.value
        return found


def survey_steps(
    file: ReadFile, size_bytes: int, key: LogKey, start: Scanned, durable: Point
) -> Steps[Survey]:
    """Walk the records of `file` from `start` to its end, a window at a time.

    `durable` is the last point that is known to have been synced: what is bad before it is damage,
    what is bad behind it with nothing good after is a torn tail.
    """
    window = Window(file, size_bytes, WINDOW_BYTES, tolerant=True)
    yield window.fetch(start.at)
    window.load(start.at, WINDOW_BYTES)
    found = Survey(start.at, start.next_no, start.utc_us_max)
    at = 0
    pointed = start.at
    while True:
        stop = min(window.filled, at + POINT_EVERY_BYTES)
        begun = Scanned(at, found.next_no, found.utc_us_max)
        at, found.next_no, found.utc_us_max = scan(window.view, stop, window.filled, key, begun)
        found.end_bytes = window.base + at
        if found.end_bytes - pointed >= POINT_EVERY_BYTES:
            pointed = found.end_bytes
            found.points.append(Point(found.next_no, pointed, found.utc_us_max, 0))
        if at >= stop and at < window.filled:
            continue
        if found.end_bytes >= size_bytes:
            break
        if not window.at_end:
            yield window.fetch(window.base + at)
        if window.load_record(at):
            at = 0
            continue
        if not _step_over(window, at, key, found, durable):
            break
        if window.base != found.end_bytes:
            window.load(found.end_bytes, WINDOW_BYTES)
        at = 0
    if found.end_bytes > pointed:
        found.points.append(Point(found.next_no, found.end_bytes, found.utc_us_max, 0))
    return found


def _step_over(window: Window, at: int, key: LogKey, found: Survey, durable: Point) -> bool:
    """Note the damage at `at` and go to the next good record; False when there is none."""
    position = window.base + at
    window.load(position, WINDOW_BYTES)
    window.load_record(0)
    here = good_record(window.view, 0, window.filled, key)
    if here is not None and here.first_no == found.next_no:
        return True  # the disk has only hesitated: what it reads now is whole
    reason = diagnose(window.view, 0, window.filled, key, found.next_no)
    unreadable_at = window.unreadable_at
    following = _following(window, position, key, found.next_no)
    behind = window.declared_bytes if following is None else following[0]
    if unreadable_at is not None and unreadable_at < behind:
        reason = f"{UNREADABLE}: {os.strerror(errno.EIO)} at byte {unreadable_at}"
    if following is not None:
        next_position, next_no = following
        _note(found, window, position, next_position - position, next_no, reason)
        found.end_bytes, found.next_no = next_position, next_no
        return True
    left = window.declared_bytes - position  # also where it is cut: all up to there is missing
    if position < durable.position_bytes:
        # All of it was synced once, so it is damage and not a write that was cut off.
        known = min(durable.position_bytes - position, left)
        next_no = max(durable.msg_no, found.next_no)
        _note(found, window, position, known, next_no, reason)
        found.end_bytes, found.next_no = position + known, next_no
        left -= known
    if left > 0:
        found.torn = Flaw(window.file.path, found.end_bytes, left, f"torn tail: {reason}")
    return False


def _following(window: Window, position: int, key: LogKey, number: int) -> tuple[int, int] | None:
    """Where the next good record with this number or a higher one stands, and its number."""
    header = good_record(window.view, 0, window.filled, key)
    if header is not None and header.first_no > number:
        return position, header.first_no
    # Where the damaged record says that it ends is tried first, so that bytes in its payload that
    # look like a record are not taken for one.
    header = hashed_header(window.view, 0, window.filled, key)
    if header is not None and header.first_no == number:
        return _behind_body(window, position, key, header)
    if window.filled >= HEADER_BYTES:
        claimed = struct.unpack_from("<I", window.view, 0)[0]
        if HEADER_BYTES < claimed <= limits.FRAME_BYTES_MAX:
            window.load(position, claimed + HEADER_BYTES)
            beyond = good_header(window.view, claimed, window.filled, key)
            if beyond is not None and beyond.first_no >= number:
                return position + claimed, beyond.first_no
            if position + claimed == window.size_bytes:
                return None
    return _search(window, position + 1, key, number)


def _behind_body(
    window: Window, position: int, key: LogKey, header: BatchHeader
) -> tuple[int, int] | None:
    """What follows a record whose header is good: its body is damaged, or its length."""
    end = position + 1
    next_no = header.last_no + 1
    if has_length(header, key):
        end = position + header.length
        window.load(position, header.length + HEADER_BYTES)
        beyond = good_header(window.view, header.length, window.filled, key)
        if beyond is not None and beyond.first_no == next_no:
            return end, next_no
    window.load(position, SEARCH_BYTES)
    length = true_length(window.buffer, window.view, window.filled, key, header)
    if length is not None:
        end = position + length
    return _search(window, end, key, next_no) if end < window.size_bytes else None


def _search(window: Window, position: int, key: LogKey, number: int) -> tuple[int, int] | None:
    for _ in window.search(position):
        hit = find_record(window.buffer, window.view, 0, window.filled, key, number)
        if hit is not None:
            return window.base + hit[0], hit[1].first_no
    return None


def topic_of_records(file: ReadFile, size_bytes: int, broker_id: BrokerId) -> Topic | None:
    """The topic that the first good record of a segment names."""
    window = Window(file, size_bytes, WINDOW_BYTES, tolerant=True)
    for _ in window.search(0):
        topic = find_topic(window.buffer, window.view, window.filled, broker_id)
        if topic is not None:
            return topic
    return None


def _note(
    found: Survey, window: Window, offset: int, length: int, next_no: int, reason: str
) -> None:
    first, last = MsgNo(found.next_no), MsgNo(next_no - 1)
    found.holes.append(Hole(first, last, window.file.path, offset, length, reason))
