"""`busnode task ls`: all queues of the cluster, or the tasks of one."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_asking import TASKS, Status, ask, ask_everyone, ask_pages
from busnode.node.cli_holders import show_silent
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import (
    Column,
    Lines,
    counted,
    duration,
    moment,
    printable,
    show_table,
    size,
)
from busnode.node.queue_table import COUNTS, add_rows, show_queues
from busnode.wire.errors import UnknownQueue
from busnode.wire.task_options import check_queue

if TYPE_CHECKING:
    from busnode.client import Bus

NAME: Final = "busnode task ls"
STATES: Final = ("ready", "delayed", "retrying", "leased", "settling", "dead")
LIMIT: Final = 100
PAGE: Final = 500
SECOND_US: Final = 1_000_000

COLUMNS: Final = (
    Column("id", style="cyan"),
    Column("state"),
    Column("age", justify="right", beside="age {}"),
    Column("due in", justify="right", beside="due in {}"),
    Column("priority", justify="right", beside="priority {}"),
    Column("failed", justify="right", beside="failed {}"),
    Column("size", justify="right"),
    Column("worker", beside="worker {}"),
    Column("last error", wraps=True, beside="last error {}"),
)


def _queue(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return None if text is None else check_queue(text)


@click.command()
@click.argument("queue", required=False, callback=_queue)
@click.option("--state", type=click.Choice(STATES), help="Tasks in this state only.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=LIMIT, show_default=True,
    help="The oldest N tasks.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def ls(*, queue: str | None, state: str | None, limit: int, as_json: bool, to: Target) -> None:
    """List all queues of the cluster, with how many tasks are in which state; or the tasks of
    QUEUE, the oldest first.

    \b
      busnode task ls
      busnode task ls emails --state retrying

    A task is ready, or delayed until it is due, or retrying: it has failed and waits for its next
    attempt. Leased is what a worker has, settling what it is done with and is not durable yet.
    What a node had that has just died is not counted until another one goes on with it.
    """
    if queue is None:
        if state is not None:
            raise click.UsageError("--state is for the tasks of a QUEUE; name one")
        run(partial(_queues, to, as_json))
    else:
        run(partial(_tasks, to, queue, state, limit, as_json))


# Queues -------------------------------------------------------------------------------------------


async def _queues(to: Target, as_json: bool) -> int:
    now_us = 0

    async def question(bus: "Bus", found: Status) -> list[Any]:
        nonlocal now_us
        now_us = found["utc_us"]
        return await ask_pages(bus, TASKS, "queues", "after", {"do": "queues"}, to.timeout_s)

    told = await ask_everyone(to, NAME, question)
    queues = add_rows(told.answers)
    if as_json:
        report = {"nodes": list(told.answers), "silent": told.silent, "queues": queues}
        click.echo(json.dumps(report, ensure_ascii=False, indent=2).encode())
        return 0
    show_queues(queues, now_us)
    dead = sum(row["dead"] for row in queues)
    tasks = sum(row[name] for row in queues for name in COUNTS if name != "dead")
    text = f"{counted(len(queues), 'queue')}, {counted(tasks, 'task')}"
    text += f", {counted(dead, 'dead letter')}" if dead else ""
    Lines().write([[(text, "bold")]])
    orphans = {each for row in queues for each in row["orphans"]}
    if orphans:
        who = counted(len(orphans), "incarnation")
        Lines().write([[(f"tasks of {who} more wait for a node to go on with them", "yellow")]])
    show_silent(told.silent)
    return 0


# Tasks --------------------------------------------------------------------------------------------


async def _tasks(to: Target, queue: str, state: str | None, limit: int, as_json: bool) -> int:
    now_us = 0
    is_known = False
    asked = {"do": "ls", "queue": queue, **({} if state is None else {"state": state})}

    async def question(bus: "Bus", found: Status) -> list[Status]:
        nonlocal now_us, is_known
        now_us = found["utc_us"]
        rows: list[Status] = []
        place: Mapping[str, Any] = {}
        while len(rows) < limit:
            part = {**asked, **place, "limit": min(PAGE, limit - len(rows))}
            page = await ask(bus, TASKS, json.dumps(part).encode(), to.timeout_s)
            is_known |= not page.get("unknown", False)
            rows += page["tasks"]
            if page["next"] is None:
                break
            place = {"after": page["next"]}
        return rows

    told = await ask_everyone(to, NAME, question)
    if not is_known:
        raise UnknownQueue(unknown_text(queue, told.silent))
    rows = _oldest(told.answers, limit)
    if as_json:
        report = {"queue": queue, "nodes": list(told.answers), "silent": told.silent, "tasks": rows}
        click.echo(json.dumps(report, ensure_ascii=False, indent=2).encode())
        return 0
    if rows:
        show_table(COLUMNS, [_row(row, now_us) for row in rows], names=2)
    text = counted(len(rows), "task") + ("" if state is None else f" {state}")
    if len(rows) == limit:
        text += "; there may be more: --limit"
    Lines().write([[(text, "bold")]])
    show_silent(told.silent)
    return 0


def unknown_text(queue: str, silent: Iterable[str]) -> str:
    """What is said of a queue that nobody knows."""
    names = ", ".join(sorted(silent))
    if not names:
        return f"no node knows a queue {queue!r}"
    return f"no node that has answered knows a queue {queue!r}; no answer from {names}"


def _oldest(answers: Mapping[str, Sequence[Status]], limit: int) -> list[dict[str, Any]]:
    rows = [{**row, "node": node} for node, rows in answers.items() for row in rows]
    return sorted(rows, key=lambda row: row["enqueued_us"])[:limit]  # those of a node stay in order


def _row(row: Status, now_us: int) -> tuple[str, ...]:
    due_us: int | None = row["due_us"] if row["state"] in ("delayed", "retrying") else None
    return (
        row["id"],
        row["state"],
        _since(row["enqueued_us"], now_us),
        "–" if due_us is None else duration(max(0, due_us - now_us) / SECOND_US),
        str(row["priority"]),
        f"{row['attempts']:,}",
        size(row["payload_bytes"]),
        printable(row["worker"] or "–"),
        printable(row["error"] or "–"),
    )


def _since(utc_us: int, now_us: int) -> str:
    return duration((now_us - utc_us) / SECOND_US) if utc_us <= now_us else moment(utc_us)
