"""Reading a log batch by batch, each verified: for tools, tests and whoever wants no ranges."""

import errno
from collections.abc import Generator, Iterator

from busnode.segments.damage import Hole
from busnode.segments.records import LogKey, good_record
from busnode.segments.store import Log, Range
from busnode.wire.errors import BadRecord
from busnode.wire.frames import HEADER_BYTES, BatchHeader
from busnode.wire.ids import MsgNo

RANGE_BYTES = 1024 * 1024


def read_batches(log: Log, after_no: int = 0) -> Iterator[tuple[BatchHeader, memoryview] | Hole]:
    """Every committed batch that holds a number above `after_no`, as its header and its body.

    A hole takes the place of what is damaged or expired. A body is valid until the next step.
    BadRecord for one that is damaged each time it is read and good each time it is examined.
    """
    key = LogKey.of(log.log_id)
    reader = log.reader(after_no)
    examined_no = 0
    while True:
        found = reader.next_range(RANGE_BYTES)
        if found is None:
            return
        if isinstance(found, Hole):
            yield found
            continue
        try:
            next_no = yield from batches_of(found, key)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            next_no = found.first_no
        if next_no <= found.last_no:
            # A record that nobody had read yet is damaged, or the disk cannot read it: remember it
            # and go on behind it.
            if next_no == examined_no:
                raise BadRecord(f"message {next_no} of {log.log_id} does not read twice the same")
            examined_no = next_no
            log.examine(found)
            reader = log.reader(next_no - 1)


def batches_of(found: Range, key: LogKey) -> Generator[tuple[BatchHeader, memoryview], None, MsgNo]:
    """The good batches of a range up to the first bad one; the number after the last good one."""
    buffer = bytearray(found.length)
    view = memoryview(buffer)
    filled = 0
    while filled < found.length:
        count = found.file.read_into(view[filled:], found.offset + filled)
        if not count:
            break
        filled += count
    at = 0
    next_no = found.first_no
    while at < filled:
        header = good_record(view, at, filled, key)
        if header is None or not header.first_no <= next_no <= header.last_no:
            break
        yield header, view[at + HEADER_BYTES + header.topic_bytes : at + header.length]
        at += header.length
        next_no = MsgNo(header.last_no + 1)
    return next_no
