"""The segments of a copy in pieces: without what is damaged, and large ones cut along the index."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from busnode.pipeline.record_rows import Span
from busnode.pipeline.segment_files import SegmentFile
from busnode.segments.segment import RECORDS_AT, Segment
from busnode.wire.ids import MsgNo

PART_BYTES: Final = 32 * 1024 * 1024
"""What one task reads at most, about: half of a full segment. Spark takes 30 ms of a processor for
each task with Python; to read this much takes ten times as long. With half of it a scan of a
million messages took a third longer."""


class Copy(NamedTuple):
    """The segments of one log in one directory, in order."""

    holder: str
    segments: list[Segment]


def begins_by(msg_no: int, piece: SegmentFile) -> bool:
    return piece.first_no <= msg_no


def overlapping(pieces: list[SegmentFile], span: Span) -> tuple[SegmentFile, ...]:
    return tuple(
        each for each in pieces if each.first_no <= span.last_no and each.last_no >= span.first_no
    )


def pieces_of(copy: Copy, split: bool) -> Iterator[SegmentFile]:
    """The files of a copy, without what is known to be damaged; large ones in parts."""
    for place, segment in enumerate(copy.segments):
        following = copy.segments[place + 1].first_no if place + 1 < len(copy.segments) else None
        next_no = segment.next_no if following is None else min(segment.next_no, following)
        for first_no, position, end_no, end in _good(segment, next_no):
            for piece in _split(segment, first_no, position, end_no, end, split):
                yield SegmentFile(copy.holder, segment.path, segment.first_no, *piece)


def _good(segment: Segment, next_no: int) -> Iterator[tuple[int, int, int, int]]:
    """First number and byte, end number and byte, of each stretch without damage."""
    number, position = int(segment.first_no), RECORDS_AT
    for hole in segment.holes:
        if number < hole.first_no:
            yield number, position, min(hole.first_no, MsgNo(next_no)), hole.offset
        number, position = hole.last_no + 1, hole.end
    if number < next_no:
        yield number, position, next_no, segment.size_bytes


def _split(
    segment: Segment, first_no: int, position: int, end_no: int, end: int, split: bool
) -> Iterator[tuple[int, int, int, int]]:
    """First and last number, first byte and end of each part, cut where the index has a point."""
    parts = max(1, round((end - position) / PART_BYTES)) if split else 1
    size = (end - position) / parts
    for place in range(1, parts):
        point = segment.index.before_position(int(end - (parts - place) * size))
        if point.position_bytes <= position or not first_no < point.msg_no < end_no:
            continue
        yield first_no, point.msg_no - 1, position, point.position_bytes
        first_no, position = point.msg_no, point.position_bytes
    yield first_no, end_no - 1, position, end
