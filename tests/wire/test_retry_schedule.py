"""Retry schedules: what texts mean, and which mean nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire.errors import BadTask
from busnode.wire.retry_schedule import ATTEMPTS_MAX, DEFAULT, NO_RETRY, WAIT_S_MAX, Schedule


def waits(schedule: Schedule, random: float = 0.5) -> list[float]:
    return [schedule.wait_s(attempt, random) for attempt in range(2, schedule.attempts_max + 1)]


def test_the_default_is_at_once_and_then_after_10_15_20_and_25_minutes() -> None:
    assert DEFAULT.attempts_max == 5
    assert DEFAULT.first_wait_s == 0.0
    assert waits(DEFAULT) == [600.0, 900.0, 1200.0, 1500.0]


def test_without_retry_there_is_one_attempt() -> None:
    assert (NO_RETRY.attempts_max, waits(NO_RETRY)) == (1, [])


def test_waits_are_those_that_are_written() -> None:
    schedule = Schedule.parse("5,0,0.5,2592000")
    assert schedule.first_wait_s == 5.0
    assert waits(schedule) == [0.0, 0.5, WAIT_S_MAX]
    assert schedule.text == "5,0,0.5,2592000"


def test_an_exponential_one_grows_up_to_its_cap() -> None:
    schedule = Schedule.parse("exponential:first=2,factor=3,cap=50,attempts=6,jitter=0")
    assert waits(schedule) == [2.0, 6.0, 18.0, 50.0, 50.0]


def test_jitter_spreads_a_wait_around_itself() -> None:
    schedule = Schedule.parse("exponential:first=10,factor=1,cap=10,attempts=2,jitter=0.2")
    assert [schedule.wait_s(2, random) for random in (0.0, 0.5, 1.0)] == [8.0, 10.0, 12.0]


def test_what_is_not_said_of_an_exponential_one_has_a_default() -> None:
    schedule = Schedule.parse("exponential:first=1")
    assert schedule.attempts_max == 10
    assert waits(schedule)[:3] == [1.0, 2.0, 4.0]


def test_a_hundred_attempts_with_the_largest_factor_are_no_overflow() -> None:
    schedule = Schedule.parse("exponential:first=1,factor=1000,cap=3600,attempts=100,jitter=0")
    assert waits(schedule)[-1] == 3600.0


def test_exponential_from_nothing_stays_at_nothing() -> None:
    assert waits(Schedule.parse("exponential:first=0,attempts=3")) == [0.0, 0.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "0,-600",
        "0,,5",
        "0;5",
        "1e3",
        "nan",
        "inf",
        "1_0",
        " 1",
        "٣",
        "2592001",
        ",".join(["0"] * (ATTEMPTS_MAX + 1)),
        "9" * 2000,
        "None",
        "exponential",
        "exponential:",
        "exponential:first",
        "exponential:first=-1",
        "exponential:first=1,first=2",
        "exponential:factor=0.5",
        "exponential:factor=1001",
        "exponential:cap=0",
        "exponential:attempts=0",
        "exponential:attempts=1.5",
        "exponential:attempts=101",
        "exponential:jitter=2",
        "exponential:speed=1",
    ],
)
def test_a_text_that_is_no_schedule_is_refused_and_the_error_says_what_to_write(text: str) -> None:
    with pytest.raises(BadTask) as caught:
        Schedule.parse(text)
    assert "schedule" in caught.value.text
    assert len(caught.value.text) < 300


@given(st.text(alphabet="0123456789.,=:-expontialfrscjw "))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        schedule = Schedule.parse(text)
    except BadTask:
        return
    assert 1 <= schedule.attempts_max <= ATTEMPTS_MAX
    assert all(0 <= wait <= 2 * WAIT_S_MAX for wait in waits(schedule, 1.0))
    assert Schedule.parse(schedule.text) == schedule
