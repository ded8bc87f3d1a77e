"""The messages of a log as rows: JSON lines, or the columns of a Parquet file.

A batch stays a batch as long as it can: it is decoded once, and a column that no message of it has
costs next to nothing. What cannot be read comes in its place and is never left out in silence.
"""

import base64
import io
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from itertools import repeat
from json.encoder import encode_basestring
from posixpath import dirname
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.wire.batches import Columns, decode_columns
from busnode.wire.errors import BadBatch
from busnode.wire.frames import BatchHeader
from busnode.wire.ids import LogId, MsgNo
from busnode.world.files import AppendFile, Files

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ROWS_MAX: Final = 10_000
"""Rows of one record batch, and so of one row group: long enough columns to be worth packing."""

ROW_BYTES_MAX: Final = 64 * 1024 * 1024
"""Payload of one record batch, however few rows that makes: what an export holds in memory."""

WRITE_BYTES: Final = 1024 * 1024
"""What is appended to an exported file at once."""

_EPOCH: Final = datetime(1970, 1, 1)
_INT64: Final = range(-(2**63), 2**63)


# Reading --------------------------------------------------------------------------------------


Row = tuple[int, int, str | None, Mapping[str, str] | None, bytes]


class Batch(NamedTuple):
    """One batch of a log, decoded."""

    log_id: LogId
    header: BatchHeader
    columns: Columns

    def utc_us(self) -> list[int]:
        """When each message was made: the header has the time of the newest."""
        newest = self.header.utc_us
        deltas = self.columns.utc_deltas_us
        return [newest] * self.header.count if deltas is None else [newest - d for d in deltas]

    def cut(self, from_no: int, count: int | None) -> "Batch":
        """The messages from a number on, and of those no more than `count`."""
        skipped = max(from_no - self.header.first_no, 0)
        kept = slice(skipped, None if count is None else skipped + count)
        payloads, utc_deltas_us, ids, headers = (
            self.columns.payloads[kept],
            self.columns.utc_deltas_us and self.columns.utc_deltas_us[kept],
            self.columns.ids and self.columns.ids[kept],
            self.columns.headers and self.columns.headers[kept],
        )
        first_no = MsgNo(self.header.first_no + skipped)
        header = self.header._replace(first_no=first_no, count=len(payloads))
        return Batch(self.log_id, header, Columns(payloads, utc_deltas_us, ids, headers))

    def rows(self) -> Iterator[Row]:
        """Number, time, id, headers and payload of each message."""
        return zip(
            range(self.header.first_no, self.header.last_no + 1),
            self.utc_us(),
            self.columns.ids or repeat(None),
            self.columns.headers or repeat(None),
            self.columns.payloads,
            strict=False,  # what is repeated has no end
        )


class Damage(NamedTuple):
    """A range that cannot be had: a hole of this copy, or a batch whose body makes no sense.

    The hashes of the latter are right: it is as its producer made it, and no copy is better.
    """

    log_id: LogId
    kind: Literal["hole", "unreadable"]
    hole: Hole

    def __str__(self) -> str:
        hole = self.hole
        file = hole.path.rpartition("/")[2]
        where = f" ({file} at byte {hole.offset}, {hole.length} bytes)" if file else ""
        return f"{hole.first_no}–{hole.last_no or '?'} {self.kind}: {hole.reason}{where}"


def read_log(log: Log, from_no: int) -> Iterator[Batch | Damage]:
    """All that a log has, in order, beginning with the batch that holds `from_no`."""
    for found in read_batches(log, from_no - 1):
        if isinstance(found, Hole):
            yield Damage(log.log_id, "hole", found)
            continue
        header, body = found
        try:
            columns = decode_columns(body, header.count)
        except BadBatch as error:
            hole = Hole(header.first_no, header.last_no, "", 0, 0, error.text)
            yield Damage(log.log_id, "unreadable", hole)
        else:
            yield Batch(log.log_id, header, columns)


# JSON lines -----------------------------------------------------------------------------------

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_line(value: Mapping[str, Any]) -> bytes:
    return _encode(value).encode() + b"\n"


def log_fields(log_id: LogId | None) -> dict[str, Any]:
    """Whose it is; nulls for files that do not tell."""
    if log_id is None:
        return {"broker_id": None, "topic": None}
    return {"broker_id": log_id.broker_id.hex(), "topic": log_id.topic}


def hole_fields(hole: Hole) -> dict[str, Any]:
    fields: dict[str, Any] = {"first_no": hole.first_no, "last_no": hole.last_no or None}
    if hole.path:
        fields |= {"path": hole.path, "offset": hole.offset, "length": hole.length}
    return {**fields, "reason": hole.reason}


def damage_fields(damage: Damage) -> dict[str, Any]:
    return {**log_fields(damage.log_id), damage.kind: hole_fields(damage.hole)}


def json_messages(batch: Batch) -> bytes:
    """Each message of a batch as a JSON object on a line of its own.

    A payload that is not text is there in base64. The lines are put together from pieces, since
    most of an object is the same for the whole batch; measured: less than 2 µs a message, against
    15 for a dictionary each.
    """
    (broker_id, topic), header, _ = batch
    start = f'{{"broker_id":"{broker_id.hex()}","topic":{encode_basestring(topic)},"msg_no":'
    end = f',"producer_id":"{header.producer_id:016x}","producer_seq":{header.producer_seq}}}\n'
    lines = [
        f'{start}{msg_no},"utc":{_json_utc(utc_us)},'
        f'"id":{"null" if id_ is None else encode_basestring(id_)},'
        f'"headers":{_encode(headers) if headers else "{}"},'
        f"{_json_payload(payload)}{end}"
        for msg_no, utc_us, id_, headers, payload in batch.rows()
    ]
    return "".join(lines).encode()


@lru_cache(maxsize=64)
def _json_utc(utc_us: int) -> str:
    text = utc_text(utc_us)
    return f'null,"utc_us":{utc_us}' if text is None else f'"{text}"'


def _json_payload(payload: bytes) -> str:
    try:
        return f'"payload":{encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"payload_base64":"{base64.b64encode(payload).decode("ascii")}"'


def utc_text(utc_us: int) -> str | None:
    """ISO 8601 with microseconds, or None for what no calendar has: before year 1, after 9999."""
    try:
        return (_EPOCH + timedelta(microseconds=utc_us)).isoformat(timespec="microseconds") + "Z"
    except OverflowError:
        return None


class Rows(Protocol):
    """Writes batches to a stream in some format. The stream stays open."""

    def write(self, batch: Batch) -> None: ...

    def close(self) -> None:
        """Write what is still to be written."""
        ...

    def abandon(self) -> None:
        """Write nothing any more: something has gone wrong."""
        ...


class JsonRows:
    """One JSON object a line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, batch: Batch) -> None:
        self._stream.write(json_messages(batch))

    def close(self) -> None:
        self._stream.flush()

    def abandon(self) -> None:
        pass


# Parquet --------------------------------------------------------------------------------------


class ParquetRows:
    """Columns, gathered from batches into record batches. Raises ImportError without pyarrow."""

    def __init__(self, stream: IO[bytes]) -> None:
        pa: Any = import_module("pyarrow")  # it has no types of its own
        parquet: Any = import_module("pyarrow.parquet")
        self._pa = pa
        self._stream = stream
        self._valve = _Valve(stream)
        self._schema = pa.schema(
            {
                "broker_id": pa.string(),
                "topic": pa.dictionary(pa.int32(), pa.string()),
                "msg_no": pa.uint64(),
                "utc": pa.timestamp("us", tz="UTC"),
                "id": pa.string(),
                "headers": pa.map_(pa.string(), pa.string()),
                "payload": pa.binary(),
                "producer_id": pa.uint64(),
                "producer_seq": pa.uint64(),
            }
        )
        self._writer = parquet.ParquetWriter(self._valve, self._schema)
        self._columns: list[list[Any]] = [[] for _ in self._schema]
        self._bytes = 0

    def write(self, batch: Batch) -> None:
        (broker_id, topic), header, columns = batch
        count = header.count
        each_headers = columns.headers or [None] * count
        values: list[Iterable[Any]] = [
            [broker_id.hex()] * count,
            [topic] * count,
            range(header.first_no, header.last_no + 1),
            [utc if utc in _INT64 else None for utc in batch.utc_us()],
            columns.ids or [None] * count,
            [list(headers.items()) if headers else [] for headers in each_headers],
            columns.payloads,
            [header.producer_id] * count,
            [header.producer_seq] * count,
        ]
        for column, more in zip(self._columns, values, strict=True):
            column.extend(more)
        self._bytes += header.length
        if len(self._columns[0]) >= ROWS_MAX or self._bytes >= ROW_BYTES_MAX:
            self._write_record_batch()

    def _write_record_batch(self) -> None:
        arrays = [
            self._pa.array(column, type=field.type)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        self._writer.write_batch(self._pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._columns = [[] for _ in self._schema]
        self._bytes = 0

    def close(self) -> None:
        """Write what is left and the footer, without which no reader knows the file."""
        if self._columns[0]:
            self._write_record_batch()
        self._writer.close()
        self._stream.flush()

    def abandon(self) -> None:
        """Without a footer, so that nobody takes what there is for a whole file."""
        self._valve.shut = True
        self._writer.is_open = False  # or it would close itself later, and complain about the pipe


class _Valve(io.RawIOBase):
    """Passes on what is written until it is shut: pyarrow writes a footer whatever happens."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.shut = False

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        with memoryview(data) as view:
            if not self.shut:
                self._stream.write(view)
            return view.nbytes


# The file -------------------------------------------------------------------------------------


class AppendStream(io.RawIOBase):
    """A file of the seam as the kind of stream that libraries write to."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        with memoryview(data) as view:
            self._file.append(view)
            return view.nbytes


@contextmanager
def replaced(files: Files, path: str) -> Generator[IO[bytes], None, None]:
    """A stream whose contents become those of `path` when the block ends well, and only then."""
    scratch = path + ".new"
    if files.exists(scratch):
        files.remove(scratch)
    file = files.append_to(scratch)
    try:
        with io.BufferedWriter(AppendStream(file), WRITE_BYTES) as stream:
            yield stream
        file.sync()
        file.close()
        files.rename(scratch, path)
    except BaseException:
        file.close()
        with suppress(OSError):
            files.remove(scratch)
        raise
    files.sync_directory(dirname(path))
