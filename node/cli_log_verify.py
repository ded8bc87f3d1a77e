"""`busnode log verify`: every record of a data directory, read and hashed."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from busnode.node.cli_log_directory import (
    FOUND_DAMAGE,
    check_directory,
    directory_argument,
    json_option,
    log_parts,
    missing_count,
    print_json,
    remark_damage,
)
from busnode.node.presentation import Lines, counted, duration, progress, size
from busnode.wire.ids import LogId

if TYPE_CHECKING:
    from busnode.segments.damage import Flaw, Hole
    from busnode.segments.verification import VerifiedLog
    from busnode.world.files import Files, ReadFile

TORN_TAIL: Final = (
    "These bytes stand behind the last good record. A crash leaves such bytes of an append that it "
    "cut off before any ack; nothing here shows that this one was acked."
)


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
        return spanned - sum(missing_count(segment.holes) for segment in segments)

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


@click.command()
@directory_argument
@json_option
@click.pass_context
def verify(context: click.Context, directory: str, as_json: bool) -> None:
    """Read and hash every record in DIR.

    Names every hole and flaw by file and byte. Exit code 0: all is good. 1: something was found.
    """
    verdict = _verdict(directory)
    if as_json:
        print_json(_verdict_fields(verdict, directory))
    else:
        _show_verdict(verdict, directory)
    if verdict.holes or verdict.flaws:
        context.exit(FOUND_DAMAGE)


def _verdict(directory: str) -> Verdict:
    from busnode.segments.verification import verify_directory
    from busnode.world.real_world import real_world

    world = real_world()
    check_directory(world.files, directory)
    size_bytes = segment_bytes(world.files, directory)
    with progress("verifying", size_bytes) as advance:
        began = world.clock.monotonic()
        files = cast("Files", _CountedFiles(world.files, advance))
        logs = list(verify_directory(files, directory))
        seconds = world.clock.monotonic() - began
    return Verdict(logs, size_bytes, seconds)


def segment_bytes(files: "Files", directory: str) -> int:
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
        "missing_messages": missing_count(hole for _, hole in verdict.holes),
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
        lines.write([[("hole  ", "bold red"), *log_parts(log_id), (numbers, "")]])
        remark_damage(lines, hole, directory)
    for log_id, flaw, torn in verdict.flaws:
        lines.write([[("torn  " if torn else "flaw  ", "bold yellow"), *log_parts(log_id)]])
        remark_damage(lines, flaw, directory)
        if torn:
            lines.remark(TORN_TAIL)
    logs = counted(sum(log.log_id is not None for log in verdict.logs), "log")
    read = f"{logs}, {counted(verdict.messages, 'message')}, {size(verdict.size_bytes)}"
    speed = f" read in {duration(verdict.seconds)}, {size(verdict.bytes_per_s)}/s: "
    if not verdict.holes and not verdict.flaws:
        judged = ("all good", "bold green")
    else:
        missing = counted(missing_count(hole for _, hole in verdict.holes), "message")
        holes = f"{counted(len(verdict.holes), 'hole')} with {missing}"
        flaws = counted(len(verdict.flaws), "flaw")
        judged = (f"{holes}, {flaws}", "bold red" if verdict.holes else "bold yellow")
    lines.write([[(read, "bold"), (speed, "dim"), judged]])
