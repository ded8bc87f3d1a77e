"""`busnode log ls`: the logs of a data directory."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from busnode.node.cli_log_directory import (
    chosen,
    directory_argument,
    json_option,
    missing_count,
    no_logs,
    opened,
    print_json,
    topics_option,
)
from busnode.node.presentation import Column, Lines, Part, counted, show_table, size, span
from busnode.wire.ids import LogId, MsgNo, Pattern

if TYPE_CHECKING:
    from busnode.segments.damage import Hole
    from busnode.segments.log import FileLog


class Summary(NamedTuple):
    """What `ls` tells of a log."""

    log_id: LogId
    first_no: MsgNo
    last_no: MsgNo
    size_bytes: int
    segments: int
    oldest_us: int | None
    newest_us: int | None
    holes: "list[Hole]"

    @property
    def messages(self) -> int:
        return self.last_no - self.first_no + 1 - missing_count(self.holes)


def _summary(of: "FileLog") -> Summary:
    from busnode.node.log_export import Batch, read_log

    oldest_us = next(
        (found.utc_us()[0] for found in read_log(of, of.first_no) if isinstance(found, Batch)), None
    )
    newest_us = max((segment.utc_us_max for segment in of.segments), default=0) or None
    return Summary(
        of.log_id, of.first_no, of.committed_no, of.size_bytes, len(of.segments),
        oldest_us, newest_us, of.holes(),
    )  # fmt: skip


@click.command()
@directory_argument
@topics_option
@json_option
def ls(directory: str, patterns: list[Pattern], as_json: bool) -> None:
    """List the logs in DIR.

    Holes are those that are known; `busnode log verify` looks for others.
    """
    with opened(directory) as (store, _):
        logs = [_summary(each) for each in chosen(store, patterns)]
        flaws = len(store.flaws())
    if as_json:
        print_json({"directory": directory, "logs": list(map(_summary_fields, logs))})
    elif logs:
        _show_logs(logs, flaws)
    else:
        click.echo(no_logs(directory, patterns))


def _summary_fields(log: Summary) -> dict[str, Any]:
    from busnode.node.log_export import hole_fields, log_fields, utc_text

    return {
        **log_fields(log.log_id),
        "first_no": log.first_no,
        "last_no": log.last_no,
        "messages": log.messages,
        "bytes": log.size_bytes,
        "segments": log.segments,
        "oldest": None if log.oldest_us is None else utc_text(log.oldest_us),
        "newest": None if log.newest_us is None else utc_text(log.newest_us),
        "holes": list(map(hole_fields, log.holes)),
    }


def _show_logs(logs: list[Summary], flaws: int) -> None:

    columns = [
        Column("broker", style="dim"),
        Column("topic", style="cyan"),
        Column("msgNo", justify="right", beside="msgNo {}"),
        Column("messages", justify="right", beside="messages {}"),
        Column("size", justify="right"),
        Column("files", justify="right", beside="files {}"),
        Column("utc"),
        Column("holes", justify="right", beside="holes {}"),
    ]
    rows = [
        (
            log.log_id.broker_id.hex()[:8],
            log.log_id.topic,
            f"{log.first_no}–{log.last_no}" if log.last_no >= log.first_no else "none",
            f"{log.messages:,}",
            size(log.size_bytes),
            f"{log.segments:,}",
            "–" if log.oldest_us is None else span(log.oldest_us, log.newest_us or log.oldest_us),
            f"{len(log.holes):,}",
        )
        for log in logs
    ]
    show_table(columns, rows, names=2)
    total = ", ".join(
        (
            counted(len(logs), "log"),
            counted(sum(log.messages for log in logs), "message"),
            size(sum(log.size_bytes for log in logs)),
        )
    )
    lines: list[list[Part]] = [[(total, "bold")]]
    holes = sum(len(log.holes) for log in logs)
    if holes or flaws:
        found = f"{counted(holes, 'hole')} and {counted(flaws, 'flaw')} are known"
        lines.append([(f"{found}; `busnode log verify` names them and looks for more", "yellow")])
    Lines().write(lines)
