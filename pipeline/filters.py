"""What the filters of a query say about logs and ranges.

They only ever make less to be read: Spark looks at every row again, so a filter that is not
understood here, or only half, costs time and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from busnode.pipeline.record_rows import Span
from busnode.wire.ids import LogId

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Chosen:
    """Which logs, and which messages of each."""

    first_no: int = 1
    last_no: int = 2**63 - 1
    since_us: int | None = None
    before_us: int | None = None
    _logs: list[Callable[[LogId], bool]] = field(default_factory=list[Callable[[LogId], bool]])

    def has(self, log_id: LogId) -> bool:
        return all(test(log_id) for test in self._logs)

    def within(self, span: Span) -> Span:
        """A span without what is filtered out."""
        return Span(
            max(span.first_no, self.first_no),
            min(span.last_no, self.last_no),
            _latest(span.since_us, self.since_us),
            _earliest(span.before_us, self.before_us),
        )

    def add(self, given: Sequence[Filter]) -> None:
        for each in given:
            match each:
                case EqualTo(("topic" | "broker_id" as name,), str(value)):
                    self._logs.append(_Among(name, (value,)))
                case In(("topic" | "broker_id" as name,), values):
                    self._logs.append(_Among(name, tuple(values)))
                case StringStartsWith(("topic" | "broker_id" as name,), str(value)):
                    self._logs.append(_Beginning(name, value))
                case EqualTo(("msg_no",), int(value)):
                    self._number(value, value)
                case GreaterThan(("msg_no",), int(value)):
                    self._number(value + 1, None)
                case GreaterThanOrEqual(("msg_no",), int(value)):
                    self._number(value, None)
                case LessThan(("msg_no",), int(value)):
                    self._number(None, value - 1)
                case LessThanOrEqual(("msg_no",), int(value)):
                    self._number(None, value)
                case EqualTo(("utc",), datetime() as value):
                    self._time(_us(value), _us(value) + 1)
                case GreaterThan(("utc",), datetime() as value):
                    self._time(_us(value) + 1, None)
                case GreaterThanOrEqual(("utc",), datetime() as value):
                    self._time(_us(value), None)
                case LessThan(("utc",), datetime() as value):
                    self._time(None, _us(value))
                case LessThanOrEqual(("utc",), datetime() as value):
                    self._time(None, _us(value) + 1)
                case _:
                    pass

    def _number(self, first_no: int | None, last_no: int | None) -> None:
        if first_no is not None:
            self.first_no = max(self.first_no, first_no)
        if last_no is not None:
            self.last_no = min(self.last_no, last_no)

    def _time(self, since_us: int | None, before_us: int | None) -> None:
        self.since_us = _latest(self.since_us, since_us)
        self.before_us = _earliest(self.before_us, before_us)


@dataclass(frozen=True, slots=True)
class _Among:
    name: str
    values: tuple[Any, ...]

    def __call__(self, log_id: LogId) -> bool:
        return _text(log_id, self.name) in self.values


@dataclass(frozen=True, slots=True)
class _Beginning:
    name: str
    value: str

    def __call__(self, log_id: LogId) -> bool:
        return _text(log_id, self.name).startswith(self.value)


def _text(log_id: LogId, column: str) -> str:
    return log_id.topic if column == "topic" else log_id.broker_id.hex()


def _us(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _latest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _earliest(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
