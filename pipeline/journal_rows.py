"""Journals of task queues as rows: what became of which tasks, as `tasks/journal.py` writes it.

A record is for many tasks at once. It becomes a row for each run of numbers that are finished, and
one for each task of which an attempt has failed. Records of other kinds tell nothing new.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgpack

from busnode.pipeline.arrow import RecordBatch, pa
from busnode.pipeline.work import map_in_arrow
from busnode.wire.errors import DataLost
from busnode.wire.shapes import is_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOURNAL: Final = "/$sys/task/journal/"
COLUMNS: Final = "broker_id string, topic string, msg_no bigint, utc timestamp, payload binary"
"""What is read of journals."""

FINISHED: Final = 1
FAILED: Final = 2
REQUEUED: Final = 3
TOLD: Final = {FINISHED: 3, FAILED: 7, REQUEUED: 2}
"""The kinds of records that matter here, and how many elements each has."""

DEAD: Final = -1
"""The due time of what will not be tried again."""

SCHEMA: Final = (
    "broker_id string, queue string, record bigint, at timestamp, what string, first_no bigint, "
    "last_no bigint, attempt bigint, worker string, error string"
)
"""`what` is how tasks have ended (completed, deleted, carried …), failed, dead, or requeued."""

_ARROW: Final = pa.schema(
    {
        "broker_id": pa.string(),
        "queue": pa.string(),
        "record": pa.int64(),
        "at": pa.timestamp("us", tz="UTC"),
        "what": pa.string(),
        "first_no": pa.int64(),
        "last_no": pa.int64(),
        "attempt": pa.int64(),
        "worker": pa.string(),
        "error": pa.string(),
    }
)

Row = tuple[str, int, int, int | None, str | None, str | None]


def journal_rows(journals: "DataFrame") -> "DataFrame":
    """Rows of all records in a table of journals. DataLost for a record that makes no sense."""

    def decode(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for message in batch.to_pylist():
                rows += _rows_of(message)
            yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)

    columns = "broker_id", "topic", "msg_no", "utc", "payload"
    return map_in_arrow(journals.select(*columns), decode, SCHEMA)


def _rows_of(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    topic, record = message["topic"], message["msg_no"]
    try:
        found = list(rows_of(message["payload"]))
    except (ValueError, TypeError) as error:
        raise DataLost(
            f"record {record} of {topic} ({message['broker_id']}) is none of a task queue: "
            f"{error!s:.200}"
        ) from error
    for what, first_no, last_no, attempt, worker, text in found:
        yield {
            "broker_id": message["broker_id"],
            "queue": topic.removeprefix(JOURNAL),
            "record": record,
            "at": message["utc"],
            "what": what,
            "first_no": first_no,
            "last_no": last_no,
            "attempt": attempt,
            "worker": worker,
            "error": text,
        }


def rows_of(encoded: bytes) -> Iterator[Row]:
    """What one record says. ValueError or TypeError for what is none."""
    fields: Any = msgpack.unpackb(encoded)
    if not is_list(fields) or not fields:
        raise ValueError("no list")
    kind = fields[0]
    if len(fields) != TOLD.get(kind, len(fields)):
        raise ValueError(f"a record of kind {kind} with {len(fields)} elements")
    if kind == FAILED:
        _, numbers, attempts, due_us, _, worker, error = fields
        for number, attempt, due in zip(numbers, attempts, due_us, strict=True):
            yield "dead" if due == DEAD else "failed", number, number, attempt, worker, error
    elif kind in TOLD:
        runs: Any = fields[-1]
        for first_no, last_no in zip(runs[::2], runs[1::2], strict=True):
            what = fields[1] if kind == FINISHED else "requeued"
            yield what, first_no, last_no, None, None, None
