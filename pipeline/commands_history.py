"""`busnode pipeline archive` and `restore`."""
# ruff: noqa: PLC0415 - Spark and what needs it is imported when a job is run

from datetime import date
from typing import Any

import click

from busnode.pipeline.command_words import (
    day_of,
    json_option,
    master_option,
    reading_all,
    running,
    source_of,
    topics_option,
)
from busnode.pipeline.output import show_json, show_rows
from busnode.wire.errors import BadOption
from busnode.wire.ids import Pattern
from busnode.world.real_process import absolute


@click.command()
@reading_all
@click.option("--to", metavar="ARCHIVE", required=True, help="The archive: a folder.")
@topics_option()
@click.option(
    "--open", "with_open", is_flag=True, help="Also what is in segments still written to."
)
@master_option
@json_option
def archive(
    to: str, topics: Pattern, with_open: bool, master: str, as_json: bool, **words: Any
) -> None:
    """Add what is new in closed segments to an archive of Parquet files, by topic and day.

    Each message is archived once, however often this is run. Every file is read back and compared
    with the log, by count and hash, before anything of the run can be seen; a run that fails or is
    killed has archived nothing. So retention may be short and history long.

    \b
      busnode pipeline archive busnode-data/* --to archive

    A segment is closed when the log has begun another, or after three hours without a message.
    Spark reads an archive with spark.read.parquet; `restore` makes logs of it again.
    """
    from busnode.pipeline.archive import archive as run
    from busnode.world.real_clock import RealClock

    source = source_of({**words, "start": "earliest", "end": "latest"}, topics)
    with running("archive", master) as spark:
        done = run(spark, source.checked(topics), absolute(to), RealClock(), with_open=with_open)
    if as_json:
        show_json(done.fields())
        return
    for missed in done.missed:
        click.echo(
            f"missed: messages {missed.first_no}–{missed.last_no} of {missed.topic} "
            f"({missed.broker_id}) had expired before they were archived",
            err=True,
        )
    if done.run is None:
        click.echo("nothing new in closed segments")
    else:
        click.echo(
            f"archived {done.messages:,} messages of {done.logs:,} logs in {done.files:,} files, "
            f"{done.size_bytes:,} bytes, all verified: {to}/run={done.run:08d}"
        )


@click.command()
@click.argument("archive", metavar="ARCHIVE")
@click.option("--to", metavar="DIR", required=True, help="The data directory to make.")
@topics_option()
@click.option("--since", metavar="DAY", callback=day_of, help="2026-01-31")
@click.option("--until", metavar="DAY", callback=day_of, help="2026-02-01")
@master_option
@json_option
def restore(
    archive: str,
    to: str,
    topics: Pattern,
    since: date | None,
    until: date | None,
    master: str,
    as_json: bool,
) -> None:
    """Make a data directory of what an archive has: logs with the same numbers and contents.

    \b
      busnode pipeline restore archive --to restored --topics '/orders/*' --since 2026-01-31
      busnode log dump restored

    Days are those of the producers' clocks, in UTC; of each log everything from the first to the
    last message of these days is restored. /$sys/* and /$task/* must be named.
    """
    from busnode.pipeline.restore import Wanted, planned
    from busnode.pipeline.restore import restore as run

    wanted, directory, made = Wanted(topics, since, until), absolute(archive), absolute(to)
    try:
        planned(directory, wanted, made)  # before Spark is started for nothing
    except BadOption as error:
        raise click.UsageError(error.text) from error
    with running("restore", master) as spark:
        logs = run(spark, directory, wanted, made)
    if as_json:
        show_json([each.fields() for each in logs])
        return
    show_rows([each.fields() for each in logs], "nothing")
    click.echo(f"restored {sum(each.messages for each in logs):,} messages to {to}, all verified")
