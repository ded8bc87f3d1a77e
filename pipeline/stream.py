"""Streams of messages: how far each micro-batch goes, in cursors.

An offset of Spark is a position: the last message done in each log, so that the same offsets always
mean the same messages, on whichever copy and however the files lie by then. The parts of a
micro-batch follow from its offsets alone: one that is run again after a crash gives each task the
rows that it had.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from busnode.pipeline.arrow import RecordBatch, Schema
from busnode.pipeline.batch import Part, check_known, open_logs, places, read_part
from busnode.pipeline.logs import Cursors, Extent
from busnode.pipeline.options import SourceOptions, decode_cursors, encode_cursors
from busnode.pipeline.record_rows import Span
from busnode.wire.errors import DataLost
from busnode.wire.ids import LogId

PART_ROWS: Final = 200_000
"""What one task reads of a micro-batch at most."""

Offset = dict[str, Any]


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver, for as long as a query runs."""

    def __init__(self, options: SourceOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema
        self._logs = open_logs(options)
        self._target: Cursors | None = None
        """Where a query ends that takes what is there and no more."""
        self._reached: Cursors = {}
        """How far each log was seen to go."""

    def initialOffset(self) -> Offset:
        start, extents = self._options.start, self._logs.extents()
        check_known(self._options, extents)
        if isinstance(start, dict):
            return encode_cursors(start)  # complete: logs that it does not name are read from 1
        return encode_cursors(places(start, extents, self._logs))

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {log: extent.last_no for log, extent in self._logs.extents().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        cursors = decode_cursors(start)
        extents = self._logs.extents()
        self._check_none_vanished(cursors, extents)
        self._reached = {log_id: extent.last_no for log_id, extent in extents.items()}
        ends = self._reached
        if self._target is not None:
            ends = {log: min(no, self._target.get(log, 0)) for log, no in ends.items()}
        behind = {
            log_id: end_no - cursors.get(log_id, 0)
            for log_id, end_no in sorted(ends.items())
            if end_no > cursors.get(log_id, 0)
        }
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for log_id, rows in shares(behind, rows_max).items():
            cursors[log_id] = cursors.get(log_id, 0) + rows
        return encode_cursors(cursors)

    def _check_none_vanished(self, cursors: Cursors, extents: dict[LogId, Extent]) -> None:
        for log_id, last_no in self._reached.items():
            first_no = cursors.get(log_id, 0) + 1
            vanished = log_id not in extents and last_no >= first_no
            if vanished and self._options.fail_on_data_loss:
                raise DataLost(
                    f"messages {first_no}–{last_no} of {log_id.topic} ({log_id.broker_id.hex()}) "
                    "are gone before the stream has read them"
                )

    def reportLatestOffset(self) -> Offset | None:
        return encode_cursors(self._reached) if self._reached else None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begin, parts = decode_cursors(start), list[InputPartition]()
        for log_id, last_no in decode_cursors(end).items():
            span = Span(begin.get(log_id, 0) + 1, last_no, self._since_us)
            if span.first_no <= span.last_no:
                parts += map(Part, self._logs.ranges(log_id, span, PART_ROWS))
        return parts

    @property
    def _since_us(self) -> int | None:
        start = self._options.start
        return start if isinstance(start, int) else None

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_part(partition, self._logs, self._schema, self._options)


def shares(behind: dict[LogId, int], rows_max: int | None) -> dict[LogId, int]:
    """How many messages each log gives: all, or at most so many together, the same for each as far
    as it has them."""
    if rows_max is None:
        return behind
    given: dict[LogId, int] = {}
    left = rows_max
    waiting = sorted(behind.items(), key=lambda each: each[1])
    for place, (log_id, rows) in enumerate(waiting):
        share = -(-left // (len(waiting) - place))
        given[log_id] = min(rows, share)
        left -= given[log_id]
    return {log_id: rows for log_id, rows in given.items() if rows}
