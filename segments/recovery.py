"""How a segment is taken up again after a stop, clean or not.

The index tells how far the file is known to be durable; what lies behind is scanned. With an index
that reaches the end nothing is read.

Recovery removes nothing. Damage is noted and stepped over, and a torn tail is left where it is:
nothing is ever appended to a file that another process has written, so bytes behind the end harm
nobody, and should they be an acked record that has rotted, they are still there to look at.
"""

import errno
from collections.abc import Iterator
from typing import Final

from busnode.segments.damage import Flaw, Hole
from busnode.segments.index import (
    ENTRY_BYTES,
    Index,
    Point,
    decode_index,
    encode_hole,
    encode_point,
)
from busnode.segments.records import LogKey, Scanned, good_header, good_record
from busnode.segments.segment import (
    RECORDS_AT,
    Segment,
    SegmentHeader,
    decode_segment_header,
    index_path,
)
from busnode.segments.survey import Survey, Window, survey, topic_of_records
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.ids import BrokerId, MsgNo, Topic
from busnode.world.files import Files, ReadFile, read_whole, replace_whole

INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
"""Far more than any index of ours has: a wrong file must not fill the memory."""


def topic_in_header(files: Files, path: str, broker_id: BrokerId) -> Topic | None:
    header = decode_segment_header(_readable(files, path, RECORDS_AT))
    if header is None or header.log_id.broker_id != broker_id:
        return None
    return header.log_id.topic


def topic_in_records(files: Files, path: str, broker_id: BrokerId) -> Topic | None:
    """For a segment whose header is damaged."""
    file = files.open(path)
    try:
        return topic_of_records(file, file.size_bytes(), broker_id)
    finally:
        file.close()


def recover_segment(
    files: Files, path: str, key: LogKey, first_no: MsgNo, *, trust_index: bool = True
) -> Segment:
    """Learn the state of a segment without changing anything on the disk.

    With `trust_index=False` every record is read and checked, and the index is only compared. So
    they are when the index does not fit the file.
    """
    idx = index_path(path)
    data = _readable(files, idx, INDEX_BYTES_MAX) if files.exists(idx) else b""
    file = files.open(path)
    try:
        size_bytes = file.size_bytes()
        header = decode_segment_header(read_block(file))
        modified_us = files.modified_us(path)
        start = Point(first_no, RECORDS_AT, 0, header.created_us if header else modified_us)
        index, holes = decode_index(data, key.seed ^ first_no, start, path)
        durable = index.before_position(size_bytes)
        known = index[-1]
        base = durable if trust_index else start
        found = survey(file, size_bytes, key, _from(base), durable)
        if trust_index and not (
            known.position_bytes <= size_bytes
            and _goes_on(found, durable)
            and not any(_is_mended(file, size_bytes, key, hole) for hole in holes)
        ):
            trust_index = False
            found = survey(file, size_bytes, key, _from(start), durable)
    finally:
        file.close()
    segment = Segment(path, first_no, start.stored_us, found.end_bytes, MsgNo(found.next_no))
    segment.utc_us_max = found.utc_us_max
    segment.stored_us = modified_us if found.points else durable.stored_us
    segment.torn = found.torn
    if trust_index:
        # Of what the index knows of, all behind the durable point was surveyed again.
        segment.holes = [
            hole
            for hole in holes
            if hole.offset < durable.position_bytes or hole.first_no < durable.msg_no
        ]
    segment.holes += found.holes
    segment.flaws = [*_flaws(path, header, index.bad_entries)]
    for hole in segment.holes:
        if hole.costs_nothing:
            segment.flaws.append(Flaw(path, hole.offset, hole.length, hole.reason))
    for point in index if trust_index else [start]:
        segment.index.add(point)
    for point in found.points:
        segment.index.add(point._replace(stored_us=modified_us))
    if known.msg_no > segment.next_no:
        _note_cut(segment, known)
    segment.indexed = trust_index and not found.points and not index.bad_entries
    return segment


def end_segment(files: Files, segment: Segment, key: LogKey, next_no: MsgNo) -> None:
    """Let a segment end where the next one begins. In a copy whose disk failed once there are bytes
    behind that which were never synced, and the next one has what was sent again."""
    file = files.open(segment.path)
    try:
        window = Window(file, segment.size_bytes, HEADER_BYTES, tolerant=True)
        place = segment.index.before_number(next_no)
        number, position = place.msg_no, place.position_bytes
        while number < next_no:
            window.load(position, HEADER_BYTES)
            header = good_header(window.view, 0, window.filled, key)
            if header is None or header.first_no != number:
                return  # damage before it: what is known of that stays known
            number, position = header.last_no + 1, position + header.length
    finally:
        file.close()
    if number != next_no:
        return  # the records of the two do not meet: each is read as it is
    segment.torn = Flaw(
        segment.path, position, segment.size_bytes - position,
        f"never synced: message {next_no} and what follows stands in the next file",
    )  # fmt: skip
    segment.size_bytes, segment.next_no = position, next_no
    segment.holes = [hole for hole in segment.holes if hole.first_no < next_no]
    points = [point for point in segment.index if point.position_bytes < position]
    segment.index = Index([*points, place._replace(msg_no=next_no, position_bytes=position)])
    segment.indexed = False


def _from(point: Point) -> Scanned:
    """A scan that begins at a point."""
    return Scanned(point.position_bytes, point.msg_no, point.utc_us_max)


def _goes_on(found: Survey, durable: Point) -> bool:
    """Whether behind the last point of an index stands a good record, or nothing.

    If not, an append was cut off; or the index tells of other bytes, and nothing that it says of
    these is true.
    """
    damage = [found.torn, *found.holes]
    return all(each is None or each.offset > durable.position_bytes for each in damage)


def _is_mended(file: ReadFile, size_bytes: int, key: LogKey, hole: Hole) -> bool:
    """Whether there are good records where an index knows of a hole: the power went after the
    segment was mended, and before its index was written anew."""
    window = Window(file, size_bytes, HEADER_BYTES, tolerant=True)
    window.load(hole.offset, HEADER_BYTES)
    header = good_header(window.view, 0, window.filled, key)
    if header is None or header.first_no != hole.first_no:
        return False
    window.load(hole.offset, header.length)
    return good_record(window.view, 0, window.filled, key) is not None


def mend_segment(files: Files, segment: Segment, key: LogKey) -> None:
    """Vouch for what recovery read: sync it, and then write the index that says so.

    A process that was killed may have left records in the page cache alone: they were read, but
    they are only safe once this has synced them.
    """
    if segment.indexed:
        return
    file = files.append_to(segment.path)
    try:
        file.sync()
    finally:
        file.close()
    write_index(files, segment, key)


def write_index(files: Files, segment: Segment, key: LogKey) -> None:
    """Write the whole index anew. A failure costs a scan at the next start, and is only noted: a
    node whose disk is full must still be able to start, and to drop what is too old."""
    seed = key.seed ^ segment.first_no
    entries = [encode_hole(hole, seed) for hole in segment.holes]
    entries += [encode_point(point, seed) for point in segment.index]
    try:
        # A point that is lost is found by scanning. A hole must not be: nobody would scan for it.
        durable = bool(segment.holes)
        replace_whole(files, index_path(segment.path), b"".join(entries), durable=durable)
    except OSError:
        segment.indexed = False
    else:
        segment.indexed = True


def read_block(file: ReadFile) -> bytes:
    """The bytes of a segment's header, as far as they are there and can be read."""
    block = bytearray(RECORDS_AT)
    try:
        with memoryview(block) as view:
            count = file.read_into(view, 0)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
    return bytes(block[:count])


def _readable(files: Files, path: str, size_max: int) -> bytes:
    """The contents of a small file, or nothing where the disk cannot read it: neither an index nor
    a header is needed, and one bad sector must not keep a node from starting."""
    try:
        return read_whole(files, path, size_max)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _flaws(path: str, header: SegmentHeader | None, bad_entries: list[int]) -> Iterator[Flaw]:
    if header is None:
        yield Flaw(path, 0, RECORDS_AT, "segment header whose hash does not fit")
    for at in bad_entries:
        yield Flaw(index_path(path), at, ENTRY_BYTES, "index entry that is damaged")


def _note_cut(segment: Segment, known: Point) -> None:
    """The index knows of synced records that the file has no more."""
    missing = max(known.position_bytes - segment.size_bytes, 0)
    reason = f"the file is cut: its index knows of messages up to {known.msg_no - 1}"
    first, last = segment.next_no, MsgNo(known.msg_no - 1)
    segment.holes.append(Hole(first, last, segment.path, segment.size_bytes, missing, reason))
    segment.next_no = MsgNo(known.msg_no)
    segment.torn = None
    segment.index.add(known._replace(position_bytes=segment.size_bytes))
