"""`busnode cursor`: looks at the cursors that a consumer keeps in a file, and moves them."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from busnode.node.cli import HelpfulGroup, WrongUsage
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import Column, Lines, counted, printable, show_table
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, MsgNo, Pattern, Topic
from busnode.wire.topics import check_pattern, is_pattern, matches

if TYPE_CHECKING:
    from busnode.client import Position

Log = tuple[BrokerId, Topic]

_file = click.argument(
    "path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True)
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=HelpfulGroup)
def cursor() -> None:
    """Look at the cursors in a FILE of `busnode sub --cursors`, or move them.

    A cursor is the number of the last message that is done, in one log: one topic of one brokerId.
    """


async def _loaded(path: str) -> "Position":
    from busnode.client import FileCursorStore
    from busnode.world.real_anyio import AnyioFiles

    position = await FileCursorStore(path, AnyioFiles()).load()
    assert position is not None, "click has seen the file"
    return position


def _fields(logs: Iterable[tuple[Log, MsgNo]]) -> list[dict[str, Any]]:
    return [
        {"broker_id": broker_id.hex(), "topic": topic, "msg_no": msg_no}
        for (broker_id, topic), msg_no in logs
    ]


def _sorted(position: "Position") -> list[tuple[Log, MsgNo]]:
    return sorted(position.items(), key=lambda item: (item[0][1], item[0][0]))


# show and export ------------------------------------------------------------------------------


@cursor.command()
@_file
@_as_json
def show(*, path: str, as_json: bool) -> None:
    """Show the cursors in FILE."""
    run(partial(_show, path, as_json))


async def _show(path: str, as_json: bool) -> int:
    logs = _sorted(await _loaded(path))
    if as_json:
        click.echo(json.dumps({"path": path, "cursors": _fields(logs)}, indent=2))
        return 0
    columns = [
        Column("broker", style="dim"),
        Column("topic", style="cyan"),
        Column("done up to", justify="right", beside="done up to {}"),
    ]
    rows = [(key[0].hex()[:8], printable(key[1]), f"{msg_no}") for key, msg_no in logs]
    if rows:
        show_table(columns, rows, names=2)
    Lines().write([[(counted(len(logs), "cursor"), "bold")]])
    return 0


@cursor.command()
@_file
def export(path: str) -> None:
    """Print the cursors in FILE as JSON, one a line."""
    run(partial(_export, path))


async def _export(path: str) -> int:
    for fields in _fields(_sorted(await _loaded(path))):
        sys.stdout.write(json.dumps(fields) + "\n")
    return 0


# seek -----------------------------------------------------------------------------------------


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> Pattern | None:
    return None if text is None else check_pattern(text)


@cursor.command()
@_file
@click.option("--to", "place", metavar="earliest|latest|MSGNO", required=True, help="Where to.")
@click.option(
    "--topic", metavar="PATTERN", callback=_pattern, help="Only cursors of topics that match."
)
@click.option("--broker", metavar="ID", help="Only cursors of this brokerId, or how it begins.")
@_as_json
@reaching_a_node
def seek(
    *,
    path: str,
    place: str,
    topic: Pattern | None,
    broker: str | None,
    as_json: bool,
    to: Target,
) -> None:
    """Move cursors in FILE; nobody may be using it meanwhile.

    With earliest all comes again. With latest, for which a node is asked, nothing of what is there
    now does. With a MSGNO that message comes next: it takes a --topic and a --broker where FILE
    has more than one log.
    """
    if place not in ("earliest", "latest") and not _is_number(place):
        raise click.BadParameter(f"--to {place!r}; expected earliest, latest or a msgNo")
    if broker is not None and not _is_hex(broker):
        raise click.BadParameter(f"--broker {broker!r} is no brokerId: hex digits, at most 32")
    run(partial(_seek, path, place, topic, (broker or "").lower(), as_json, to))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:40]) <= U64_MAX


def _is_hex(text: str) -> bool:
    return len(text) <= BROKER_ID_BYTES * 2 and not text.lower().strip("0123456789abcdef")


async def _seek(
    path: str, place: str, pattern: Pattern | None, broker: str, as_json: bool, to: Target
) -> int:
    from busnode.client import FileCursorStore
    from busnode.world.real_anyio import AnyioFiles

    position = await _loaded(path)
    if place == "latest":
        found = await _ends(position, pattern, to)
    else:
        number = max(0, int(place) - 1) if place.isdecimal() else 0
        found = {key: MsgNo(number) for key in _named(position, pattern, broker)}
    moved = {
        key: msg_no
        for key, msg_no in found.items()
        if (pattern is None or matches(pattern, key[1])) and key[0].hex().startswith(broker)
    }
    if not moved:
        raise WrongUsage(f"no cursor in {path} is one of those")
    if place.isdecimal() and len(moved) > 1:
        raise WrongUsage(
            f"{len(moved)} logs have a message {place}: name one with --topic and --broker"
        )
    position.update(moved)
    await FileCursorStore(path, AnyioFiles()).save(position)
    if as_json:
        click.echo(json.dumps({"path": path, "moved": _fields(moved.items())}, indent=2))
    else:
        Lines().write([[(f"moved {counted(len(moved), 'cursor')} in {path}", "bold")]])
    return 0


def _named(position: "Position", pattern: Pattern | None, broker: str) -> list[Log]:
    """The logs in the file, and one that is not there but named in full."""
    if pattern is not None and not is_pattern(pattern) and len(broker) == BROKER_ID_BYTES * 2:
        return [(BrokerId(bytes.fromhex(broker)), Topic(str(pattern)))]
    return list(position)


async def _ends(position: "Position", pattern: Pattern | None, to: Target) -> dict[Log, MsgNo]:
    """How far the logs reach now: what a subscription with `latest` is told at its beginning."""
    from busnode.client import connect

    patterns = {str(topic) for _, topic in position} if pattern is None else {str(pattern)}
    ends: dict[Log, MsgNo] = {}
    async with connect(to.url, name="busnode cursor", deadline_s=to.timeout_s, **to.options) as bus:
        for each in sorted(patterns):
            async with bus.subscribe(each, start="latest") as messages:
                ends |= messages.position
    return ends
