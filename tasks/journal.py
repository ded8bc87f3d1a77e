"""What an owner writes down of its tasks: the records of its journal, columns in msgpack.

    [kind, field, field …]     one record for a whole batch of numbers, one message of the journal

A record states facts that hold from its place on: numbers that are finished stay finished, and a
row is as its last record says. So recovery applies them in order, and a snapshot is nothing but
facts said again; one that was cut short does no harm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgpack

from busnode.tasks.ranges import Run
from busnode.tasks.rows import DEAD, Row
from busnode.wire.carried_task import ERROR_BYTES_MAX, HISTORY_MAX, NUMBER_MAX, Attempt
from busnode.wire.errors import BadBatch
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.wire.shapes import is_list

ROWS_MAX: Final = 4096
"""Tasks in one record that says something of each."""

RUNS_MAX: Final = 16_384
"""Runs of numbers in one record: at 18 bytes each, 288 KiB."""

RECORD_BYTES_MAX: Final = 512 * 1024

FinishedAs = Literal[
    "completed", "carried", "dropped", "elsewhere", "deleted", "over", "repeated"
]  # fmt: skip
"""over: a dead letter whose time has ended. repeated: its key was there already. carried: the task
goes on elsewhere. dropped: a copy of a task that is here already, or was."""

MOVED: Final = ("carried", "dropped")
"""These are no end of the task, but of a number."""


@dataclass(frozen=True, slots=True)
class Finished:
    """These tasks are over and done with, or at least under these numbers."""

    how: FinishedAs
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt at each of these has failed. Each has a number of attempts and a due time, which
    is `DEAD` for a dead letter."""

    numbers: Sequence[int]
    attempts: Sequence[int]
    due_us: Sequence[int]
    at_us: int
    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class Requeued:
    """These were dead letters and are tasks again, with all attempts before them."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class FencesReserved:
    """No fence above the ceiling is given out before a later record says so."""

    ceiling: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Tasks with these numbers in the log of another incarnation, or in this one, go on here, under
    numbers of their own."""

    origin: BrokerId
    runs: tuple[Run, ...]
    here: tuple[Run, ...]
    """These numbers; none when it is said again in a snapshot, or was said by another owner."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """Tasks with these numbers in the log of another incarnation do not go on here any more, but
    elsewhere: should they be needed again they are taken from there once more."""

    origin: BrokerId
    runs: tuple[Run, ...]
    here: tuple[Run, ...]
    """Their numbers in this log, if they had some. They end with that, and are not finished."""


@dataclass(frozen=True, slots=True)
class SnapshotBegun:
    """All below the floor are finished. From here to `SnapshotEnded` everything that still matters
    is said again, between other records."""

    floor: int
    extent: int
    """The last number there was."""
    ceiling: int


@dataclass(frozen=True, slots=True)
class RowsKept:
    """Rows as they are at this place."""

    numbers: Sequence[int]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """What was written before the last `SnapshotBegun` is not needed any more."""


JournalRecord = (
    Finished
    | Failed
    | Requeued
    | FencesReserved
    | TakenOver
    | LetGo
    | SnapshotBegun
    | RowsKept
    | SnapshotEnded
)


def encode_record(record: JournalRecord) -> bytes:
    fields: list[Any]
    match record:
        case Finished(how, runs):
            fields = [1, how, _flat(runs)]
        case Failed(numbers, attempts, due_us, at_us, worker, error):
            fields = [2, list(numbers), list(attempts), list(due_us), at_us, worker, error]
        case Requeued(runs):
            fields = [3, _flat(runs)]
        case FencesReserved(ceiling):
            fields = [4, ceiling]
        case TakenOver(origin, runs, here):
            fields = [5, origin, _flat(runs), _flat(here)]
        case SnapshotBegun(floor, extent, ceiling):
            fields = [6, floor, extent, ceiling]
        case RowsKept(numbers, rows):
            fields = [7, list(numbers), *map(list, zip(*rows, strict=True))]
        case SnapshotEnded():
            fields = [8]
        case LetGo(origin, runs, here):
            fields = [9, origin, _flat(runs), _flat(here)]
    encoded = msgpack.packb(fields)
    assert isinstance(encoded, bytes)
    return encoded


def decode_record(encoded: bytes | memoryview) -> JournalRecord:
    """BadBatch for anything that `encode_record` does not write."""
    if len(encoded) > RECORD_BYTES_MAX:
        raise BadBatch(f"task record of {len(encoded)} bytes; the limit is {RECORD_BYTES_MAX}")
    try:
        kind, *fields = msgpack.unpackb(
            encoded,
            strict_map_key=True,
            max_array_len=2 * RUNS_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
        if type(kind) is not int:
            raise TypeError("kind that is no number")
        return _DECODERS[kind](*fields)
    except Exception as error:
        # The decoder raises a dozen types, and a wrong number of fields is a TypeError.
        raise BadBatch(
            f"task record of {len(encoded)} bytes cannot be read: "
            f"{type(error).__name__} {error!s:.200}"
        ) from error


def _flat(runs: Sequence[Run]) -> list[int]:
    return [number for run in runs for number in run]


def _finished(how: Any, runs: Any) -> Finished:
    if how not in get_args(FinishedAs):
        raise ValueError("unknown end of a task")
    return Finished(how, _runs(runs))


def _failed(
    numbers: Any, attempts: Any, due_us: Any, at_us: Any, worker: Any, error: Any
) -> Failed:
    count = len(_numbers(numbers))
    return Failed(
        numbers,
        _column(attempts, count, 0),
        _column(due_us, count, DEAD),
        _amount(at_us),
        _text(worker, NAME_BYTES_MAX),
        _text(error, ERROR_BYTES_MAX),
    )


def _taken_over(origin: Any, runs: Any, here: Any) -> TakenOver:
    return TakenOver(_origin(origin), _runs(runs), () if here == [] else _runs(here))


def _origin(value: Any) -> BrokerId:
    if type(value) is not bytes or len(value) != BROKER_ID_BYTES:
        raise TypeError("origin that is no brokerId")
    return BrokerId(value)


def _let_go(origin: Any, runs: Any, here: Any) -> LetGo:
    return LetGo(_origin(origin), _runs(runs), () if here == [] else _runs(here))


def _rows_kept(numbers: Any, attempts: Any, due_us: Any, dead_us: Any, histories: Any) -> RowsKept:
    count = len(_numbers(numbers))
    for column in (dead_us, histories):
        if not is_list(column) or len(column) != count:
            raise TypeError("columns of different lengths")
    return RowsKept(
        numbers,
        list(
            map(
                Row,
                _column(attempts, count, 0),
                _column(due_us, count, 0),
                [None if each is None else _amount(each) for each in dead_us],
                map(_history, histories),
            )
        ),
    )


def _history(value: Any) -> tuple[Attempt, ...]:
    if not is_list(value) or len(value) > HISTORY_MAX:
        raise TypeError("history that is no short list")
    return tuple(
        Attempt(
            _amount(attempt),
            _amount(at_us),
            _text(worker, NAME_BYTES_MAX),
            _text(error, ERROR_BYTES_MAX),
        )
        for attempt, at_us, worker, error in value
    )


def _numbers(value: Any) -> list[int]:
    """Numbers of tasks, each but once."""
    numbers = _column(value, None, 1)
    if not 0 < len(numbers) <= ROWS_MAX or len(set(numbers)) != len(numbers):
        raise ValueError("numbers that are none, too many or there twice")
    return numbers


def _column(value: Any, count: int | None, low: int) -> list[int]:
    if not is_list(value) or (count is not None and len(value) != count):
        raise TypeError("column of the wrong length")
    if value and (set(map(type, value)) != {int} or min(value) < low or max(value) > NUMBER_MAX):
        raise ValueError("column with something else than numbers")
    return value


def _runs(value: Any) -> tuple[Run, ...]:
    flat = _column(value, None, 1)
    firsts, lasts = flat[::2], flat[1::2]
    if not flat or len(firsts) != len(lasts):
        raise ValueError("runs without an end")
    last = 0
    for first, end in zip(firsts, lasts, strict=True):
        if not last < first <= end:
            raise ValueError("runs out of order")
        last = end
    return tuple(zip(firsts, lasts, strict=True))


def _amount(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise TypeError("number that is none")
    return value


def _text(value: Any, bytes_max: int) -> str:
    if type(value) is not str or len(value.encode()) > bytes_max:
        raise TypeError("text that is none, or too long")
    return value


def _requeued(runs: Any) -> Requeued:
    return Requeued(_runs(runs))


def _fences_reserved(ceiling: Any) -> FencesReserved:
    return FencesReserved(_amount(ceiling))


def _snapshot_begun(floor: Any, extent: Any, ceiling: Any) -> SnapshotBegun:
    return SnapshotBegun(_amount(floor), _amount(extent), _amount(ceiling))


_DECODERS: Final[dict[int, Callable[..., JournalRecord]]] = {
    1: _finished,
    2: _failed,
    3: _requeued,
    4: _fences_reserved,
    5: _taken_over,
    6: _snapshot_begun,
    7: _rows_kept,
    8: SnapshotEnded,
    9: _let_go,
}
