"""The index of a segment: points in its file that are known to be durable record boundaries.

A point says: the record that begins with `msg_no` stands at `position_bytes`, and all before it
was synced. So an index serves to seek, and it tells recovery how far a file can be trusted without
reading it; a torn write can only lie behind the last point. A hole says which bytes are known to be
damaged. Every entry has its own hash, so the file can be torn, cut or flipped anywhere: the good
entries count, and what is missing is found again by scanning the segment. An index is never needed.

    entry = u8 kind, 7 zero bytes, u64 msgNo, u64 position, u64 c, u64 d, u64 hash
    POINT:  c = highest utc of the records before it, d = utc of the node when it was written
    HOLE:   c = length in bytes, d = last msgNo that is missing
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from busnode.segments.damage import Hole
from busnode.wire.ids import MsgNo

POINT: Final = 1
HOLE: Final = 2
ENTRY: Final = struct.Struct("<QQQQQQ")
ENTRY_BYTES: Final = ENTRY.size

POINT_EVERY_BYTES: Final = 256 * 1024
"""How far points stand apart: a seek walks at most this much, and 100 GiB of logs need 20 MB."""


class Point(NamedTuple):
    msg_no: int
    position_bytes: int
    utc_us_max: int
    stored_us: int


def encode_point(point: Point, seed: int) -> bytes:
    return _encode(POINT, point, seed)


def encode_hole(hole: Hole, seed: int) -> bytes:
    return _encode(HOLE, (hole.first_no, hole.offset, hole.length, hole.last_no), seed)


def _encode(kind: int, values: tuple[int, int, int, int], seed: int) -> bytes:
    entry = bytearray(ENTRY.pack(kind, *values, 0))
    with memoryview(entry) as view:
        digest = xxh3_64_intdigest(view[:-8], seed)
    entry[-8:] = digest.to_bytes(8, "little")
    return bytes(entry)


class Index:
    """The points of one segment in order, held as plain numbers: 32 bytes a point."""

    __slots__ = ("_msg_nos", "_positions", "_stored", "_utcs", "bad_entries")

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._msg_nos = array("Q")
        self._positions = array("Q")
        self._utcs = array("Q")
        self._stored = array("Q")
        self.bad_entries: list[int] = []
        """Byte positions in the index file of entries that did not verify."""
        for point in points:
            self.add(point)

    def __len__(self) -> int:
        return len(self._msg_nos)

    def __iter__(self) -> Iterator[Point]:
        return map(Point, self._msg_nos, self._positions, self._utcs, self._stored)

    def __getitem__(self, i: int) -> Point:
        return Point(self._msg_nos[i], self._positions[i], self._utcs[i], self._stored[i])

    def add(self, point: Point) -> None:
        self._msg_nos.append(point.msg_no)
        self._positions.append(point.position_bytes)
        self._utcs.append(point.utc_us_max)
        self._stored.append(point.stored_us)

    def before_number(self, msg_no: int) -> Point:
        """The last point at or before the record that holds `msg_no`."""
        return self[max(bisect_right(self._msg_nos, msg_no) - 1, 0)]

    def before_time(self, utc_us: int) -> Point:
        """The last point before which every record is older than `utc_us`."""
        return self[max(bisect_left(self._utcs, utc_us) - 1, 0)]

    def before_position(self, position_bytes: int) -> Point:
        """The last point at or before a byte."""
        return self[max(bisect_right(self._positions, position_bytes) - 1, 0)]

    def after_position(self, position_bytes: int) -> Point | None:
        """The first point behind a byte."""
        place = bisect_right(self._positions, position_bytes)
        return self[place] if place < len(self) else None


def decode_index(data: bytes, seed: int, first: Point, path: str) -> tuple[Index, list[Hole]]:
    """The good entries of an index file, after `first`, the point at the segment's beginning.

    Entries that do not verify, or that go backwards, are left out and noted.
    """
    index = Index([first])
    holes: list[Hole] = []
    last = first
    with memoryview(data) as view:
        for at in range(0, len(data), ENTRY_BYTES):
            if len(data) - at < ENTRY_BYTES:
                index.bad_entries.append(at)
                break
            kind, msg_no, position, c, d, digest = ENTRY.unpack_from(view, at)
            if xxh3_64_intdigest(view[at : at + ENTRY_BYTES - 8], seed) != digest:
                index.bad_entries.append(at)
            elif kind == HOLE:
                reason = "damaged record, noted in the index"
                holes.append(Hole(MsgNo(msg_no), MsgNo(d), path, position, c, reason))
            elif msg_no >= last.msg_no and position >= last.position_bytes:
                if (msg_no, position) == last[:2]:
                    continue
                last = Point(msg_no, position, max(c, last.utc_us_max), d)
                index.add(last)
            else:
                index.bad_entries.append(at)
    return index, holes
