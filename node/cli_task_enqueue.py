"""`busnode task enqueue`: adds a task, the same one many times, or one for each line of stdin."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_pub import levels_text, read_headers, read_lines, repeated
from busnode.node.cli_times import duration_option, time_option
from busnode.node.connecting import Target, payload_of, reaching_a_node, run
from busnode.node.presentation import counted
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import DELAY_MS_MAX, PRIORITY_MAX, WINDOW_MS_MAX, check_queue

if TYPE_CHECKING:
    from busnode.client import TaskReceipt

IDS_TOLD_MAX: Final = 1000
"""Ids that the JSON has, of however many tasks."""


@dataclass
class Outcome:
    """What became of the tasks."""

    queue: str
    enqueued: int = 0
    """Acked: they are safe."""
    levels: Counter[str] = field(default_factory=Counter[str])
    ids: list[str] = field(default_factory=list[str])

    def note(self, receipts: "list[TaskReceipt]") -> None:
        self.enqueued += len(receipts)
        self.levels.update(receipt.level for receipt in receipts)
        room = IDS_TOLD_MAX - len(self.ids)
        self.ids += [receipt.id for receipt in receipts[:room]]

    def fields(self) -> dict[str, object]:
        return {
            "queue": self.queue,
            "enqueued": self.enqueued,
            "levels": self.levels,
            "ids": self.ids,
        }

    def __str__(self) -> str:
        text = f"enqueued {counted(self.enqueued, 'task')} in {self.queue}"
        if self.enqueued == 1:
            text += f" as {self.ids[0]}"
        return f"{text}, acked: {levels_text(self.levels)}" if self.enqueued else text


def queue_argument(_: click.Context, __: click.Parameter, text: str) -> str:
    return check_queue(text)


def _retry(_: click.Context, __: click.Parameter, text: str | None) -> Schedule | None:
    return None if text is None else Schedule.parse(text)


@click.command()
@click.argument("queue", callback=queue_argument)
@click.argument("payload", required=False)
@click.option("--lines", is_flag=True, help="One task for each line of stdin, as they come.")
@click.option(
    "--delay", metavar="TIME", callback=duration_option(0.0, DELAY_MS_MAX / 1000),
    help="Not before so long after now: 30s.",
)  # fmt: skip
@click.option(
    "--due", metavar="TIME", callback=time_option,
    help="Not before this time, in UTC: 2026-01-31T08:00.",
)  # fmt: skip
@click.option(
    "--priority", metavar="N", type=click.IntRange(-PRIORITY_MAX, PRIORITY_MAX), default=0,
    help=f"From -{PRIORITY_MAX} to {PRIORITY_MAX}: of the tasks that are due higher ones go first.",
)  # fmt: skip
@click.option(
    "--key", metavar="K", help="Drop it if the node took a task with the same key in the window."
)
@click.option(
    "--window", metavar="TIME", callback=duration_option(0.001, WINDOW_MS_MAX / 1000),
    help="How long a key is remembered; 5m unless given.",
)  # fmt: skip
@click.option(
    "--retry", metavar="SCHEDULE", callback=_retry,
    help="Seconds before attempt 1, 2, 3 …: 0,600,900,1200,1500; or none, for one attempt; or "
    "exponential:first=1,factor=2,cap=3600,attempts=10,jitter=0.2. The node's own unless given.",
)  # fmt: skip
@click.option(
    "--header", "headers", metavar="K=V", multiple=True, callback=read_headers,
    help="May be repeated.",
)  # fmt: skip
@click.option("--count", metavar="N", type=click.IntRange(1), help="Enqueue it N times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def enqueue(
    *,
    queue: str,
    payload: str | None,
    lines: bool,
    delay: float | None,
    due: datetime | None,
    priority: int,
    key: str | None,
    window: float | None,
    retry: Schedule | None,
    headers: dict[str, str],
    count: int | None,
    as_json: bool,
    to: Target,
) -> None:
    """Add a task with PAYLOAD to QUEUE; without PAYLOAD, what is piped in.

    \b
      busnode task enqueue emails 'to: ada'
      busnode task enqueue emails 'to: ada' --due 2026-01-31T08:00 --key ada-1
      busnode task enqueue emails --lines --retry none < addresses

    It is safe when this ends: acked as a persistent message is. Whoever polls the queue, at any
    node, gets it.
    """
    if lines and (payload is not None or count is not None):
        raise click.UsageError("--lines takes tasks from stdin: no PAYLOAD, no --count")
    if delay is not None and due is not None:
        raise click.UsageError("take --delay or --due: both say when it may begin")
    if key is not None and (lines or count is not None):
        raise click.UsageError(
            "--key is for one task: with --lines or --count all but the first would be dropped"
        )
    if window is not None and key is None:
        raise click.UsageError("--window is how long a --key is remembered, and there is none")
    source = read_lines() if lines else repeated(payload_of(payload), count or 1)
    options: dict[str, Any] = {
        "headers": headers or None, "delay": delay, "due": due, "priority": priority,
        "window": window, "retry": retry, "keys": None if key is None else [key],
    }  # fmt: skip
    run(partial(_enqueue, to, Outcome(queue), source, options, as_json))


async def _enqueue(
    to: Target,
    outcome: Outcome,
    source: AsyncIterator[list[bytes]],
    options: dict[str, Any],
    as_json: bool,
) -> int:
    from busnode.client import connect

    failed = True
    try:
        async with connect(
            to.url, name="busnode task", deadline_s=to.timeout_s, **to.options
        ) as bus:
            queue = bus.queue(outcome.queue)
            async for payloads in source:
                outcome.note(await queue.enqueue_many(payloads, **options))
        failed = False
    finally:
        # However it ends, Ctrl-C and refusals included: people want to know how far it came.
        if outcome.enqueued or not failed:
            click.echo(json.dumps(outcome.fields()) if as_json else str(outcome))
    return 0
