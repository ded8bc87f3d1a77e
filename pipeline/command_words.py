"""What the commands of the pipeline share: where they read, where Spark runs, how they print."""
# ruff: noqa: PLC0415 - Spark and what needs it is imported when a job is run

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from busnode.pipeline.output import show_json, show_rows
from busnode.pipeline.sources import Source, named
from busnode.wire.errors import BadOption, BadPattern
from busnode.wire.ids import Pattern
from busnode.wire.topics import check_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

EVERYTHING: Final = "/*"

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",  # hundreds, as Spark would have, are for terabytes
}

master_option = click.option(
    "--master",
    metavar="URL",
    default="local[*]",
    show_default=True,
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


def reading(command: Command) -> Command:
    """SOURCE, and from when to when; the command gets `source`."""
    for option in (
        click.option("--tolerant", is_flag=True, help="Leave out what is damaged or missing."),
        click.option(
            "--until", "end", metavar="TIME", default="latest", help="Up to this time, e.g. …Z."
        ),
        click.option(
            "--since",
            "start",
            metavar="TIME",
            default="earliest",
            help="From this time on: 2026-01-31T12:00:00Z.",
        ),
        click.argument("sources", nargs=-1, required=True, metavar="SOURCE..."),
    ):
        command = option(command)
    return command


def source_of(words: dict[str, Any], topics: str = EVERYTHING) -> Source:
    source = named(
        words.pop("sources"), words.pop("start"), words.pop("end"), tolerant=words.pop("tolerant")
    )
    try:
        source.checked(topics)
    except BadOption as error:
        raise click.UsageError(error.text) from error
    return source


@contextmanager
def running(job: str, master: str, **settings: str) -> "Generator[SparkSession]":
    """A session for one job. On a terminal Spark draws a bar for each stage that takes long."""
    from busnode.pipeline.failures import clear_errors
    from busnode.pipeline.session import session

    bar = "true" if sys.stderr.isatty() else "false"
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
