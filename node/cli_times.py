"""Times and durations as people type them on the command line."""
# ruff: noqa: PLC0415 - what reads durations is not needed for the help

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TIME: Final = "a UTC time such as 2026-01-31T08:00"
AGO: Final = f"{TIME}, or a duration such as 10m for so long ago"

Callback = Callable[[click.Context, click.Parameter, str | None], Any]


def parse_time(text: str) -> datetime | None:
    """A time with its zone, UTC where none is given; None for what is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_past(text: str, expected: str = AGO) -> datetime:
    """A time, or a duration: so long ago. BadParameter for anything else."""
    from busnode.node.setting_kinds import Duration
    from busnode.world.real_clock import RealClock

    moment = parse_time(text)
    if moment is not None:
        return moment
    try:
        seconds = Duration().read(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}; expected {expected}") from None
    now = EPOCH + timedelta(microseconds=RealClock().utc_us())
    return max(EPOCH, now - timedelta(seconds=seconds))


def past_option(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    """For an option that takes a time, or how long ago it was."""
    return None if text is None else parse_past(text)


def time_option(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    """For an option that takes a time, which may be one to come."""
    if text is None:
        return None
    moment = parse_time(text)
    if moment is None:
        raise click.BadParameter(f"{text!r}; expected {TIME}")
    return moment


def duration_option(least_s: float, most_s: float) -> Callback:
    """For an option that takes a duration within these bounds, in seconds."""

    def read(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
        from busnode.node.setting_kinds import Duration

        try:
            return None if text is None else Duration(least_s, most_s).read(text)
        except ValueError as error:
            raise click.BadParameter(f"{text[:100]!r} {error}" if text else str(error)) from None

    return read
