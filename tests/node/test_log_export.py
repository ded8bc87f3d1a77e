"""Messages as rows: JSON lines and Parquet."""

import base64
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.node.log_export import (
    ROWS_MAX,
    Batch,
    Damage,
    JsonRows,
    ParquetRows,
    json_messages,
    read_log,
    replaced,
    utc_text,
)
from busnode.segments.file_store import FileStore
from busnode.wire.batches import Columns
from busnode.wire.frames import BATCH_KIND, BatchHeader
from busnode.wire.ids import LogId, MsgNo, ProducerId, Topic
from busnode.world.real_files import RealFiles
from busnode.world.real_world import real_world

from . import FIRST_BROKER, PRODUCER_ID, UTC_US, DataDirectory, flip, make_plant, segment

TEMPS = LogId(FIRST_BROKER, Topic("/plant/north/temp"))


def batch(columns: Columns, first_no: int = 1, utc_us: int = UTC_US) -> Batch:
    header = BatchHeader(
        1000, BATCH_KIND, FIRST_BROKER, MsgNo(first_no), 0, 0, len(columns.payloads), 7,
        len(TEMPS.topic), utc_us, ProducerId(PRODUCER_ID), 9,
    )  # fmt: skip
    return Batch(TEMPS, header, columns)


def objects(of: Batch) -> list[dict[str, Any]]:
    return [json.loads(line) for line in json_messages(of).split(b"\n")[:-1]]


def read(path: Path, log_id: LogId, from_no: int = 1) -> list[Batch | Damage]:
    world = real_world()
    store = FileStore(world.files, world.clock, str(path), read_only=True)
    try:
        log = store.get(log_id)
        assert log is not None
        return list(read_log(log, from_no))
    finally:
        store.close()


# Reading --------------------------------------------------------------------------------------


def test_a_log_is_read_batch_by_batch(tmp_path: Path) -> None:
    found = read(make_plant(tmp_path), TEMPS)
    assert [each.columns.payloads for each in found if isinstance(each, Batch)] == [
        [b"21.5", b"21.6", b"21.7"],
        [b"21.8", b"21.9"],
    ]


def test_reading_begins_with_the_batch_that_holds_the_number(tmp_path: Path) -> None:
    found = read(make_plant(tmp_path), TEMPS, from_no=4)
    assert [each.header.first_no for each in found if isinstance(each, Batch)] == [4]


def test_a_damaged_record_is_a_hole_in_its_place(tmp_path: Path) -> None:
    path = make_plant(tmp_path)
    flip(segment(path, *TEMPS), 512 + 110)
    hole, after = read(path, TEMPS)
    assert isinstance(hole, Damage)
    assert (hole.kind, hole.hole.first_no, hole.hole.last_no) == ("hole", 1, 3)
    assert "at byte 512" in str(hole)
    assert isinstance(after, Batch)
    assert after.header.first_no == 4


def test_a_body_that_makes_no_sense_is_unreadable_and_what_follows_is_read(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.write_body(*TEMPS, msgpack.packb([None, None, None, ["text"]]), 1)
    directory.write_body(*TEMPS, b"\xc1not msgpack", 3)
    directory.write(*TEMPS, Columns([b"good"]))
    directory.close()
    first, second, good = read(tmp_path, TEMPS)
    assert isinstance(first, Damage)
    assert (first.kind, first.hole.first_no, first.hole.last_no) == ("unreadable", 1, 1)
    assert isinstance(second, Damage)
    assert (second.kind, second.hole.first_no, second.hole.last_no) == ("unreadable", 2, 4)
    assert isinstance(good, Batch)


def test_the_time_of_a_message_is_that_of_its_batch_less_its_delta() -> None:
    assert batch(Columns([b""] * 3, [5, 1, 0])).utc_us() == [UTC_US - 5, UTC_US - 1, UTC_US]
    assert batch(Columns([b""] * 2)).utc_us() == [UTC_US, UTC_US]


@given(st.integers(1, 12), st.integers(0, 20), st.none() | st.integers(1, 20), st.booleans())
def test_a_cut_batch_has_just_the_rows_that_were_wanted(
    count: int, from_no: int, wanted: int | None, full: bool
) -> None:
    columns = Columns(
        [b"%d" % i for i in range(count)],
        list(range(count)) if full else None,
        [str(i) for i in range(count)] if full else None,
        [{"n": str(i)} for i in range(count)] if full else None,
    )
    whole = batch(columns, first_no=5)
    rows = [row for row in whole.rows() if row[0] >= from_no][:wanted]
    assert list(whole.cut(from_no, wanted).rows()) == rows


# JSON lines -----------------------------------------------------------------------------------


def test_a_message_is_an_object_with_all_its_fields() -> None:
    columns = Columns([b"21.5", b"x"], [1_000_000, 0], ["order-1", None], [{"k": "v"}, None])
    assert objects(batch(columns, first_no=41)) == [
        {
            "broker_id": FIRST_BROKER.hex(),
            "topic": "/plant/north/temp",
            "msg_no": 41,
            "utc": "2023-11-14T22:13:19.123456Z",
            "id": "order-1",
            "headers": {"k": "v"},
            "payload": "21.5",
            "producer_id": "0000000000abcdef",
            "producer_seq": 9,
        },
        {
            "broker_id": FIRST_BROKER.hex(),
            "topic": "/plant/north/temp",
            "msg_no": 42,
            "utc": "2023-11-14T22:13:20.123456Z",
            "id": None,
            "headers": {},
            "payload": "x",
            "producer_id": "0000000000abcdef",
            "producer_seq": 9,
        },
    ]


def test_a_payload_that_is_not_text_is_there_in_base64() -> None:
    (fields,) = objects(batch(Columns([b"\xff\x00"])))
    assert "payload" not in fields
    assert base64.b64decode(fields["payload_base64"]) == b"\xff\x00"


TEXT = st.text(max_size=20)


@given(st.lists(st.tuples(st.binary(max_size=40), TEXT, st.dictionaries(TEXT, TEXT)), min_size=1))
def test_whatever_is_in_a_message_comes_back_from_json(
    rows: list[tuple[bytes, str, dict[str, str]]],
) -> None:
    payloads, ids, headers = (list(column) for column in zip(*rows, strict=True))
    read_back = objects(batch(Columns(payloads, None, ids, headers)))
    assert [
        each["payload"].encode() if "payload" in each else base64.b64decode(each["payload_base64"])
        for each in read_back
    ] == payloads
    assert [each["id"] for each in read_back] == ids
    assert [each["headers"] for each in read_back] == headers


@given(st.datetimes())
def test_a_time_is_written_as_any_reader_of_iso_8601_has_it(when: datetime) -> None:
    utc_us = (when - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    text = utc_text(utc_us)
    assert text is not None
    assert datetime.fromisoformat(text) == when.replace(tzinfo=UTC)


def test_a_time_in_no_calendar_is_null_and_its_number_is_kept() -> None:
    (fields,) = objects(batch(Columns([b""]), utc_us=2**64 - 1))
    assert (fields["utc"], fields["utc_us"]) == (None, 2**64 - 1)


# Parquet --------------------------------------------------------------------------------------


def table_of(stream: io.BytesIO) -> Any:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(io.BytesIO(stream.getvalue()))


@pytest.fixture
def parquet_stream() -> io.BytesIO:
    pytest.importorskip("pyarrow")
    return io.BytesIO()


def test_parquet_has_the_columns_with_their_types(parquet_stream: io.BytesIO) -> None:
    rows = ParquetRows(parquet_stream)
    rows.write(batch(Columns([b"\xff", b""], [7, 0], ["a", None], [{"k": "v"}, None])))
    rows.close()
    table = table_of(parquet_stream)
    assert {field.name: str(field.type) for field in table.schema} == {
        "broker_id": "string",
        "topic": "dictionary<values=string, indices=int32, ordered=0>",
        "msg_no": "uint64",
        "utc": "timestamp[us, tz=UTC]",
        "id": "string",
        "headers": "map<string, string ('headers')>",
        "payload": "binary",
        "producer_id": "uint64",
        "producer_seq": "uint64",
    }
    first, second = table.to_pylist()
    when = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert first == {
        "broker_id": FIRST_BROKER.hex(),
        "topic": "/plant/north/temp",
        "msg_no": 1,
        "utc": when - timedelta(microseconds=7),
        "id": "a",
        "headers": [("k", "v")],
        "payload": b"\xff",
        "producer_id": PRODUCER_ID,
        "producer_seq": 9,
    }
    assert (second["utc"], second["id"], second["headers"]) == (when, None, [])


def test_numbers_at_the_end_of_their_range_fit_into_parquet(parquet_stream: io.BytesIO) -> None:
    last = batch(Columns([b""]), utc_us=2**64 - 1)
    header = last.header._replace(
        first_no=MsgNo(2**64 - 1), producer_id=ProducerId(2**64 - 1), producer_seq=2**64 - 1
    )
    rows = ParquetRows(parquet_stream)
    rows.write(last._replace(header=header))
    rows.close()
    (row,) = table_of(parquet_stream).to_pylist()
    assert row["msg_no"] == row["producer_id"] == row["producer_seq"] == 2**64 - 1
    assert row["utc"] is None


def test_batches_are_gathered_into_groups_of_rows(parquet_stream: io.BytesIO) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = ParquetRows(parquet_stream)
    count = 25
    for i in range(count):
        rows.write(batch(Columns([b"x"] * 1000), first_no=1 + i * 1000))
    rows.close()
    file = parquet.ParquetFile(io.BytesIO(parquet_stream.getvalue()))
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [ROWS_MAX, ROWS_MAX, 5000]
    assert file.read()["msg_no"].to_pylist() == list(range(1, 1000 * count + 1))


def test_large_payloads_are_not_gathered_until_the_memory_is_full(
    parquet_stream: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("busnode.node.log_export.ROW_BYTES_MAX", 2500)
    rows = ParquetRows(parquet_stream)
    for i in range(6):
        rows.write(batch(Columns([b"x"]), first_no=1 + i))  # each says that it has 1000 bytes
    rows.close()
    assert parquet.ParquetFile(io.BytesIO(parquet_stream.getvalue())).num_row_groups == 2


def test_no_messages_make_a_parquet_file_without_rows(parquet_stream: io.BytesIO) -> None:
    ParquetRows(parquet_stream).close()
    assert table_of(parquet_stream).num_rows == 0


def test_an_abandoned_parquet_file_is_not_taken_for_a_whole_one(parquet_stream: io.BytesIO) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = ParquetRows(parquet_stream)
    rows.write(batch(Columns([b"x"] * ROWS_MAX)))
    rows.abandon()
    del rows
    with pytest.raises(pa.ArrowInvalid):
        table_of(parquet_stream)


# The file -------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with replaced(RealFiles(), str(target)) as stream:
        JsonRows(stream).write(batch(Columns([b"x"])))
        assert not target.exists()
    assert json.loads(target.read_bytes())["payload"] == "x"
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_file_is_left_as_it_was_when_something_goes_wrong(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"before")

    def export() -> None:
        with replaced(RealFiles(), str(target)) as stream:
            stream.write(b"half of i")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export()
    assert target.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]


def test_what_a_killed_export_has_left_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.new").write_bytes(b"left behind")
    with replaced(RealFiles(), str(tmp_path / "out.jsonl")) as stream:
        stream.write(b"whole")
    assert (tmp_path / "out.jsonl").read_bytes() == b"whole"
