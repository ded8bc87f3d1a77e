"""Putting good records in the place of damaged ones.

A segment is never written in place. The damaged bytes go to quarantine; then a new file is written
beside the old one, with the good bytes before the damage, the records that another copy had, and
the good bytes behind. It is synced, read again with both hashes, and renamed over the old one; the
index follows. So whenever the power goes there is the old segment or the new one, and a reader that
has the old file open goes on with it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from busnode.segments.damage import Hole, Mended, Patch
from busnode.segments.handles import Handles
from busnode.segments.index import Index, Point
from busnode.segments.quarantine import quarantine
from busnode.segments.records import LogKey, Scanned, scan
from busnode.segments.recovery import read_block, write_index
from busnode.segments.segment import (
    RECORDS_AT,
    Segment,
    SegmentHeader,
    SegmentName,
    decode_segment_header,
    encode_segment_header,
    index_path,
)
from busnode.segments.steps import Fetch, Steps, Sync
from busnode.segments.survey import Survey, Window, survey_steps
from busnode.wire.errors import BadRecord
from busnode.wire.frames import HEADER_BYTES, read_header
from busnode.wire.ids import MsgNo
from busnode.world.files import AppendFile, Bytes, Files, ReadFile

if TYPE_CHECKING:
    from busnode.segments.log import FileLog

STEP_BYTES: Final = 1024 * 1024
"""What is copied before others have their turn."""

PATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is put in place at once, and is in memory meanwhile; the rest of a hole comes next."""

SCRATCH: Final = ".mend"
"""Behind the name of a segment: what is being written to take its place."""

Filled = tuple[MsgNo, MsgNo]
"""The first and last number of what is put into a hole."""


def check_records(key: LogKey, hole: Hole, records: Bytes) -> Filled:
    """The first and last number of records that fill a hole, or one piece of it. BadRecord for all
    else."""
    with memoryview(records) as view:
        first_no = read_header(view, 0).first_no if len(view) >= HEADER_BYTES else hole.first_no
        begun = Scanned(0, first_no, 0)
        at, next_no, _ = scan(view, len(view), len(view), key, begun)
    if at < len(records) or not hole.first_no <= first_no < next_no <= hole.last_no + 1:
        raise BadRecord(
            f"what was to mend messages {hole.first_no}–{hole.last_no} is good up to byte {at} of "
            f"{len(records)} and message {next_no - 1}"
        )
    return MsgNo(first_no), MsgNo(next_no - 1)


def records_within(records: Bytes, next_no: int, last_no: int) -> tuple[int, int]:
    """How many of the bytes are records from one number to another, and the number behind them."""
    at = 0
    with memoryview(records) as view:
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            if header.first_no != next_no or header.last_no > last_no:
                break
            at += header.length
            next_no = header.last_no + 1
    return at, next_no


def mend_steps(
    log: "FileLog", files: Files, handles: Handles, patches: Sequence[Patch]
) -> Steps[list[Mended]]:
    """Mend holes that begin in one segment, or lie before one. Those that are filled now.

    Others have changed meanwhile, or are in a segment that is not durable yet: they can be tried
    again. Raises OSError, or BadRecord for records that are not what is missing; then all is as it
    was before.
    """
    filled = {patch.hole.first_no: check_records(log.key, *patch) for patch in patches}
    segment = log.segment_of(patches[0].hole.first_no)
    there = {_place(hole): hole for hole in segment.holes}
    inside = sorted(
        (patch for patch in patches if _place(patch.hole) in there), key=lambda p: p.hole.offset
    )
    missing = [patch for patch in patches if patch.hole in log.missing()]
    if inside:
        if not log.settle(segment):
            return []
        return (yield from _rewrite(log, files, handles, segment, inside, filled))
    if missing:
        hole = missing[0].hole
        if segment.empty and segment.first_no == hole.first_no:
            at_end = replace(hole, offset=segment.size_bytes)
            patch = Patch(at_end, missing[0].records)
            return (yield from _rewrite(log, files, handles, segment, [patch], filled))
        return (yield from _insert(log, files, handles, missing[0], filled))
    return []


def _place(hole: Hole) -> tuple[int, int, int, int]:
    return hole.offset, hole.length, hole.first_no, hole.last_no


def _rewrite(
    log: "FileLog",
    files: Files,
    handles: Handles,
    old: Segment,
    patches: list[Patch],
    filled: dict[MsgNo, Filled],
) -> Steps[list[Mended]]:
    """Write a segment anew, with records in the place of damage."""
    # Not from the handles: somebody may forget it meanwhile.
    file = files.open(old.path)
    scratch = old.path + SCRATCH
    try:
        done: list[Mended] = []
        for hole, _ in patches:
            kept = yield from quarantine(files, old, file, hole)
            done.append(Mended(hole, *filled[hole.first_no], kept))
        size_bytes = file.size_bytes()
        mended = {_place(patch.hole) for patch in patches}
        damage = [hole for hole in old.holes if _place(hole) not in mended]
        block = read_block(file)
        if decode_segment_header(block) is None:
            block = _header(log, old.path, old.first_no, old.created_us)
        shift = 0
        new = _begin(files, scratch, block)
        try:
            at = RECORDS_AT
            for hole, records in patches:
                yield from _copy(file, new, at, hole.offset, damage)
                yield from _write(new, records)
                shift += len(records) - (min(hole.end, old.size_bytes) - hole.offset)
                at = hole.end
            yield from _copy(file, new, at, size_bytes, damage)
            yield Sync(new)
        finally:
            new.close()
        # What is put into an empty segment lies behind where it ended.
        next_no = max(old.next_no, *(filled[patch.hole.first_no][1] + 1 for patch in patches))
        end = Point(next_no, old.size_bytes + shift, old.utc_us_max, old.stored_us)
        found = yield from _read_again(log, files, scratch, old.first_no, end)
        segment = _segment(old.path, old.first_no, old.created_us, found, end)
        if old.torn is not None:
            segment.torn = replace(old.torn, offset=old.torn.offset + shift)
        _check(segment, filled)
        if not log.holds(old):
            return []
        files.rename(scratch, old.path)
        log.replaced(old, segment)
        yield from _finish(log, files, handles, segment)
        return done
    finally:
        file.close()
        _discard(files, scratch)


def _insert(
    log: "FileLog", files: Files, handles: Handles, patch: Patch, filled: dict[MsgNo, Filled]
) -> Steps[list[Mended]]:
    """Write a segment that is missing between two others."""
    hole, records = patch
    after = log.segment_of(hole.last_no + 1)
    path = f"{log.directory}/{SegmentName(log.log_no, hole.first_no)}"
    scratch = path + SCRATCH
    created_us, stored_us = after.created_us, after.stored_us
    try:
        new = _begin(files, scratch, _header(log, path, hole.first_no, created_us))
        try:
            yield from _write(new, records)
            yield Sync(new)
        finally:
            new.close()
        end = Point(filled[hole.first_no][1] + 1, RECORDS_AT + len(records), 0, stored_us)
        found = yield from _read_again(log, files, scratch, hole.first_no, end)
        segment = _segment(path, hole.first_no, created_us, found, end)
        _check(segment, filled)
        if not log.holds(after) or hole not in log.missing() or files.exists(path):
            return []
        files.rename(scratch, path)
        log.inserted(segment)
        yield from _finish(log, files, handles, segment)
        return [Mended(hole, *filled[hole.first_no], None)]
    finally:
        _discard(files, scratch)


def _finish(log: "FileLog", files: Files, handles: Handles, segment: Segment) -> Steps[None]:
    """It has its name. The index is written when that is durable: one that tells of other bytes
    than those that a power loss leaves would hide what is damaged in them."""
    handles.forget([segment.path, index_path(segment.path)])
    with suppress(OSError):  # the old one or the new: each is whole
        yield Sync(None, log.directory)
        if log.holds(segment):
            write_index(files, segment, log.key)


def _header(log: "FileLog", path: str, first_no: MsgNo, created_us: int) -> bytes:
    name = SegmentName.parse(path.rpartition("/")[2])
    assert name is not None
    return encode_segment_header(SegmentHeader(log.log_id, first_no, created_us, name.log_no))


def _begin(files: Files, path: str, header: bytes) -> AppendFile:
    _discard(files, path)
    new = files.append_to(path)
    new.append(header)
    return new


def _discard(files: Files, scratch: str) -> None:
    with suppress(OSError):
        if files.exists(scratch):
            files.remove(scratch)


def _write(new: AppendFile, records: bytes) -> Steps[None]:
    with memoryview(records) as view:
        for at in range(0, len(view), STEP_BYTES):
            new.append(view[at : at + STEP_BYTES])
            yield None


def _copy(
    file: ReadFile, new: AppendFile, start: int, end: int, damage: Sequence[Hole]
) -> Steps[None]:
    """Copy what is good as it is, and other damage as far as it can be read."""
    end = min(end, file.size_bytes())
    window = Window(file, end, STEP_BYTES)
    at = start
    while at < end:
        inside = any(hole.offset <= at < hole.end for hole in damage)
        edges = [edge for hole in damage for edge in (hole.offset, hole.end) if edge > at]
        stop = min([at + STEP_BYTES, end, *edges])
        yield Fetch(file, at, stop - at)
        window.tolerant = inside
        window.load(at, stop - at)
        if not window.filled:
            return
        new.append(window.view[: window.filled])
        at += window.filled


def _read_again(
    log: "FileLog", files: Files, path: str, first_no: MsgNo, end: Point
) -> Steps[Survey]:
    """Up to where it must end: what lies behind that was never part of it."""
    file = files.open(path)
    try:
        begun = Scanned(RECORDS_AT, first_no, 0)
        size_bytes = min(end.position_bytes, file.size_bytes())
        return (yield from survey_steps(file, size_bytes, log.key, begun, end))
    finally:
        file.close()


def _segment(path: str, first_no: MsgNo, created_us: int, found: Survey, end: Point) -> Segment:
    """What is known of a segment after it was read; `end` is where it must end."""
    segment = Segment(path, first_no, created_us, found.end_bytes, MsgNo(end.msg_no))
    points = [Point(first_no, RECORDS_AT, 0, end.stored_us)]
    points += (point._replace(stored_us=end.stored_us) for point in found.points)
    # It was read under another name than the one that it will have.
    segment.holes = [replace(hole, path=path) for hole in found.holes]
    if found.next_no < end.msg_no:
        first, last = MsgNo(found.next_no), MsgNo(end.msg_no - 1)
        reason = "not mended yet"
        segment.holes.append(Hole(first, last, path, found.end_bytes, 0, reason))
        points.append(end._replace(position_bytes=found.end_bytes))
    segment.index = Index(points)
    segment.utc_us_max = max(found.utc_us_max, end.utc_us_max)
    segment.stored_us = end.stored_us
    return segment


def _check(segment: Segment, filled: dict[MsgNo, Filled]) -> None:
    """What was put in must be there, and nothing else be gone."""
    for first_no, last_no in filled.values():
        for hole in segment.holes:
            if hole.first_no <= last_no and hole.last_no >= first_no:
                raise BadRecord(f"{segment.path}{SCRATCH} does not read as it was written: {hole}")
