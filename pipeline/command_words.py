"""What the commands of the pipeline share: where they read, where Spark runs, how they print."""
# ruff: noqa: PLC0415 - Spark and what needs it is imported when a job is run

import logging
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from busnode.pipeline.output import show_json, show_rows
from busnode.pipeline.sources import Source, named
from busnode.segments.bucket import check_data_directory
from busnode.wire.errors import BadOption, BadPattern
from busnode.wire.ids import Pattern
from busnode.wire.topics import check_pattern
from busnode.world.real_files import RealFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

EVERYTHING: Final = "/*"

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",  # hundreds, as Spark would have, are for terabytes
}

MASTERS: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+"
)


WINDOW: Final = re.compile(
    r"0*[1-9]\d* *(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE
)

QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""To which PySpark tells the whole stack of whatever Spark refuses, on stderr."""


def _master(_: click.Context, __: click.Parameter, text: str) -> str:
    if MASTERS.fullmatch(text) is None:
        raise click.BadParameter(
            f"{text!r} is no master of Spark; expected local[*], local[4], spark://host:7077, "
            "yarn or k8s://…"
        )
    return text


master_option = click.option(
    "--master",
    metavar="URL",
    default="local[*]",
    show_default=True,
    callback=_master,
    help="Where Spark runs: here, or a cluster such as spark://host:7077.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def topics_option(default: str = EVERYTHING) -> Callable[[Command], Command]:
    return click.option(
        "--topics",
        metavar="PATTERN",
        default=default,
        show_default=True,
        callback=_pattern,
        help="Which topics; /$sys/* and /$task/* must be named to be among them.",
    )


def _pattern(_: click.Context, __: click.Parameter, text: str) -> Pattern:
    try:
        return check_pattern(text)
    except BadPattern as error:
        raise click.BadParameter(error.text) from error


def reading_all(command: Command) -> Command:
    """SOURCE, all of it; `source_of` makes one of the words."""
    for option in (
        click.option("--tolerant", is_flag=True, help="Leave out what is damaged or missing."),
        click.argument("sources", nargs=-1, required=True, metavar="SOURCE..."),
    ):
        command = option(command)
    return command


def reading(command: Command) -> Command:
    """SOURCE, and from when to when."""
    for option in (
        click.option(
            "--until",
            "end",
            metavar="TIME",
            default="latest",
            help="Up to this time: 2026-01-31T13:00:00Z.",
        ),
        click.option(
            "--since",
            "start",
            metavar="TIME",
            default="earliest",
            help="From this time on: 2026-01-31T12:00:00Z.",
        ),
        reading_all,
    ):
        command = option(command)
    return command


def source_of(words: dict[str, Any], topics: str = EVERYTHING) -> Source:
    """What the words of a command name. UsageError or NotADataDirectory for what cannot be read:
    here, and not when Spark has been started for it."""
    source = named(
        words.pop("sources"), words.pop("start"), words.pop("end"), tolerant=words.pop("tolerant")
    )
    try:
        options = source.checked(topics)
    except BadOption as error:
        raise click.UsageError(error.text) from error
    for path in options.paths:
        check_data_directory(RealFiles(), path)
    return source


@contextmanager
def running(job: str, master: str, **settings: str) -> "Generator[SparkSession]":
    """A session for one job. On a terminal Spark draws a bar for each stage that takes long."""
    from busnode.pipeline.failures import clear_errors
    from busnode.pipeline.jvm_log import quiet_jvm
    from busnode.pipeline.session import session

    bar = "true" if sys.stderr.isatty() else "false"
    quiet_jvm()
    for name in QUERY_LOGGERS:
        logging.getLogger(name).disabled = True  # the error itself is told
    say(f"{job}: starting Spark on {master}")
    with clear_errors():
        spark = session(
            f"busnode pipeline {job}",
            master,
            {**SETTINGS, "spark.ui.showConsoleProgress": bar, **settings},
        )
        try:
            say(f"{job}: reading")
            yield spark
        finally:
            spark.stop()


def say(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{text} …", err=True)


def rows_of(frame: "DataFrame") -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def moment_of(text: str | None) -> datetime:
    if text is None:
        from busnode.world.real_clock import RealClock

        return datetime.fromtimestamp(RealClock().utc_us() / 1e6, UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--at: {text!r} is no time such as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"--at: {text!r} has no time zone: end it with Z for UTC")
    return moment


def window_of(_: click.Context, __: click.Parameter, text: str) -> str:
    if WINDOW.fullmatch(text.strip()) is None:
        raise click.BadParameter(f"{text!r} is no length of time such as '30 seconds' or '1 hour'")
    return text


def day_of(_: click.Context, __: click.Parameter, text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no day such as 2026-01-31") from error


def show(rows: list[dict[str, Any]], empty: str, *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, empty)
