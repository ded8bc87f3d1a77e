"""What the commands of `busnode log` share: the directory, whose logs are shown, how damage is."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from busnode.node.presentation import Lines, Part
from busnode.wire.errors import NotADataDirectory
from busnode.wire.ids import LogId, Pattern
from busnode.wire.topics import check_pattern, matches

if TYPE_CHECKING:
    from busnode.segments.damage import Flaw, Hole
    from busnode.segments.file_store import FileStore
    from busnode.segments.log import FileLog
    from busnode.world.files import Files

FOUND_DAMAGE: Final = 1
"""Exit code of a command that did what was asked and has damage to tell of."""

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(resolve_path=True))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _checked(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[Pattern]:
    return [check_pattern(text) for text in texts]


topics_option = click.option(
    "--topics",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    callback=_checked,
    help="Only topics that match, such as '/plant/+/temp' or '/orders/*'. May be repeated.",
)


@contextmanager
def opened(directory: str) -> "Generator[tuple[FileStore, Files], None, None]":
    from busnode.segments.file_store import FileStore
    from busnode.world.real_world import real_world

    world = real_world()
    check_directory(world.files, directory)
    store = FileStore(world.files, world.clock, directory, read_only=True)
    try:
        yield store, world.files
    finally:
        store.close()


def check_directory(files: "Files", directory: str) -> None:
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


def chosen(store: "FileStore", patterns: list[Pattern]) -> "list[FileLog]":
    """The logs whose topics match one of the patterns; all of them where there is none."""
    return [
        each
        for each in store.logs()
        if not patterns or any(matches(pattern, each.log_id.topic) for pattern in patterns)
    ]


def no_logs(directory: str, patterns: list[Pattern]) -> str:
    return f"{directory} holds no logs" + (f" that match {' or '.join(patterns)}" * bool(patterns))


def missing_count(holes: "Iterable[Hole]") -> int:
    return sum(hole.last_no - hole.first_no + 1 for hole in holes if hole.last_no)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2).encode())


def log_parts(log_id: LogId | None) -> list[Part]:
    if log_id is None:
        return [("unknown log ", "dim")]
    return [(f"{log_id.broker_id.hex()[:8]} ", "dim"), (f"{log_id.topic} ", "cyan")]


def remark_damage(lines: Lines, damage: "Hole | Flaw", directory: str) -> None:
    lines.remark(f"{damage.reason}, at byte {damage.offset}, {damage.length} bytes")
    lines.remark(damage.path.removeprefix(f"{directory}/"))
