"""Records of a journal: what is written is read, and nothing else is."""

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.tasks.journal import (
    RECORD_BYTES_MAX,
    ROWS_MAX,
    RUNS_MAX,
    Failed,
    FencesReserved,
    Finished,
    JournalRecord,
    LetGo,
    Requeued,
    RowsKept,
    SnapshotBegun,
    SnapshotEnded,
    TakenOver,
    decode_record,
    encode_record,
)
from busnode.tasks.rows import DEAD, Row
from busnode.wire.carried_task import ERROR_BYTES_MAX, HISTORY_MAX, Attempt
from busnode.wire.errors import BadBatch
from busnode.wire.ids import BrokerId

A = BrokerId(b"a" * 16)
WHY = Attempt(1, 7, "w", "no")
SAMPLES: list[JournalRecord] = [
    Finished("completed", ((1, 1000), (2000, 2000))),
    Finished("repeated", ((5, 5),)),
    Failed([3, 1], [1, 5], [900, DEAD], 77, "worker", "it burns"),
    Requeued(((4, 6),)),
    FencesReserved(1_000_000),
    TakenOver(A, ((1, 3),), ((9, 11),)),
    TakenOver(A, ((1, 3),), ()),
    LetGo(A, ((1, 3), (5, 5)), ((7, 10),)),
    LetGo(A, ((1, 3),), ()),
    SnapshotBegun(1, 5, 9),
    RowsKept([8, 2], [Row(1, 0, None, (WHY,)), Row(0, 5, 6, ())]),
    SnapshotEnded(),
]


@pytest.mark.parametrize("record", SAMPLES)
def test_what_is_written_is_read(record: JournalRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("record", SAMPLES)
def test_a_record_that_was_cut_or_changed_is_refused_or_another_record(
    record: JournalRecord,
) -> None:
    encoded = encode_record(record)
    for end in range(len(encoded)):
        with pytest.raises(BadBatch):
            decode_record(encoded[:end])
    with pytest.raises(BadBatch):
        decode_record(encoded + b"\x00")
    for place in range(len(encoded)):
        for bit in range(8):
            flipped = bytearray(encoded)
            flipped[place] ^= 1 << bit
            try:
                read = decode_record(bytes(flipped))
            except BadBatch:
                continue
            assert read != record


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_a_record(raw: bytes) -> None:
    with suppress(BadBatch):
        decode_record(raw)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        5,
        [],
        [0],
        [99],
        [True, "completed", [1, 1]],
        [1, "completed"],
        [1, "completed", []],
        [1, "completed", [1]],
        [1, "completed", [0, 1]],
        [1, "completed", [2, 1]],
        [1, "completed", [1, 5, 5, 6]],
        [1, "completed", [6, 7, 1, 2]],
        [1, "completed", [1, 2**63]],
        [1, "completed", [1, 2.0]],
        [1, "completed", [True, 2]],
        [1, "vanished", [1, 1]],
        [1, [], [1, 1]],
        [1, "completed", [1, 1], 1],
        [2, [], [], [], 0, "", ""],
        [2, [1, 1], [1, 1], [0, 0], 0, "", ""],
        [2, [1], [1, 2], [0], 0, "", ""],
        [2, [1], [-1], [0], 0, "", ""],
        [2, [1], [1], [-2], 0, "", ""],
        [2, [1], [1], [0], -1, "", ""],
        [2, [1], [1], [0], 0, b"", ""],
        [2, [1], [1], [0], 0, "", "e" * (ERROR_BYTES_MAX + 1)],
        [2, [1], [1], [0], 0, "w" * 129, ""],
        [3, [5, 4]],
        [4, -1],
        [4, 1.5],
        [4, None],
        [5, b"short", [1, 1], []],
        [5, "a" * 16, [1, 1], []],
        [5, b"a" * 16, [], []],
        [6, 1, 1],
        [7, [1], [1], [0], [None], [[[1, 2, "w"]]]],
        [7, [1], [1], [0], [-1], [[]]],
        [7, [1], [1], [0], [None], [[[1, 2, "w", "e"]] * (HISTORY_MAX + 1)]],
        [7, [1, 2], [1, 1], [0, 0], [None], [[], []]],
        [7, list(range(1, ROWS_MAX + 2)), *[[0] * (ROWS_MAX + 1)] * 3, [[]] * (ROWS_MAX + 1)],
        [8, 1],
        {1: 2},
    ],
)
def test_what_makes_no_sense_is_refused(fields: Any) -> None:
    with pytest.raises(BadBatch) as caught:
        decode_record(msgpack.packb(fields))
    assert len(caught.value.text) < 400


def test_the_largest_records_can_be_read() -> None:
    first = 2**62
    runs = tuple((first + 2 * n, first + 2 * n) for n in range(RUNS_MAX))
    numbers = [first + n for n in range(ROWS_MAX)]
    failed = Failed(numbers, [100] * ROWS_MAX, numbers, first, "w" * 128, "e" * ERROR_BYTES_MAX)
    for record in (Finished("completed", runs), failed):
        encoded = encode_record(record)
        assert len(encoded) <= RECORD_BYTES_MAX
        assert decode_record(encoded) == record


def test_a_record_over_the_limit_is_not_even_looked_at() -> None:
    with pytest.raises(BadBatch, match="limit"):
        decode_record(b"\x91" * (RECORD_BYTES_MAX + 1))
