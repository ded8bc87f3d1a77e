"""`busnode log`: looking into the logs of a data directory whose node is down.

Nothing here changes a log. The directory is locked while it is looked at: a node cannot start on it
meanwhile, and where one is running the command is refused.
"""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from busnode.node.cli import HelpfulGroup
from busnode.node.presentation import (
    Column,
    Lines,
    Part,
    counted,
    duration,
    moment,
    printable,
    progress,
    show_table,
    size,
    span,
)
from busnode.wire.errors import NotADataDirectory
from busnode.wire.ids import LogId, MsgNo, Pattern
from busnode.wire.topics import check_pattern, matches

if TYPE_CHECKING:
    from busnode.node.log_export import Batch, Damage, Row, Rows
    from busnode.segments.damage import Flaw, Hole
    from busnode.segments.file_store import FileStore
    from busnode.segments.log import FileLog
    from busnode.segments.verification import VerifiedLog
    from busnode.world.files import Files, ReadFile

FOUND_DAMAGE: Final = 1
"""Exit code of a command that did what was asked and has damage to tell of."""

TORN_TAIL: Final = (
    "These bytes stand behind the last good record. A crash leaves such bytes of an append that it "
    "cut off before any ack; nothing here shows that this one was acked."
)

_directory = click.argument("directory", metavar="DIR", type=click.Path(resolve_path=True))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _checked(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[Pattern]:
    return [check_pattern(text) for text in texts]


_topics = click.option(
    "--topics",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    callback=_checked,
    help="Only topics that match, such as '/plant/+/temp' or '/orders/*'. May be repeated.",
)


@click.group(cls=HelpfulGroup)
def log() -> None:
    """Look into the logs of a data directory, with its node down.

    DIR is the data directory of one node, busnode-data/NAME: the one with a folder `logs` in it.
    """


# The directory --------------------------------------------------------------------------------


@contextmanager
def _opened(directory: str) -> "Generator[tuple[FileStore, Files], None, None]":
    from busnode.segments.file_store import FileStore
    from busnode.world.real_world import real_world

    world = real_world()
    _check_directory(world.files, directory)
    store = FileStore(world.files, world.clock, directory, read_only=True)
    try:
        yield store, world.files
    finally:
        store.close()


def _check_directory(files: "Files", directory: str) -> None:
    """NotADataDirectory, with the name that was probably meant, unless it is one."""
    if files.exists(f"{directory}/logs"):
        return
    try:
        names = files.names(directory)
    except FileNotFoundError:
        raise NotADataDirectory(f"{directory} does not exist") from None
    except NotADirectoryError:
        raise NotADataDirectory(f"{directory} is a file; a node's data is a directory") from None
    if not names:
        raise NotADataDirectory(f"{directory} is empty; no node has stored anything there")
    nodes: list[str] = []
    for name in names:
        with suppress(PermissionError):
            if files.exists(f"{directory}/{name}/logs"):
                nodes.append(f"{directory}/{name}")
    if nodes:
        raise NotADataDirectory(f"{directory} holds data of nodes; name one: {', '.join(nodes)}")
    if directory.endswith("/logs"):
        raise NotADataDirectory(f"{directory} is inside of one; name {directory[: -len('/logs')]}")
    raise NotADataDirectory(f"{directory} has no folder 'logs'; no node has stored logs there")


def _chosen(store: "FileStore", patterns: list[Pattern]) -> "list[FileLog]":
    """The logs whose topics match one of the patterns; all of them where there is none."""
    return [
        each
        for each in store.logs()
        if not patterns or any(matches(pattern, each.log_id.topic) for pattern in patterns)
    ]


def _no_logs(directory: str, patterns: list[Pattern]) -> str:
    return f"{directory} holds no logs" + (f" that match {' or '.join(patterns)}" * bool(patterns))


def _missing_count(holes: "Iterable[Hole]") -> int:
    return sum(hole.last_no - hole.first_no + 1 for hole in holes if hole.last_no)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2).encode())


# ls -------------------------------------------------------------------------------------------


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
        return self.last_no - self.first_no + 1 - _missing_count(self.holes)


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


@log.command()
@_directory
@_topics
@_as_json
def ls(directory: str, patterns: list[Pattern], as_json: bool) -> None:
    """List the logs in DIR.

    Holes are those that are known; `busnode log verify` looks for others.
    """
    with _opened(directory) as (store, _):
        logs = [_summary(each) for each in _chosen(store, patterns)]
        flaws = len(store.flaws())
    if as_json:
        _print_json({"directory": directory, "logs": list(map(_summary_fields, logs))})
    elif logs:
        _show_logs(logs, flaws)
    else:
        click.echo(_no_logs(directory, patterns))


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


# dump -----------------------------------------------------------------------------------------


@log.command()
@_directory
@_topics
@click.option("--from", "from_no", metavar="N", type=click.IntRange(1), help="Begin at msgNo N.")
@click.option("--count", metavar="N", type=click.IntRange(1), help="At most N messages of a log.")
@click.option("--headers", "with_headers", is_flag=True, help="Show headers; JSON always has them.")
@_as_json
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
    with _opened(directory) as (store, _):
        logs = _chosen(store, patterns)
        if not logs:
            click.echo(_no_logs(directory, patterns), err=True)
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
        whose = _log_parts(piece.log_id)
        if isinstance(piece, Damage):
            lines.write([[*whose, (printable(str(piece)), "red")]])
        else:
            lines.write(_message_line(whose, row, lines, with_headers) for row in piece.rows())


def _log_parts(log_id: LogId | None) -> list[Part]:
    if log_id is None:
        return [("unknown log ", "dim")]
    return [(f"{log_id.broker_id.hex()[:8]} ", "dim"), (f"{log_id.topic} ", "cyan")]


def _message_line(whose: list[Part], row: "Row", lines: Lines, with_headers: bool) -> list[Part]:
    msg_no, utc_us, id_, headers, payload = row
    parts = [*whose, (f"{msg_no} ", "bold"), (f"{moment(utc_us, 'milliseconds')} ", "dim")]
    if id_ is not None:
        parts.append((f"id={printable(id_)} ", "green"))
    if with_headers and headers:
        shown = (f"{printable(name)}={printable(value)} " for name, value in headers.items())
        parts.append(("".join(shown), "magenta"))
    return lines.with_payload(parts, payload)


# verify ---------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What `verify` found, all logs together."""

    logs: "list[VerifiedLog]"
    size_bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / max(self.seconds, 1e-6)

    @property
    def messages(self) -> int:
        segments = [segment for log in self.logs for segment in log.segments]
        spanned = sum(segment.next_no - segment.first_no for segment in segments)
        return spanned - sum(_missing_count(segment.holes) for segment in segments)

    @property
    def holes(self) -> "list[tuple[LogId | None, Hole]]":
        return [(log.log_id, hole) for log in self.logs for hole in log.holes]

    @property
    def flaws(self) -> "list[tuple[LogId | None, Flaw, bool]]":
        """Whose it is, the flaw, and whether it is a torn tail."""
        return [
            (log.log_id, flaw, any(flaw is segment.torn for segment in log.segments))
            for log in self.logs
            for flaw in log.flaws
        ]


@log.command()
@_directory
@_as_json
@click.pass_context
def verify(context: click.Context, directory: str, as_json: bool) -> None:
    """Read and hash every record in DIR.

    Names every hole and flaw by file and byte. Exit code 0: all is good. 1: something was found.
    """
    verdict = _verdict(directory)
    if as_json:
        _print_json(_verdict_fields(verdict, directory))
    else:
        _show_verdict(verdict, directory)
    if verdict.holes or verdict.flaws:
        context.exit(FOUND_DAMAGE)


def _verdict(directory: str) -> Verdict:
    from busnode.segments.verification import verify_directory
    from busnode.world.real_world import real_world

    world = real_world()
    _check_directory(world.files, directory)
    size_bytes = _segment_bytes(world.files, directory)
    with progress("verifying", size_bytes) as advance:
        began = world.clock.monotonic()
        files = cast("Files", _CountedFiles(world.files, advance))
        logs = list(verify_directory(files, directory))
        seconds = world.clock.monotonic() - began
    return Verdict(logs, size_bytes, seconds)


def _segment_bytes(files: "Files", directory: str) -> int:
    from busnode.segments.bucket import LOGS, broker_ids
    from busnode.segments.segment import SegmentName

    total = 0
    for broker_id in broker_ids(files, directory):
        bucket = f"{directory}/{LOGS}/{broker_id.hex()}"
        for name in files.names(bucket):
            if SegmentName.parse(name) is not None:
                file = files.open(f"{bucket}/{name}")
                total += file.size_bytes()
                file.close()
    return total


class _CountedFiles:
    """The files of another, telling how much is read from them: what moves the bar inside a log.

    All but `open` is the other's own, whatever the seam has, hence a cast where it is made.
    """

    def __init__(self, files: "Files", advance: Callable[[int], None]) -> None:
        self._files = files
        self._advance = advance

    def open(self, path: str) -> "_CountedReadFile":
        return _CountedReadFile(self._files.open(path), self._advance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _CountedReadFile:
    def __init__(self, file: "ReadFile", advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance

    def read_into(self, view: memoryview, offset: int) -> int:
        count = self._file.read_into(view, offset)
        self._advance(count)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _verdict_fields(verdict: Verdict, directory: str) -> dict[str, Any]:
    from busnode.node.log_export import hole_fields, log_fields

    return {
        "directory": directory,
        "good": not verdict.holes and not verdict.flaws,
        "logs": sum(log.log_id is not None for log in verdict.logs),
        "messages": verdict.messages,
        "missing_messages": _missing_count(hole for _, hole in verdict.holes),
        "bytes": verdict.size_bytes,
        "seconds": round(verdict.seconds, 6),
        "gb_per_s": round(verdict.bytes_per_s / 1e9, 3),
        "holes": [{**log_fields(log_id), **hole_fields(hole)} for log_id, hole in verdict.holes],
        "flaws": [
            {
                **log_fields(log_id),
                "kind": "torn tail" if torn else "flaw",
                "path": flaw.path,
                "offset": flaw.offset,
                "length": flaw.length,
                "reason": flaw.reason,
            }
            for log_id, flaw, torn in verdict.flaws
        ],
    }


def _show_verdict(verdict: Verdict, directory: str) -> None:

    lines = Lines()
    for log_id, hole in verdict.holes:
        numbers = f"messages {hole.first_no}–{hole.last_no or '?'}"
        lines.write([[("hole  ", "bold red"), *_log_parts(log_id), (numbers, "")]])
        _remark_damage(lines, hole, directory)
    for log_id, flaw, torn in verdict.flaws:
        lines.write([[("torn  " if torn else "flaw  ", "bold yellow"), *_log_parts(log_id)]])
        _remark_damage(lines, flaw, directory)
        if torn:
            lines.remark(TORN_TAIL)
    logs = counted(sum(log.log_id is not None for log in verdict.logs), "log")
    read = f"{logs}, {counted(verdict.messages, 'message')}, {size(verdict.size_bytes)}"
    speed = f" read in {duration(verdict.seconds)}, {size(verdict.bytes_per_s)}/s: "
    if not verdict.holes and not verdict.flaws:
        judged = ("all good", "bold green")
    else:
        missing = counted(_missing_count(hole for _, hole in verdict.holes), "message")
        holes = f"{counted(len(verdict.holes), 'hole')} with {missing}"
        flaws = counted(len(verdict.flaws), "flaw")
        judged = (f"{holes}, {flaws}", "bold red" if verdict.holes else "bold yellow")
    lines.write([[(read, "bold"), (speed, "dim"), judged]])


def _remark_damage(lines: Lines, damage: "Hole | Flaw", directory: str) -> None:
    lines.remark(f"{damage.reason}, at byte {damage.offset}, {damage.length} bytes")
    lines.remark(damage.path.removeprefix(f"{directory}/"))


# export ---------------------------------------------------------------------------------------


@log.command()
@_directory
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
@_topics
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
    with _opened(directory) as (store, files):
        if not to_stdout and not force and files.exists(target):
            raise click.UsageError(f"{target} exists; --force replaces it")
        logs = _chosen(store, patterns)
        if not logs:
            click.echo(_no_logs(directory, patterns), err=True)
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
