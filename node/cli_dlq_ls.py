"""`busnode dlq ls`: which dead letters there are, on all nodes."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_holders import show_silent
from busnode.node.cli_task_enqueue import queue_argument
from busnode.node.cli_task_ls import unknown_text
from busnode.node.cli_times import EPOCH, past_option
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import (
    Column,
    Lines,
    counted,
    moment,
    printable,
    show_table,
    size,
)
from busnode.wire.errors import UnknownQueue

if TYPE_CHECKING:
    from busnode.client import DeadLetter, Queue

NAME: Final = "busnode dlq"
LIMIT: Final = 100

COLUMNS: Final = (
    Column("id", style="cyan"),
    Column("died", style="dim", beside="died {}"),
    Column("attempts", justify="right", beside="attempts {}"),
    Column("size", justify="right"),
    Column("worker", beside="worker {}"),
    Column("node", beside="at {}"),
    Column("last error", wraps=True, style="red", beside="{}"),
)


@click.command()
@click.argument("queue", callback=queue_argument)
@click.option("--error", metavar="TEXT", help="Those with TEXT in their last error.")
@click.option(
    "--since", metavar="TIME", callback=past_option,
    help="Those that died after this. TIME is UTC, or how long ago: 2026-01-31T08:00, 10m.",
)  # fmt: skip
@click.option("--until", metavar="TIME", callback=past_option, help="Those that died before this.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=LIMIT, show_default=True,
    help="The oldest N.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def ls(
    *,
    queue: str,
    error: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    as_json: bool,
    to: Target,
) -> None:
    """List the dead letters of QUEUE, on all nodes of the cluster, the oldest first.

    \b
      busnode dlq ls emails
      busnode dlq ls emails --error 'no such address' --since 1h
    """
    filters = {"error": error, "since": since, "until": until, "limit": limit}
    run(partial(_ls, to, queue, filters, as_json))


async def _ls(to: Target, name: str, filters: Mapping[str, Any], as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        queue = bus.queue(name)
        letters = await queue.dead.list(**filters)
        silent = queue.dead.silent
        if not letters:
            await check_known(queue)
    if as_json:
        report = {
            "queue": name,
            "silent": silent,
            "dead": [letter_fields(each) for each in letters],
        }
        click.echo(json.dumps(report, ensure_ascii=False, indent=2).encode())
        return 0
    if letters:
        show_table(COLUMNS, [_row(letter) for letter in letters])
    text = counted(len(letters), "dead letter")
    if len(letters) == filters["limit"]:
        text += "; there may be more: --limit"
    Lines().write([[(text, "bold")]])
    show_silent(silent)
    return 0


async def check_known(queue: "Queue") -> None:
    """UnknownQueue where no node that answers has ever heard of it."""
    found = await queue.status()
    if not any("ready" in row for row in found.nodes.values()):
        raise UnknownQueue(unknown_text(queue.name, found.silent))


def letter_fields(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "id": letter.id,
        "node": letter.node,
        "attempts": letter.attempts,
        "enqueued": json_time(letter.enqueued),
        "died": None if letter.failed is None else json_time(letter.failed),
        "error": letter.error,
        "worker": letter.worker,
        "payload_bytes": letter.payload_bytes,
    }


def json_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def time_text(at: datetime | None) -> str:
    return "–" if at is None else moment((at - EPOCH) // timedelta(microseconds=1))


def _row(letter: "DeadLetter") -> tuple[str, ...]:
    return (
        letter.id,
        time_text(letter.failed),
        f"{letter.attempts:,}",
        size(letter.payload_bytes),
        printable(letter.worker or "–"),
        printable(letter.node),
        printable(letter.error or "–"),
    )
