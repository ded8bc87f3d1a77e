"""Data directories for the tests of the pipeline: written by the true store, damaged by hand."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from busnode.pipeline.directories import Directories
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.segments.file_store import FileStore
from busnode.segments.segment import index_path
from busnode.segments.store import StoreOptions
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import BrokerId, LogId, Pattern, Topic
from busnode.wire.runs import stamp_run, verify_runs
from busnode.world.real_files import RealFiles
from tests.segments.samples import UTC_US, StoppedClock

ORDERS = LogId(BrokerId(bytes(range(16))), Topic("/orders/new"))
OTHERS = LogId(BrokerId(bytes(range(16))), Topic("/others"))
LATER = LogId(BrokerId(bytes(range(1, 17))), Topic("/orders/new"))
PRODUCER = 2**63 + 5

SCHEMA = pa.schema(
    {
        "broker_id": pa.string(),
        "topic": pa.string(),
        "msg_no": pa.int64(),
        "utc": pa.timestamp("us", tz="UTC"),
        "id": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "payload": pa.binary(),
        "producer_id": pa.int64(),
        "producer_seq": pa.int64(),
        "holder": pa.string(),
    }
)


class Row(NamedTuple):
    """A message as a test knows it."""

    msg_no: int
    payload: bytes
    utc_us: int = UTC_US
    id: str | None = None
    headers: Mapping[str, str] | None = None
    flags: int = Flags.GLOBAL | Flags.PERSISTENT
    """Of all rows of a batch the same."""


def record(log_id: LogId, rows: Sequence[Row], producer_seq: int = 7) -> bytes:
    """The rows as one stamped batch."""
    newest = max(row.utc_us for row in rows)
    deltas = [newest - row.utc_us for row in rows]
    columns = Columns(
        [row.payload for row in rows],
        deltas if any(deltas) else None,
        [row.id for row in rows] if any(row.id is not None for row in rows) else None,
        [row.headers for row in rows] if any(row.headers for row in rows) else None,
    )
    frame = bytearray(
        encode_batch_frame(
            topic=log_id.topic.encode(),
            body=encode_columns(columns),
            count=len(rows),
            flags=rows[0].flags,
            utc_us=newest,
            producer_id=PRODUCER,
            producer_seq=producer_seq,
        )
    )
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        seed = broker_seed(log_id.broker_id)
        stamp_run(view, run, log_id.broker_id, seed, rows[0].msg_no)
    return bytes(frame)


def numbered(first_no: int, count: int, size: int = 20, utc_us: int = UTC_US) -> list[Row]:
    """Messages that tell which they are; each a microsecond after the one before."""
    return [
        Row(number, b"%d." % number + b"x" * (size - len(b"%d." % number)), utc_us + number)
        for number in range(first_no, first_no + count)
    ]


def write_log(
    directory: Path, log_id: LogId, batches: Iterable[Sequence[Row]], segment_batches: int = 1000
) -> list[Path]:
    """Write batches that follow on each other, some to a segment; the segments that there are."""
    clock = StoppedClock()
    store = FileStore(RealFiles(), clock, str(directory), StoreOptions(segment_age_s_max=1.0))
    log = store.create(log_id)
    for place, rows in enumerate(batches):
        if place and place % segment_batches == 0:
            clock.advance(2)  # the segment is too old now
        log.skip_to(type(log.next_no)(rows[0].msg_no))
        log.append(record(log_id, rows), len(rows), max(row.utc_us for row in rows))
    store.close()
    return segments(directory, log_id.broker_id)


def segments(directory: Path, broker_id: BrokerId = ORDERS.broker_id) -> list[Path]:
    return sorted((directory / "logs" / broker_id.hex()).glob("*.seg"))


def flip(path: Path, at: int) -> None:
    """Change one byte; a negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def drop(path: Path) -> None:
    """As retention does it."""
    path.unlink()
    Path(index_path(str(path))).unlink(missing_ok=True)


def read_rows(
    *directories: Path, pattern: str = "/*", span: Span | None = None, **options: Any
) -> list[dict[str, Any]]:
    """All that the directories hold, in the order of the parts, without Spark."""
    logs = Directories([str(each) for each in directories], Pattern(pattern), **options)
    rows: list[dict[str, Any]] = []
    for log_id, extent in logs.extents().items():
        wanted = span or Span(extent.first_no, extent.last_no)
        wanted = Span(
            wanted.first_no, min(wanted.last_no, extent.last_no), wanted.since_us, wanted.before_us
        )
        for part in logs.ranges(log_id, wanted, None):
            made = RecordRows(
                SCHEMA, log_id, part.span, tolerant=bool(options.get("tolerant", False))
            )
            batches = [batch for stretch in logs.read(part) for batch in made.add(stretch)]
            batches += made.finish()
            rows += [row for batch in batches for row in batch.to_pylist()]
    return rows


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["msg_no"] for row in rows]
