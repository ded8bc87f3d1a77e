"""What the tests of the segments share: records, a clock that stands, and readers that judge.

`read_log` and `read_ranges` are the checkers: they go through a log to its end and fail unless
every number up to the committed one arrives exactly once, in order, as a message or in a hole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import EXPIRED, Hole
from busnode.segments.records import LogKey, good_record
from busnode.segments.store import Log, Range
from busnode.testing.sim import SimDisk
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.frames import HEADER_BYTES, Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.runs import stamp_run, verify_runs
from busnode.world.files import Bytes, Files, read_whole

BROKER = BrokerId(bytes.fromhex("00112233445566778899aabbccddeeff"))
OTHER_BROKER = BrokerId(bytes.fromhex("ffeeddccbbaa99887766554433221100"))
TEMPERATURE = LogId(BROKER, Topic("/plant/north/temp"))
PRESSURE = LogId(BROKER, Topic("/plant/north/pressure"))

UTC_US = 1_700_000_000_000_000
DIRECTORY = "/data/n1"


class StoppedClock:
    """Time that passes only when a test says so."""

    def __init__(self, utc_us: int = UTC_US) -> None:
        self.now_us = utc_us

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def utc_us(self) -> int:
        return self.now_us

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a store never sleeps")

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


# Records ------------------------------------------------------------------------------------------


def record(log_id: LogId, first_no: int, payloads: Iterable[bytes], utc_us: int = UTC_US) -> bytes:
    """A batch as it lies in a segment: stamped with its number."""
    columns = Columns(list(payloads))
    frame = bytearray(
        encode_batch_frame(
            topic=log_id.topic.encode(),
            body=encode_columns(columns),
            count=len(columns.payloads),
            flags=Flags.GLOBAL | Flags.PERSISTENT,
            utc_us=utc_us,
            producer_id=1,
            producer_seq=first_no,
        )
    )
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        stamp_run(view, run, log_id.broker_id, broker_seed(log_id.broker_id), first_no)
    return bytes(frame)


def numbered(first_no: int, count: int, size_bytes: int = 8) -> list[bytes]:
    """Payloads that tell which number they belong to."""
    return [b"%d:" % number + b"." * size_bytes for number in range(first_no, first_no + count)]


def write(log: Log, payloads: Iterable[bytes], utc_us: int = UTC_US) -> bytes:
    """Append one batch; the record as it must be read again."""
    payloads = list(payloads)
    made = record(log.log_id, log.next_no, payloads, utc_us)
    log.append(made, len(payloads), utc_us)
    return made


def write_numbered(
    log: Log, *counts: int, size_bytes: int = 8, utc_us: int = UTC_US
) -> list[bytes]:
    """Append a batch for each count, with payloads that tell their numbers."""
    return [write(log, numbered(log.next_no, count, size_bytes), utc_us) for count in counts]


# Reading ------------------------------------------------------------------------------------------


@dataclass
class Reading:
    """All that a log gave, from some number to its end."""

    records: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By first number: the body, or the whole record when it was read as ranges."""
    holes: list[Hole] = field(default_factory=list[Hole])

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(hole.first_no, hole.last_no) for hole in self.holes]

    @property
    def expired(self) -> list[tuple[int, int]]:
        return [(hole.first_no, hole.last_no) for hole in self.holes if hole.reason == EXPIRED]


def read_log(log: Log, after_no: int = 0) -> Reading:
    """Read batch by batch up to the committed number."""
    reading = Reading()
    expected = after_no + 1
    for found in read_batches(log, after_no):
        if isinstance(found, Hole):
            assert found.first_no == expected <= found.last_no, f"{found} where {expected} is next"
            reading.holes.append(found)
            expected = found.last_no + 1
            continue
        header, body = found
        begins = header.first_no == expected or (header.first_no < expected == after_no + 1)
        assert begins, f"batch {header.first_no} where {expected} is next"
        assert header.last_no >= expected
        reading.records[header.first_no] = bytes(body)
        expected = header.last_no + 1
    _check_end(log, after_no, expected)
    return reading


def read_ranges(log: Log, after_no: int = 0, bytes_max: int = 1 << 20) -> Reading:
    """Read range by range up to the committed number; each must consist of whole good records."""
    reading = Reading()
    key = LogKey.of(log.log_id)
    reader = log.reader(after_no)
    expected = after_no + 1
    while (found := reader.next_range(bytes_max)) is not None:
        assert found.first_no == expected <= found.last_no, f"{found} where {expected} is next"
        expected = found.last_no + 1
        assert reader.next_no == expected
        if isinstance(found, Hole):
            reading.holes.append(found)
            continue
        data = range_bytes(found)
        at, number = 0, int(found.first_no)
        with memoryview(data) as view:
            while at < len(data):
                header = good_record(view, at, len(data), key)
                assert header is not None, f"no good record at {at} of {found}"
                assert header.first_no <= number <= header.last_no
                assert header.first_no == number or at == 0 == len(reading.records)
                reading.records[header.first_no] = data[at : at + header.length]
                at += header.length
                number = header.last_no + 1
        assert number == expected, f"{found} promises more than it has"
    _check_end(log, after_no, expected)
    return reading


def _check_end(log: Log, after_no: int, expected: int) -> None:
    """What has expired may reach further than what is committed: a copy may have skipped it."""
    end = max(log.committed_no, after_no) + 1
    assert expected in (end, log.first_no), f"{log.log_id} ended before {expected}"


def range_bytes(found: Range) -> bytes:
    data = bytearray(found.length)
    with memoryview(data) as view:
        assert found.file.read_into(view, found.offset) == found.length
    return bytes(data)


def body_of(made: bytes, log_id: LogId = TEMPERATURE) -> bytes:
    return made[HEADER_BYTES + len(log_id.topic.encode()) :]


def by_number(records: Sequence[bytes], first_no: int = 1) -> dict[int, bytes]:
    """Whole records by their first number."""
    found: dict[int, bytes] = {}
    for made in records:
        found[first_no] = made
        first_no += int.from_bytes(made[48:52], "little")
    return found


# Files --------------------------------------------------------------------------------------------


def snapshot(files: Files, directory: str = DIRECTORY) -> dict[str, bytes]:
    """Every file below the logs of a data directory, by its path."""
    found: dict[str, bytes] = {}
    for bucket in files.names(f"{directory}/logs"):
        for name in files.names(f"{directory}/logs/{bucket}"):
            path = f"{directory}/logs/{bucket}/{name}"
            found[path] = read_whole(files, path, 1 << 30)
    return found


def disk_with(image: dict[str, bytes], directory: str = DIRECTORY) -> SimDisk:
    """A simulated disk that holds just these files."""
    disk = SimDisk(clock=StoppedClock())
    disk.make_directory(f"{directory}/logs")
    for path, contents in image.items():
        disk.make_directory(path.rpartition("/")[0])
        file = disk.append_to(path)
        file.append(contents)
        file.sync()
        file.close()
    return disk


def segments_of(image: dict[str, bytes]) -> dict[str, bytes]:
    return {path: contents for path, contents in image.items() if path.endswith(".seg")}


def indexes_of(image: dict[str, bytes]) -> dict[str, bytes]:
    return {path: contents for path, contents in image.items() if path.endswith(".idx")}


def replaced(data: bytes, at: int, new: Bytes) -> bytes:
    """The bytes with others in their place from `at` on."""
    return data[:at] + bytes(new) + data[at + len(new) :]
