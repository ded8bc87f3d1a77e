"""What a range of a log is like, in sixteen bytes: by it two copies are compared.

Segments begin elsewhere in each copy, but the records are the same bytes. While they are read both
their hashes are checked, so that a digest is only ever one of good records.
"""

from typing import Final, NamedTuple

from xxhash import xxh3_128

from busnode.segments.damage import Hole
from busnode.segments.mending import records_within
from busnode.segments.records import LogKey, Scanned, scan
from busnode.segments.steps import Fetch, Steps
from busnode.segments.store import Cold, Log, LogReader, Range
from busnode.wire.ids import MsgNo

STEP_BYTES: Final = 1024 * 1024

DIGESTED_BYTES_MAX: Final = 16 * STEP_BYTES
"""No range that is asked for is longer: another node must not be able to keep this one reading."""


class Digested(NamedTuple):
    digest: bytes
    """Empty where not all of it is here."""
    damaged_no: MsgNo | None = None
    """A message that is here and not what was written."""


def next_steps(reader: LogReader, bytes_max: int) -> Steps[Range | Hole | None]:
    """What comes next; where it begins is looked for when that is in memory."""
    while isinstance(found := reader.next_in_memory(bytes_max, 0), Cold):
        yield Fetch(found.range.file, found.range.offset, found.range.length)
        reader.fetched(found, None)
    return found


def digest_steps(log: Log, first_no: MsgNo, last_no: MsgNo) -> Steps[Digested]:
    """Read the records of a range that begins and ends with one. Raises OSError."""
    key = LogKey.of(log.log_id)
    digest = xxh3_128()
    reader = log.reader(first_no - 1)
    next_no, left_bytes = int(first_no), DIGESTED_BYTES_MAX
    while next_no <= last_no:
        found = yield from next_steps(reader, STEP_BYTES)
        if not isinstance(found, Range) or found.length > left_bytes:
            return Digested(b"")
        left_bytes -= found.length
        yield Fetch(found.file, found.offset, found.length)  # it may not be there any more
        data = bytearray(found.length)
        with memoryview(data) as view:
            found.file.read_into(view, found.offset)
            length, beyond = records_within(data, next_no, last_no)
            good = scan(view, length, length, key, Scanned(0, next_no, 0))
            if not length or good.at < length:
                return Digested(b"", MsgNo(good.next_no))
            digest.update(view[:length])
        if length < found.length and beyond <= last_no:
            return Digested(b"", MsgNo(beyond))
        next_no = beyond
    return Digested(digest.digest())
