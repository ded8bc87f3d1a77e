"""Records become rows: whatever a batch holds, and only what is asked for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.pipeline.arrow_columns import payload_table
from busnode.pipeline.record_rows import ROWS, RecordRows, Span, Stretch
from busnode.wire.batches import Columns, decode_columns, encode_columns
from busnode.wire.errors import DataLost
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.runs import stamp_run, verify_runs
from tests.segments.samples import UTC_US

from .written_logs import ORDERS, PRODUCER, SCHEMA, Row, numbered, record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(
    *records: bytes, span: Span | None = None, schema: Any = SCHEMA, tolerant: bool = False
) -> list[dict[str, Any]]:
    made = RecordRows(schema, ORDERS, span or Span(), tolerant=tolerant)
    stretch = Stretch("n1", memoryview(b"".join(records)))
    batches = [*made.add(stretch), *made.finish()]
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_message_has_every_column() -> None:
    row = Row(41, b"payload", UTC_US, "id-1", {"k": "v", "l": "w"})
    assert rows_of(record(ORDERS, [row])) == [
        {
            "broker_id": ORDERS.broker_id.hex(),
            "topic": "/orders/new",
            "msg_no": 41,
            "utc": EPOCH + timedelta(microseconds=UTC_US),
            "id": "id-1",
            "headers": [("k", "v"), ("l", "w")],
            "payload": b"payload",
            "producer_id": PRODUCER - 2**64,
            "producer_seq": 7,
            "holder": "n1",
        }
    ]


def test_what_a_message_lacks_is_null_or_empty() -> None:
    rows = [Row(1, b"a"), Row(2, b"", id="x"), Row(3, b"ccc", headers={"k": "v"}), Row(4, b"d")]
    found = rows_of(record(ORDERS, rows[:2]), record(ORDERS, rows[2:]))
    assert [row["id"] for row in found] == [None, "x", None, None]
    assert [row["headers"] for row in found] == [[], [], [("k", "v")], []]
    assert [row["payload"] for row in found] == [b"a", b"", b"ccc", b"d"]
    assert [row["msg_no"] for row in found] == [1, 2, 3, 4]


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.binary(max_size=300),
                st.integers(-(2**40), 2**40),
                st.none() | st.text(max_size=9),
                st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
            ),
            min_size=1,
            max_size=20,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 90),
    st.integers(1, 90),
)
def test_any_messages_come_out_as_they_went_in(
    batches: list[list[tuple[bytes, int, str | None, dict[str, str] | None]]], first: int, last: int
) -> None:
    number, records, expected = 1, [], []
    for batch in batches:
        rows = [
            Row(number + place, payload, UTC_US + delta, id_, headers)
            for place, (payload, delta, id_, headers) in enumerate(batch)
        ]
        number += len(rows)
        records.append(record(ORDERS, rows))
        expected += [row for row in rows if first <= row.msg_no <= last]
    found = rows_of(*records, span=Span(first, last))
    assert [row["msg_no"] for row in found] == [row.msg_no for row in expected]
    assert [row["payload"] for row in found] == [row.payload for row in expected]
    assert [row["id"] for row in found] == [row.id for row in expected]
    assert [dict(row["headers"]) for row in found] == [row.headers or {} for row in expected]
    assert [(row["utc"] - EPOCH) // timedelta(microseconds=1) for row in found] == [
        row.utc_us for row in expected
    ]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [1, 15, 16, 20])
def test_payloads_of_one_length_are_taken_as_a_table(size: int, count: int) -> None:
    payloads = [bytes([place]) * size for place in range(count)]
    body = memoryview(encode_columns(Columns(payloads)))
    table = payload_table(body, 4, count)
    if size < 65_536:
        assert table is not None
        assert [each.tobytes() for each in table] == payloads
    else:
        assert table is None


@given(st.binary(max_size=80), st.integers(1, 20))
def test_what_is_no_table_is_never_taken_for_one(tail: bytes, count: int) -> None:
    body = memoryview(b"\x94\xc0\xc0\xc0" + tail)
    table = payload_table(body, 4, count)
    if table is not None:
        assert [each.tobytes() for each in table] == decode_columns(body, count).payloads


def test_record_batches_have_about_ten_thousand_rows() -> None:
    made = RecordRows(SCHEMA, ORDERS, Span())
    data = b"".join(record(ORDERS, numbered(1 + 1000 * part, 1000)) for part in range(25))
    sizes = [
        batch.num_rows for batch in (*made.add(Stretch("n1", memoryview(data))), *made.finish())
    ]
    assert sizes == [ROWS, ROWS, 5000]


def test_only_messages_of_the_time_come() -> None:
    data = [record(ORDERS, numbered(1, 10)), record(ORDERS, numbered(11, 10))]
    span = Span(since_us=UTC_US + 5, before_us=UTC_US + 15)
    assert [row["msg_no"] for row in rows_of(*data, span=span)] == [*range(5, 15)]


def bad_body(rows: list[Row]) -> bytes:
    """A batch whose hashes are right, and whose body is nonsense."""
    frame = bytearray(
        encode_batch_frame(
            topic=ORDERS.topic.encode(), body=b"\x94\xc0\xc0\xc0\x92\x01\x02", count=len(rows),
            flags=Flags.GLOBAL | Flags.PERSISTENT, utc_us=UTC_US, producer_id=1, producer_seq=1,
        )
    )  # fmt: skip
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        seed = broker_seed(ORDERS.broker_id)
        stamp_run(view, run, ORDERS.broker_id, seed, rows[0].msg_no)
    return bytes(frame)


def test_a_body_that_makes_no_sense_is_lost_and_never_left_out_in_silence() -> None:
    data = record(ORDERS, numbered(1, 2)), bad_body(numbered(3, 2)), record(ORDERS, numbered(5, 2))
    with pytest.raises(DataLost, match="messages 3–4"):
        rows_of(*data)
    assert [row["msg_no"] for row in rows_of(*data, tolerant=True)] == [1, 2, 5, 6]


def test_a_body_is_not_looked_at_for_columns_that_stand_in_the_header() -> None:
    schema = pa.schema([SCHEMA.field(name) for name in ("msg_no", "topic", "producer_seq")])
    assert [row["msg_no"] for row in rows_of(bad_body(numbered(3, 2)), schema=schema)] == [3, 4]


def test_a_time_beyond_all_times_is_the_last_one() -> None:
    rows = [Row(1, b"a", 2**64 - 1)]
    schema = pa.schema({"utc": pa.timestamp("us", tz="UTC")})
    made = RecordRows(schema, ORDERS, Span())
    (batch,) = [*made.add(Stretch("n1", memoryview(record(ORDERS, rows)))), *made.finish()]
    assert batch.column(0).cast(pa.int64()).to_pylist() == [2**63 - 1]
