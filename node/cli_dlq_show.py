"""`busnode dlq show`: one dead letter, with every attempt and its payload."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from busnode.node.cli_dlq_ls import NAME, check_known, json_time, letter_fields, time_text
from busnode.node.cli_holders import show_silent
from busnode.node.cli_sub import json_payload
from busnode.node.cli_task_enqueue import queue_argument
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import Column, Lines, printable, show_facts, show_table, size

if TYPE_CHECKING:
    from busnode.client import DeadLetter

NOT_THERE: Final = 1

LINES_SHOWN: Final = 1000
HEX_BYTES: Final = 16
"""Of a payload that is no text, on one line."""

COLUMNS: Final = (
    Column("attempt", justify="right"),
    Column("at", style="dim"),
    Column("worker", beside="worker {}"),
    Column("error", wraps=True, style="red"),
)


@click.command()
@click.argument("queue", callback=queue_argument)
@click.argument("task_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def show(*, queue: str, task_id: str, as_json: bool, to: Target) -> None:
    """Show the dead letter ID of QUEUE: every attempt with its error, and the payload.

    \b
      busnode dlq show emails 8f3a…-17

    Exit code 1: there is no such dead letter.
    """
    run(partial(_show, to, queue, task_id, as_json))


async def _show(to: Target, name: str, task_id: str, as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        queue = bus.queue(name)
        letter = await queue.dead.show(task_id)
        silent = queue.dead.silent
        if letter is None:
            await check_known(queue)
    if letter is None:
        text = f"queue {name} has no dead letter {task_id}"
        if silent:
            text += f"; no answer from {', '.join(sorted(silent))}"
        click.echo(f"busnode: {printable(text)}", err=True)
        return NOT_THERE
    if as_json:
        click.echo(_shown_json(letter))
    else:
        _show_letter(letter)
        show_silent(silent)
    return 0


def _shown_json(letter: "DeadLetter") -> bytes:
    history = [
        {"attempt": n, "at": json_time(at), "worker": worker, "error": error}
        for n, at, worker, error in letter.history
    ]
    fields = {
        "queue": letter.queue, **letter_fields(letter),
        "headers": dict(letter.headers or {}), "history": history,
    }  # fmt: skip
    told = json.dumps(fields, ensure_ascii=False)
    if letter.payload is None:  # too large for an answer
        return f'{told[:-1]}, "payload": null}}'.encode()
    return f"{told[:-1]}, {json_payload(letter.payload)}}}".encode()


def _show_letter(letter: "DeadLetter") -> None:
    options = {k: v for k, v in (letter.headers or {}).items() if k != "$task"}
    headers = ", ".join(printable(f"{name}={value}") for name, value in options.items())
    facts = {
        "queue": printable(letter.queue),
        "at node": printable(letter.node),
        "enqueued": time_text(letter.enqueued),
        "died": time_text(letter.failed),
        "attempts": f"{letter.attempts:,}",
        "headers": headers or "none",
        "payload": size(letter.payload_bytes),
    }
    show_facts(f"dead letter {letter.id}", facts)
    click.echo()
    if letter.history:
        rows = [
            (str(each.attempt), time_text(each.at), printable(each.worker), printable(each.error))
            for each in letter.history
        ]
        show_table(COLUMNS, rows, names=2)
        click.echo()
    if letter.payload is None:
        Lines().write([[("the payload is too large to be shown here", "yellow")]])
    else:
        Lines().write([[(line, "")] for line in payload_lines(letter.payload)])


def payload_lines(payload: bytes) -> list[str]:
    """As text where it is text, else in hex with places; cut off when it is very long."""
    try:
        lines = [printable(line) for line in payload.decode().splitlines()]
    except UnicodeDecodeError:
        lines = [
            f"{at:08x}  {payload[at : at + HEX_BYTES].hex(' ')}"
            for at in range(0, min(len(payload), LINES_SHOWN * HEX_BYTES + 1), HEX_BYTES)
        ]
    if len(lines) > LINES_SHOWN:
        return [*lines[:LINES_SHOWN], "… --json has all of it"]
    return lines or ["(empty)"]
