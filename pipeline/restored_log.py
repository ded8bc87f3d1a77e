"""Rows of an archive as records of a log again.

Rows that follow on each other and have the same producer, number and flags were one batch, and
become one again, with the same numbers, times, ids, headers, payloads and scope.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from busnode.pipeline.arrow import RecordBatch, Table, pa
from busnode.segments.store import Log
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import LogId, MsgNo
from busnode.wire.limits import BATCH_MESSAGES_MAX
from busnode.wire.runs import stamp_run, verify_runs

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Payload in one record, where rows do not tell that they were one batch: those of nodes have all
the same number."""

U64: Final = (1 << 64) - 1


def append_rows(log: Log, log_id: LogId, table: Table) -> int:
    """Append the rows of one log, in the order of their numbers; how many there were.

    Where numbers are missing the log has a hole, as the archive has.
    """
    for batch in table.combine_chunks().to_batches():
        for first, last in _runs(batch):
            _append(log, log_id, batch.slice(first, last - first))
    return int(table.num_rows)


def _runs(batch: RecordBatch) -> Iterator[tuple[int, int]]:
    """Which rows make a record: from where to where."""
    numbers = batch.column("msg_no").to_numpy()
    producers = batch.column("producer_id").to_numpy()
    seqs = batch.column("producer_seq").to_numpy()
    flags = batch.column("flags").to_numpy()
    changes = np.diff(numbers) != 1
    for column in (producers, seqs, flags):
        changes |= np.diff(column) != 0
    cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(numbers)]
    payloads = batch.column("payload")
    ends = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :]
    ends = ends[: len(payloads) + 1]
    for first, last in pairwise(cuts):
        at = first
        while at < last:
            room = int(np.searchsorted(ends, int(ends[at]) + BATCH_BYTES_MAX, "right")) - 1
            end = min(last, at + BATCH_MESSAGES_MAX, max(room, at + 1))
            yield at, end
            at = end


def _append(log: Log, log_id: LogId, rows: RecordBatch) -> None:
    count = rows.num_rows
    utc_us = rows.column("utc").view(pa.int64()).to_numpy()
    newest = int(utc_us.max())
    deltas = None if newest == utc_us.min() else (newest - utc_us).tolist()
    ids = rows.column("id")
    maps = rows.column("headers")
    headers = None
    if len(maps) and maps.offsets[0].as_py() != maps.offsets[-1].as_py():
        pairs = cast("list[list[tuple[str, str]]]", maps.to_pylist())
        headers = [dict(each) if each else None for each in pairs]
    columns = Columns(
        cast("list[bytes]", rows.column("payload").to_pylist()),
        deltas,
        None if ids.null_count == count else cast("list[str | None]", ids.to_pylist()),
        headers,
    )
    first_no = _number(rows, "msg_no")
    frame = bytearray(
        encode_batch_frame(
            topic=log_id.topic.encode(),
            body=encode_columns(columns),
            count=count,
            flags=Flags(_number(rows, "flags")),
            utc_us=newest,
            producer_id=_number(rows, "producer_id") & U64,
            producer_seq=_number(rows, "producer_seq") & U64,
        )
    )
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        stamp_run(view, run, log_id.broker_id, broker_seed(log_id.broker_id), first_no)
    log.skip_to(MsgNo(first_no))
    log.append(frame, count, newest)


def _number(rows: RecordBatch, name: str) -> int:
    first: Any = rows.column(name)[0].as_py()
    return int(first)
