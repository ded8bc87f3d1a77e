"""Two tables have the same hash only if they have the same values."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from busnode.pipeline.columns import ARCHIVED, arrow_schema
from busnode.pipeline.row_digest import RowDigest

ROW: dict[str, Any] = {
    "broker_id": "00", "topic": "/a", "msg_no": 1, "utc": datetime(2026, 1, 31, tzinfo=UTC),
    "id": None, "headers": [("k", "v")], "payload": b"p", "producer_id": 1, "producer_seq": 1,
    "flags": 3,
}  # fmt: skip
OTHER: dict[str, Any] = {
    "broker_id": "01", "topic": "/b", "msg_no": 2, "utc": datetime(2026, 2, 1, tzinfo=UTC),
    "id": "", "headers": [("k", "w")], "payload": b"q", "producer_id": 2, "producer_seq": 2,
    "flags": 5,
}  # fmt: skip


def digest(*rows: dict[str, Any]) -> str:
    made = RowDigest()
    made.add_table(pa.Table.from_pylist(list(rows), arrow_schema(ARCHIVED)))
    return made.hexdigest()


@pytest.mark.parametrize("name", arrow_schema(ARCHIVED).names)
def test_every_column_of_a_message_counts(name: str) -> None:
    assert digest({**ROW, name: OTHER[name]}) != digest(ROW) == digest({**ROW})


def test_how_many_there_are_and_their_order_count() -> None:
    assert len({digest(ROW), digest(ROW, ROW), digest(ROW, OTHER), digest(OTHER, ROW)}) == 4
