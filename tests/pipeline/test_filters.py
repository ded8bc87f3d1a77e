"""Filters choose logs and ranges, and never leave out what they let through."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from busnode.pipeline.filters import Chosen
from busnode.pipeline.record_rows import Span

from .written_logs import LATER, ORDERS, OTHERS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PASSES: dict[type[Filter], Any] = {
    EqualTo: lambda each, value: each == value,
    GreaterThan: lambda each, value: each > value,
    GreaterThanOrEqual: lambda each, value: each >= value,
    LessThan: lambda each, value: each < value,
    LessThanOrEqual: lambda each, value: each <= value,
}


def chosen(*filters: Filter) -> Chosen:
    found = Chosen()
    found.add(filters)
    return found


@pytest.mark.parametrize("kind", PASSES)
def test_a_range_of_numbers_is_what_passes_the_filter(kind: Any) -> None:
    span = chosen(kind(("msg_no",), 40)).within(Span(30, 50))
    assert [*range(span.first_no, span.last_no + 1)] == [
        number for number in range(30, 51) if PASSES[kind](number, 40)
    ]


@pytest.mark.parametrize("kind", PASSES)
def test_a_range_of_times_is_what_passes_the_filter(kind: Any) -> None:
    moment = EPOCH + timedelta(microseconds=40)
    span = chosen(kind(("utc",), moment)).within(Span(since_us=30, before_us=51))
    assert span.since_us is not None
    assert span.before_us is not None
    assert [*range(span.since_us, span.before_us)] == [
        at for at in range(30, 51) if PASSES[kind](at, 40)
    ]


def test_a_time_counts_in_its_zone_or_in_utc() -> None:
    east = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert chosen(GreaterThanOrEqual(("utc",), east)).since_us == 0
    assert chosen(GreaterThanOrEqual(("utc",), datetime(1970, 1, 1))).since_us == 0


def test_all_filters_hold_together() -> None:
    span = chosen(
        GreaterThan(("msg_no",), 3), GreaterThan(("msg_no",), 1), LessThan(("msg_no",), 9),
        LessThan(("msg_no",), 20),
    ).within(Span(1, 7))  # fmt: skip
    assert (span.first_no, span.last_no) == (4, 7)


@pytest.mark.parametrize(
    ("filter_", "logs"),
    [
        (EqualTo(("topic",), "/others"), {OTHERS}),
        (EqualTo(("broker_id",), LATER.broker_id.hex()), {LATER}),
        (In(("topic",), ("/others", "/else")), {OTHERS}),
        (StringStartsWith(("topic",), "/orders"), {ORDERS, LATER}),
        (EqualTo(("id",), "x"), {ORDERS, OTHERS, LATER}),
        (IsNotNull(("topic",)), {ORDERS, OTHERS, LATER}),
    ],
)
def test_logs_are_chosen_by_topic_and_broker_and_by_nothing_else(
    filter_: Filter, logs: set[Any]
) -> None:
    found = chosen(filter_)
    assert {each for each in (ORDERS, OTHERS, LATER) if found.has(each)} == logs
