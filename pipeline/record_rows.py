"""Records of a log as rows of a table: stretches of records in, Arrow record batches out.

This is the one place where batches are taken apart for the pipeline, wherever they come from. A row
is never touched alone: a record adds a few numbers to lists and its columns as they are, and arrays
are made of them once for about ten thousand rows. Of a body only those columns are decoded that the
table has; payloads of one length, which most records have, are never made into Python objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from busnode.pipeline.arrow import Array, RecordBatch, Schema, pa
from busnode.pipeline.arrow_columns import (
    Bytes,
    Numbers,
    map_column,
    payload_column,
    payload_table,
    text_column,
)
from busnode.wire.batches import decode_beside_payloads, decode_payloads
from busnode.wire.errors import BadBatch, DataLost
from busnode.wire.frames import HEADER_BYTES, BatchHeader, read_header
from busnode.wire.ids import LogId

ROWS: Final = 10_000
"""Rows of a record batch at least, unless there are no more: what Spark takes at once."""

BYTES_MAX: Final = 16 * 1024 * 1024
"""Payload of a record batch, however few rows that makes; one more record may be added."""

UTC_US_MAX: Final = 2**63 - 1


class Stretch(NamedTuple):
    """Whole records of one log, one behind the other, verified."""

    holder: str
    """Whose copy it is."""
    data: memoryview
    """It stays as it is for as long as somebody holds it."""
    first_no: int = 1
    """What it has of messages before this one came in another stretch."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which messages of a log are wanted."""

    first_no: int = 1
    last_no: int = UTC_US_MAX
    since_us: int | None = None
    """Not older than this."""
    before_us: int | None = None
    """Older than this."""

    @property
    def by_time(self) -> bool:
        return self.since_us is not None or self.before_us is not None


@dataclass(slots=True)
class _Gathered:
    """What waits to become a record batch."""

    rows: int = 0
    size_bytes: int = 0
    first_nos: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])
    headers: list[BatchHeader] = field(default_factory=list[BatchHeader])
    utc_deltas_us: list[Sequence[int] | None] = field(default_factory=list[Sequence[int] | None])
    ids: list[Sequence[str | None] | None] = field(
        default_factory=list[Sequence[str | None] | None]
    )
    maps: list[Sequence[Mapping[str, str] | None] | None] = field(
        default_factory=list[Sequence[Mapping[str, str] | None] | None]
    )
    payloads: list[Bytes | list[bytes]] = field(default_factory=list[Any])
    """Of each record: a table of bytes, a row for each payload, or the payloads."""


class RecordRows:
    """Makes the rows of one log. `add` each stretch, and `finish`."""

    def __init__(
        self, schema: Schema, log_id: LogId, span: Span, *, tolerant: bool = False
    ) -> None:
        """The schema has some of the columns of a table, in any order. A `tolerant` one leaves out
        batches whose columns make no sense; else they are DataLost."""
        self._schema = schema
        self._log_id = log_id
        self._span = span
        self._tolerant = tolerant
        names: set[str] = set(schema.names)
        self._wants_utc = "utc" in names or span.by_time
        self._wants_ids = "id" in names
        self._wants_headers = "headers" in names
        self._wants_payloads = "payload" in names
        self._wants_body = self._wants_ids or self._wants_headers or self._wants_payloads
        self._gathered = _Gathered()
        self._holder = ""
        self._same: dict[str, Array] = {}

    def add(self, stretch: Stretch) -> Iterator[RecordBatch]:
        """Take records in the order of their numbers; what is complete comes out."""
        if stretch.holder != self._holder:
            yield from self.finish()
            self._holder = stretch.holder
            self._same.pop("holder", None)
        view = stretch.data
        at, end = 0, len(view)
        while at < end:
            header = read_header(view, at)
            after = at + header.length
            body = view[at + HEADER_BYTES + header.topic_bytes : after]
            self._take(header, body, max(self._span.first_no, stretch.first_no))
            at = after
            if self._gathered.rows >= ROWS or self._gathered.size_bytes >= BYTES_MAX:
                yield from self.finish()

    def finish(self) -> Iterator[RecordBatch]:
        """What is left."""
        gathered, self._gathered = self._gathered, _Gathered()
        if gathered.rows:
            batch = self._made(gathered)
            if batch.num_rows:
                yield batch

    # Taking in ------------------------------------------------------------------------------------

    def _take(self, header: BatchHeader, body: memoryview, first_no: int) -> None:
        span = self._span
        skip = max(first_no - header.first_no, 0)
        stop = min(span.last_no - header.first_no + 1, header.count)
        if skip >= stop:
            return
        if span.since_us is not None and header.utc_us < span.since_us:
            return  # its time is that of its newest message
        gathered = self._gathered
        if self._wants_body or self._wants_utc:
            try:
                self._decode(header, body, slice(skip, stop))
            except BadBatch as error:
                if self._tolerant:
                    return
                raise DataLost(
                    f"messages {header.first_no}–{header.last_no} of {self._log_id} cannot be "
                    f"read, as their producer made them: {error.text}"
                ) from error
        gathered.first_nos.append(header.first_no + skip)
        gathered.counts.append(stop - skip)
        gathered.headers.append(header)
        gathered.rows += stop - skip

    def _decode(self, header: BatchHeader, body: memoryview, kept: slice) -> None:
        """Check all, then keep it."""
        deltas, ids, maps, at = decode_beside_payloads(
            body, header.count, utc=self._wants_utc, ids=self._wants_ids,
            headers=self._wants_headers,
        )  # fmt: skip
        gathered = self._gathered
        if self._wants_payloads:
            table = payload_table(body, at, header.count)
            payloads = decode_payloads(body, at, header.count) if table is None else table
            gathered.payloads.append(payloads[kept])
            gathered.size_bytes += len(body)
        gathered.utc_deltas_us.append(None if deltas is None else deltas[kept])
        gathered.ids.append(None if ids is None else ids[kept])
        gathered.maps.append(None if maps is None else maps[kept])

    # Making ---------------------------------------------------------------------------------------

    def _made(self, gathered: _Gathered) -> RecordBatch:
        counts = np.array(gathered.counts, np.int64)
        utc_us = self._utc_us(gathered, counts) if self._wants_utc else None
        arrays = [self._array(each.name, gathered, counts, utc_us) for each in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if utc_us is None or not self._span.by_time:
            return batch
        since_us, before_us = self._span.since_us, self._span.before_us
        wanted = np.ones(len(utc_us), np.bool_)
        if since_us is not None:
            wanted &= utc_us >= since_us
        if before_us is not None:
            wanted &= utc_us < before_us
        return batch if wanted.all() else batch.filter(pa.array(wanted))

    def _array(
        self, name: str, gathered: _Gathered, counts: Numbers, utc_us: Numbers | None
    ) -> Array:
        rows = gathered.rows
        match name:
            case "broker_id":
                return self._constant(name, self._log_id.broker_id.hex(), rows)
            case "topic":
                return self._constant(name, self._log_id.topic, rows)
            case "holder":
                return self._constant(name, self._holder, rows)
            case "msg_no":
                firsts = np.array(gathered.first_nos, np.int64)
                before = np.cumsum(counts) - counts
                return pa.array(np.repeat(firsts - before, counts) + np.arange(rows))
            case "utc":
                return pa.array(utc_us).cast(self._schema.field(name).type)
            case "producer_id":
                return self._repeated([each.producer_id for each in gathered.headers], counts)
            case "producer_seq":
                return self._repeated([each.producer_seq for each in gathered.headers], counts)
            case "flags":
                return self._repeated([each.flags for each in gathered.headers], counts)
            case "id":
                return text_column(gathered.ids, gathered.counts)
            case "headers":
                return map_column(gathered.maps, counts, self._schema.field(name).type)
            case "payload":
                return payload_column(gathered.payloads)
            case _:
                raise AssertionError(name)

    def _constant(self, name: str, value: str, rows: int) -> Array:
        """The same text for all rows: made once, and cut to length."""
        kept = self._same.get(name)
        if kept is None or len(kept) < rows:
            kept = self._same[name] = pa.repeat(value, max(rows, 2 * ROWS))
        return kept.slice(0, rows)

    def _repeated(self, values: list[int], counts: Numbers) -> Array:
        """A number of each record for all its rows; above 2^63 it is that number less 2^64."""
        return pa.array(np.repeat(np.array(values, np.uint64).view(np.int64), counts))

    def _utc_us(self, gathered: _Gathered, counts: Numbers) -> Numbers:
        newest = [min(each.utc_us, UTC_US_MAX) for each in gathered.headers]
        utc_us = np.repeat(np.array(newest, np.int64), counts)
        if any(deltas is not None for deltas in gathered.utc_deltas_us):
            at = 0
            for deltas, count in zip(gathered.utc_deltas_us, gathered.counts, strict=True):
                if deltas is not None:
                    utc_us[at : at + count] -= _deltas(deltas)
                at += count
        return utc_us


def _deltas(deltas_us: Sequence[int]) -> Numbers:
    """Whoever gives a message a time before or after all times gets the first or the last one."""
    try:
        return np.array(deltas_us, np.int64)
    except OverflowError:
        return np.clip(np.array(deltas_us, np.float64), -(2.0**62), 2.0**62).astype(np.int64)
