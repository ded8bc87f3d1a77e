"""Rows become batches of one topic each, in order, and none is left out."""

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.pipeline.sink import BATCH_BYTES, BATCH_ROWS, Packing
from busnode.wire.errors import BadOption
from busnode.wire.ids import Topic

LARGE = b"large"
"""Stands for half a batch and is made so long only when it is packed: reports stay short."""

MESSAGE = st.tuples(
    st.sampled_from(["/a", "/b", "/c"]),
    st.binary(max_size=50) | st.just(LARGE),
    st.none() | st.text(max_size=3),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


def packed(
    messages: list[tuple[Any, ...]], size: int
) -> dict[str, list[tuple[bytes, str | None, Any]]]:
    long = LARGE * (BATCH_BYTES // 2 // len(LARGE))
    packing = Packing(None)
    found: dict[str, list[tuple[bytes, str | None, Any]]] = defaultdict(list)
    batches = []
    for at in range(0, len(messages), size):
        topics, payloads, ids, headers = map(list, zip(*messages[at : at + size], strict=True))
        batches.append(
            pa.record_batch(
                {
                    "topic": pa.array(topics, pa.string()),
                    "payload": pa.array(
                        [long if each == LARGE else each for each in payloads], pa.binary()
                    ),
                    "id": pa.array(ids, pa.string()),
                    "headers": pa.array(
                        [None if each is None else list(each.items()) for each in headers],
                        pa.map_(pa.string(), pa.string()),
                    ),
                }
            )
        )
    for topic, columns in [each for b in batches for each in packing.add(b)] + [*packing.finish()]:
        count = len(columns.payloads)
        assert 0 < count <= BATCH_ROWS
        assert count == 1 or sum(map(len, columns.payloads)) <= BATCH_BYTES
        found[topic] += zip(
            [LARGE if each == long else each for each in columns.payloads],
            columns.ids or [None] * count,
            columns.headers or [None] * count,
            strict=True,
        )
    return found


@given(st.lists(MESSAGE, max_size=60), st.integers(1, 30))
def test_every_row_is_in_a_batch_of_its_topic_in_order(
    messages: list[tuple[Any, ...]], size: int
) -> None:
    expected: dict[str, list[tuple[bytes, str | None, Any]]] = defaultdict(list)
    for topic, payload, id_, headers in messages:
        expected[topic].append((payload, id_, headers or None))
    assert packed(messages, size) == expected


def test_many_rows_make_full_batches() -> None:
    packing = Packing(Topic("/a"))
    rows = pa.record_batch({"payload": pa.array([b"x"] * 2500, pa.binary())})
    sizes = [len(columns.payloads) for _, columns in [*packing.add(rows), *packing.add(rows)]]
    assert sizes == [BATCH_ROWS] * 5
    assert list(packing.finish()) == []


@pytest.mark.parametrize("column", ["topic", "payload"])
def test_a_null_is_refused(column: str) -> None:
    columns = {"topic": ["/a", "/a"], "payload": [b"", b""]} | {column: [None, None]}
    kinds = {"topic": pa.string(), "payload": pa.binary()}
    rows = pa.record_batch({name: pa.array(columns[name], kinds[name]) for name in columns})
    with pytest.raises(BadOption, match=column):
        list(Packing(None).add(rows))


def test_a_topic_that_is_none_is_refused() -> None:
    rows = pa.record_batch({"topic": ["no/topic"], "payload": pa.array([b""], pa.binary())})
    with pytest.raises(BadOption, match="no/topic"):
        list(Packing(None).add(rows))
