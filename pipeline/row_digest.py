"""A hash of rows that is the same wherever they lie and however they are cut into batches.

Each column has a hash of its own, fed with its values one behind the other: numbers as they are,
texts and bytes as their lengths and what they hold. So it takes no step for a single row, and two
tables have the same one only if they have the same values in the same order.
"""

from typing import Final

import numpy as np
from xxhash import xxh3_64, xxh3_128

from busnode.pipeline.arrow import Array, RecordBatch, Table, compute, pa

DIGESTED: Final = (
    "broker_id", "topic", "msg_no", "utc", "id", "headers", "payload", "producer_id",
    "producer_seq", "flags",
)  # fmt: skip
"""What a message is; not where it was found."""

NULL: Final = -1
"""The length of what is not there."""


class RowDigest:
    """Gathers the hash of rows, batch by batch."""

    def __init__(self) -> None:
        self.rows = 0
        self._lengths = {name: xxh3_64() for name in DIGESTED}
        self._values = {name: xxh3_64() for name in DIGESTED}

    def add(self, batch: RecordBatch) -> None:
        """Rows in their order, with at least the columns that count."""
        self.rows += batch.num_rows
        for name in DIGESTED:
            self._add(name, batch.column(name))

    def add_table(self, table: Table) -> None:
        for batch in table.to_batches():
            self.add(batch)

    def hexdigest(self) -> str:
        whole = xxh3_128(self.rows.to_bytes(8, "little"))
        for name in DIGESTED:
            whole.update(self._lengths[name].digest() + self._values[name].digest())
        return whole.hexdigest()

    def _add(self, name: str, column: Array) -> None:
        if not len(column):
            return
        kind = column.type
        if pa.types.is_map(kind):
            offsets = column.offsets.to_numpy()
            self._lengths[name].update(np.diff(offsets).tobytes())
            first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
            for part in (column.keys, column.items):
                self._add_texts(name, part.slice(first, count))
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._add_texts(name, column)
        else:
            numbers = column.view(pa.int64()).to_numpy(zero_copy_only=not column.null_count)
            self._values[name].update(numbers.tobytes())

    def _add_texts(self, name: str, column: Array) -> None:
        if not len(column):
            return
        lengths = compute.fill_null(compute.binary_length(column), NULL).to_numpy()
        self._lengths[name].update(lengths.tobytes())
        if column.null_count == len(column):
            return
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        if data is not None:
            with memoryview(data) as whole:
                self._values[name].update(whole.cast("B")[int(ends[0]) : int(ends[-1])])
