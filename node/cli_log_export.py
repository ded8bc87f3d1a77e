"""`busnode log export`: the messages of a data directory as a file."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

import sys
from typing import IO, TYPE_CHECKING

import click

from busnode.node.cli_log_directory import (
    FOUND_DAMAGE,
    chosen,
    directory_argument,
    no_logs,
    opened,
    topics_option,
)
from busnode.node.presentation import counted, printable, progress
from busnode.wire.ids import Pattern

if TYPE_CHECKING:
    from busnode.node.log_export import Damage, Rows
    from busnode.segments.log import FileLog


@click.command()
@directory_argument
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE|-",
    type=click.Path(dir_okay=False, allow_dash=True, resolve_path=True),
    help="Where to; - is stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="Taken from the name of FILE unless it is given: .parquet, else jsonl.",
)
@topics_option
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.pass_context
def export(
    context: click.Context,
    *,
    directory: str,
    target: str,
    form: str | None,
    patterns: list[Pattern],
    force: bool,
) -> None:
    """Write the messages in DIR to a file, as JSON lines or Parquet.

    FILE appears when it is complete. Holes are named on stderr: then the exit code is 1, and all
    that could be read has been exported.
    """
    to_stdout = target == "-"
    form = form or ("parquet" if target.endswith(".parquet") else "jsonl")
    if form == "parquet" and to_stdout and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for terminals; name a FILE")
    with opened(directory) as (store, files):
        if not to_stdout and not force and files.exists(target):
            raise click.UsageError(f"{target} exists; --force replaces it")
        logs = chosen(store, patterns)
        if not logs:
            click.echo(no_logs(directory, patterns), err=True)
        if to_stdout:
            count, damage = _export(logs, form, sys.stdout.buffer)
        else:
            from busnode.node.log_export import replaced

            with replaced(files, target) as stream:
                count, damage = _export(logs, form, stream)
    for found in damage:
        click.echo(f"{found.log_id} {printable(str(found))}", err=True)
    if not to_stdout:
        exported = f"{counted(count, 'message')} of {counted(len(logs), 'log')}"
        click.echo(f"exported {exported} to {target}", err=True)
    if damage:
        context.exit(FOUND_DAMAGE)


def _export(logs: "list[FileLog]", form: str, stream: IO[bytes]) -> "tuple[int, list[Damage]]":
    """Write all messages of the logs; how many there were, and what could not be read."""
    from busnode.node.log_export import Damage, read_log

    count = 0
    damage: list[Damage] = []
    rows = _rows(form, stream)
    try:
        with progress("exporting", sum(each.size_bytes for each in logs)) as advance:
            for found in (found for each in logs for found in read_log(each, each.first_no)):
                if isinstance(found, Damage):
                    damage.append(found)
                    continue
                rows.write(found)
                count += found.header.count
                advance(found.header.length)
        rows.close()
    except BaseException:
        rows.abandon()
        raise
    return count, damage


def _rows(form: str, stream: IO[bytes]) -> "Rows":
    from busnode.node.log_export import JsonRows, ParquetRows

    if form == "jsonl":
        return JsonRows(stream)
    try:
        return ParquetRows(stream)
    except ImportError:
        raise click.UsageError(
            "Parquet needs pyarrow: pip install 'busnode[parquet]', or take --format jsonl"
        ) from None
