"""How far a micro-batch goes."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from busnode.pipeline.batch import MessageReader, Part
from busnode.pipeline.options import decode_cursors, source_options
from busnode.pipeline.stream import MessageStreamReader, shares
from busnode.wire.errors import DataLost
from busnode.wire.ids import LogId

from .written_logs import (
    LATER,
    ORDERS,
    OTHERS,
    SCHEMA,
    drop,
    numbered,
    segments,
    write_log,
)

ALL = ReadAllAvailable()


def reader(directory: Path, **options: str) -> MessageStreamReader:
    given = source_options({"path": str(directory), **options}, stream=True)
    return MessageStreamReader(given, SCHEMA)


def cursors(offset: dict[str, dict[str, int]]) -> dict[LogId, int]:
    return decode_cursors(offset)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "n1"
    write_log(path, ORDERS, [numbered(1 + 10 * place, 10) for place in range(4)], 2)
    return path


def test_a_stream_takes_what_is_there_and_then_what_comes(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    assert cursors(start) == {ORDERS: 0}
    end = stream.latestOffset(start, ALL)
    assert cursors(end) == {ORDERS: 40}
    assert stream.latestOffset(end, ALL) == end
    write_log(directory, ORDERS, [numbered(41, 5)])
    write_log(directory, LATER, [numbered(1, 3)])
    assert cursors(stream.latestOffset(end, ALL)) == {ORDERS: 45, LATER: 3}


def test_a_stream_begins_where_it_is_told(directory: Path) -> None:
    assert cursors(reader(directory, start="latest").initialOffset()) == {ORDERS: 40}
    position = f'{{"{ORDERS.broker_id.hex()}": {{"/orders/new": 7}}}}'
    assert cursors(reader(directory, start=position).initialOffset()) == {ORDERS: 7}
    late = str(numbered(35, 1)[0].utc_us)
    assert cursors(reader(directory, start=late).initialOffset()) == {ORDERS: 20}


def test_a_position_in_a_log_that_nobody_has_is_an_error(directory: Path) -> None:
    position = f'{{"{LATER.broker_id.hex()}": {{"/orders/new": 7}}}}'
    with pytest.raises(DataLost, match=r"option start: message 7 of /orders/new .*no such log"):
        reader(directory, start=position).initialOffset()
    assert reader(directory, start=position, topics="/others").initialOffset()
    assert reader(directory, start=position, failOnDataLoss="false").initialOffset()


def test_an_end_behind_the_last_message_is_an_error(directory: Path) -> None:
    end = f'{{"{ORDERS.broker_id.hex()}": {{"/orders/new": %d}}}}'

    def parts(number: int) -> int:
        given = source_options({"path": str(directory), "end": end % number}, stream=False)
        return len(MessageReader(given, SCHEMA).partitions())

    assert parts(40) == 2
    with pytest.raises(DataLost, match=r"option end: message 41 .* they end at 40"):
        parts(41)


def test_a_limit_is_shared_by_all_logs(directory: Path) -> None:
    write_log(directory, OTHERS, [numbered(1, 4)])
    stream = reader(directory, maxRowsPerTrigger="20")
    assert stream.getDefaultReadLimit() == ReadMaxRows(20)
    offset = stream.initialOffset()
    taken = []
    while (end := stream.latestOffset(offset, ReadMaxRows(20))) != offset:
        taken.append(sum(cursors(end).values()) - sum(cursors(offset).values()))
        offset = end
    assert taken == [20, 20, 4]
    assert shares({ORDERS: 10, OTHERS: 1}, 2) == {ORDERS: 1, OTHERS: 1}
    assert shares({ORDERS: 10, OTHERS: 1}, 1) == {OTHERS: 1}


def test_with_available_now_it_ends_where_the_logs_ended_then(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    write_log(directory, ORDERS, [numbered(41, 5)])
    write_log(directory, LATER, [numbered(1, 3)])
    end = stream.latestOffset(start, ALL)
    assert cursors(end) == {ORDERS: 40}
    assert stream.latestOffset(end, ALL) == end


def test_a_torn_tail_waits_until_it_is_whole(directory: Path) -> None:
    last = segments(directory)[-1]
    last.with_suffix(".idx").unlink()
    data = last.read_bytes()
    last.write_bytes(data[:-7])
    stream = reader(directory)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert cursors(end) == {ORDERS: 30}
    last.write_bytes(data)
    assert cursors(stream.latestOffset(end, ALL)) == {ORDERS: 40}


def test_the_parts_of_a_batch_are_the_same_when_it_is_run_again(directory: Path) -> None:
    stream = reader(directory)
    start, end = stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ALL)
    parts = stream.partitions(start, end)
    write_log(directory, ORDERS, [numbered(41, 500)])
    again = reader(directory).partitions(start, end)
    assert [part.part.span for part in parts if isinstance(part, Part)] == [
        part.part.span for part in again if isinstance(part, Part)
    ]


def test_retention_that_overtakes_a_stream_is_an_error(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    drop(segments(directory)[0])
    end = stream.latestOffset(start, ALL)
    with pytest.raises(DataLost, match="messages 1–20 of /orders/new"):
        stream.partitions(start, end)
    assert len(reader(directory, failOnDataLoss="false").partitions(start, end)) == 1


def test_a_log_that_vanishes_before_it_is_read_is_an_error(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    stream.latestOffset(start, ALL)
    for segment in segments(directory):
        drop(segment)
    with pytest.raises(DataLost, match=r"messages 1–40 .* are gone"):
        stream.latestOffset(start, ALL)
