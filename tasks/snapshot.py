"""All that a journal must still say, said again in parts, so that what came before can go.

Parts are written one after the other while the queue works on, each when the one before is durable.
Rows are told as they are at the part's own place in the journal, what is not durable yet included:
it lies before the part, so whoever can read the part can read that too.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from busnode.tasks.journal import (
    ROWS_MAX,
    RUNS_MAX,
    Finished,
    JournalRecord,
    RowsKept,
    SnapshotBegun,
    SnapshotEnded,
    TakenOver,
)
from busnode.tasks.places import Places
from busnode.tasks.ranges import SHIFT, Numbers, Run, bit_runs, joined
from busnode.tasks.rows import Row
from busnode.wire.ids import BrokerId

PART_BYTES: Final = 256 * 1024
"""What a part of rows is meant to take. With a last row of the largest kind, 100 attempts with 640
bytes of text each, it is still below `journal.RECORD_BYTES_MAX`."""

_ROW_BYTES: Final = 36
_ATTEMPT_BYTES: Final = 24
"""What numbers and frames of msgpack take at most, beside texts."""


def snapshot(
    places: Places, taken: Mapping[BrokerId, Numbers], moved: Numbers, ceiling: int
) -> Iterator[JournalRecord]:
    """The records of one, each made when it is asked for."""
    # These and no later ones: when the next part is made the floor may have passed some of them,
    # while whoever reads the snapshot knows the floor of its beginning. What is being finished now
    # is finished by then: the part is made when all up to this beginning is durable.
    chunks = {*places.finished.above.chunks, *places.finishing.chunks}
    yield SnapshotBegun(places.finished.floor, places.extent, ceiling)
    for runs in _parted(_finished_runs(places, chunks)):
        yield Finished("completed", runs)
    for runs in _parted(moved.runs()):
        yield Finished("carried", runs)
    for origin in list(taken):
        for runs in _parted(taken[origin].runs()):
            yield TakenOver(origin, runs, ())
    yield from _rows_kept(places)
    yield SnapshotEnded()


def _finished_runs(places: Places, chunks: Iterable[int]) -> Iterator[Run]:
    return joined(
        run
        for chunk in sorted(chunks)
        for run in bit_runs(places.finished.bits(chunk), chunk << SHIFT)
    )


def _parted(runs: Iterator[Run]) -> Iterator[tuple[Run, ...]]:
    part: list[Run] = []
    for run in runs:
        part.append(run)
        if len(part) == RUNS_MAX:
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _rows_kept(places: Places) -> Iterator[JournalRecord]:
    """Rows that are made later are in records behind the beginning of the snapshot."""
    part: dict[int, Row] = {}
    size = 0
    for number in [*places.rows, *(places.changing.keys() - places.rows.keys())]:
        row = places.row(number)
        if row is None:
            continue
        part[number] = row
        size += _ROW_BYTES + sum(
            _ATTEMPT_BYTES + len(worker.encode()) + len(error.encode())
            for _, _, worker, error in row.history
        )
        if size >= PART_BYTES or len(part) == ROWS_MAX:
            yield RowsKept(list(part), list(part.values()))
            part = {}
            size = 0
    if part:
        yield RowsKept(list(part), list(part.values()))
