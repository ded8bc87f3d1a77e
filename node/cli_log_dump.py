"""`busnode log dump`: the messages of a data directory."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from busnode.node.cli_log_directory import (
    chosen,
    directory_argument,
    json_option,
    log_parts,
    no_logs,
    opened,
    topics_option,
)
from busnode.node.presentation import Lines, Part, moment, printable
from busnode.wire.ids import Pattern

if TYPE_CHECKING:
    from busnode.node.log_export import Batch, Damage, Row
    from busnode.segments.log import FileLog


@click.command()
@directory_argument
@topics_option
@click.option("--from", "from_no", metavar="N", type=click.IntRange(1), help="Begin at msgNo N.")
@click.option("--count", metavar="N", type=click.IntRange(1), help="At most N messages of a log.")
@click.option("--headers", "with_headers", is_flag=True, help="Show headers; JSON always has them.")
@json_option
def dump(
    *,
    directory: str,
    patterns: list[Pattern],
    from_no: int | None,
    count: int | None,
    with_headers: bool,
    as_json: bool,
) -> None:
    """Print the messages in DIR, log by log, in order.

    Holes, and batches that cannot be read, stand in their places. With --json each line is one
    object: a message, or whose log it is and a "hole" or an "unreadable" range.
    """
    with opened(directory) as (store, _):
        logs = chosen(store, patterns)
        if not logs:
            click.echo(no_logs(directory, patterns), err=True)
        if as_json:
            _dump_json(_pieces(logs, from_no, count))
        else:
            _dump_lines(_pieces(logs, from_no, count), with_headers=with_headers)


def _pieces(
    logs: "list[FileLog]", from_no: int | None, count: int | None
) -> "Iterator[Batch | Damage]":
    """What the logs hold, without what was not asked for."""
    from busnode.node.log_export import Damage, read_log

    for each in logs:
        left = count
        # Without a number it begins where the log does: what has expired is no news then.
        for found in read_log(each, from_no or each.first_no):
            if isinstance(found, Damage):
                yield found
                continue
            batch = found.cut(from_no or 0, left)
            yield batch
            if left is not None:
                left -= batch.header.count
                if not left:
                    break


def _dump_json(pieces: "Iterator[Batch | Damage]") -> None:
    from busnode.node.log_export import Damage, damage_fields, json_line, json_messages

    for piece in pieces:
        if isinstance(piece, Damage):
            click.echo(json_line(damage_fields(piece)), nl=False)
        else:
            click.echo(json_messages(piece), nl=False)


def _dump_lines(pieces: "Iterator[Batch | Damage]", *, with_headers: bool) -> None:
    from busnode.node.log_export import Damage

    lines = Lines()
    for piece in pieces:
        whose = log_parts(piece.log_id)
        if isinstance(piece, Damage):
            lines.write([[*whose, (printable(str(piece)), "red")]])
        else:
            lines.write(_message_line(whose, row, lines, with_headers) for row in piece.rows())


def _message_line(whose: list[Part], row: "Row", lines: Lines, with_headers: bool) -> list[Part]:
    msg_no, utc_us, id_, headers, payload = row
    parts = [*whose, (f"{msg_no} ", "bold"), (f"{moment(utc_us, 'milliseconds')} ", "dim")]
    if id_ is not None:
        parts.append((f"id={printable(id_)} ", "green"))
    if with_headers and headers:
        shown = (f"{printable(name)}={printable(value)} " for name, value in headers.items())
        parts.append(("".join(shown), "magenta"))
    return lines.with_payload(parts, payload)
