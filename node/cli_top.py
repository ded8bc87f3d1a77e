"""`busnode top`: a node at work, once a second."""
# ruff: noqa: PLC0415 - the help does without the client, its event loop and rich

import json
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from busnode.node.cli_asking import STATUS, Status, ask
from busnode.node.cli_status import show_clients
from busnode.node.cluster_view import ClusterView
from busnode.node.connecting import Target, reaching_a_node, run, stdin_chunks
from busnode.node.presentation import (
    Column,
    Lines,
    Part,
    counted,
    duration,
    printable,
    show_table,
    size,
    terminal,
)
from busnode.node.queue_table import show_node_queues

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_S: Final = 1.0
LOGS_SHOWN: Final = 8
QUEUES_SHOWN: Final = 8


class Rates(NamedTuple):
    """What happened between two looks, per second."""

    messages_in: float
    persistent_in: float
    commits: float
    bytes_in: float
    bytes_out: float
    tasks_completed: float
    attempts_failed: float
    """Of tasks, or leases that ran out."""
    logs: dict[tuple[str, str], float]
    """Messages, by brokerId and topic, of the logs that grew."""


def rates(before: Status, now: Status) -> Rates:
    """From counters that only grow; a client that came or went between counts for nothing."""
    seconds: float = max(now["uptime_s"] - before["uptime_s"], 1e-3)
    if before["broker_id"] != now["broker_id"]:
        before = now  # another incarnation counts from zero

    def grown(name: str) -> float:
        more: int = now["counters"][name] - before["counters"][name]
        return more / seconds

    clients = {client["client_no"]: client for client in before["clients"]}
    moved = {"received_bytes": 0, "sent_bytes": 0}
    for client in now["clients"]:
        earlier = clients.get(client["client_no"], client)
        for name in moved:
            moved[name] += client[name] - earlier[name]
    ends = {(log["broker_id"], log["topic"]): log["last_no"] for log in before["logs"]}
    logs: dict[tuple[str, str], float] = {}
    for log in now["logs"]:
        key = (log["broker_id"], log["topic"])
        if log["last_no"] > ends.get(key, log["last_no"]):
            logs[key] = (log["last_no"] - ends[key]) / seconds
    return Rates(
        messages_in=grown("messages_live") + grown("messages_persistent"),
        persistent_in=grown("messages_persistent"),
        commits=grown("commits"),
        bytes_in=moved["received_bytes"] / seconds,
        bytes_out=moved["sent_bytes"] / seconds,
        tasks_completed=(_of_tasks(now, "completed") - _of_tasks(before, "completed")) / seconds,
        attempts_failed=(_of_tasks(now, "failed") - _of_tasks(before, "failed")) / seconds,
        logs=logs,
    )


def _of_tasks(found: Status, what: str) -> int:
    """Of all queues."""
    tasks = found["tasks"]
    others = tasks["other_queues"] or {what: 0}
    total: int = others[what] + sum(row[what] for row in tasks["queues"])
    return total


@click.command()
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after N seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a second.")
@reaching_a_node
def top(*, count: int | None, as_json: bool, to: Target) -> None:
    """Watch a node at work: messages and bytes per second, the busiest topics, its queues and
    its clients.

    q or Ctrl-C ends it.
    """
    on = terminal()
    if on is None and not as_json:
        raise click.UsageError("top draws on a terminal; in a pipe take --json or `busnode status`")
    run(partial(_print, to, count) if on is None or as_json else partial(_watch, to, count, on))


async def _looks(to: Target, count: int | None) -> AsyncIterator[tuple[Status, Rates]]:
    import trio

    from busnode.client import connect
    from busnode.wire.errors import Unavailable

    async with connect(to.url, name="busnode top", deadline_s=to.timeout_s, **to.options) as bus:
        before = await ask(bus, STATUS, b"", to.timeout_s)
        shown = 0
        while shown != count:
            await trio.sleep(REFRESH_S)
            try:
                now = await ask(bus, STATUS, b"", to.timeout_s)
            except Unavailable:
                # The node was lost while it was asked: the next question waits for another.
                now = await ask(bus, STATUS, b"", to.timeout_s)
            yield now, rates(before, now)
            before = now
            shown += 1


async def _print(to: Target, count: int | None) -> int:
    async for found, rate in _looks(to, count):
        told: dict[str, Any] = {
            "name": found["name"],
            "uptime_s": found["uptime_s"],
            "clients": found["clients_count"],
            "nodes": ClusterView(found).nodes_count,
            "links_missing": found["cluster"]["missing_links_count"],
            "workers": found["tasks"]["workers"],
            "queues": found["tasks"]["queues"],
            **rate._asdict(),
            "logs": [
                {"broker_id": broker_id, "topic": topic, "messages_in": per_s}
                for (broker_id, topic), per_s in rate.logs.items()
            ],
        }
        click.echo(json.dumps(told, ensure_ascii=False).encode())
        sys.stdout.flush()
    return 0


async def _watch(to: Target, count: int | None, on: "Console") -> int:
    import trio
    from rich.live import Live

    async def end_on_q() -> None:
        async for keys in stdin_chunks():
            if b"q" in keys.lower():
                nursery.cancel_scope.cancel()

    with _single_keys(), Live(console=on, screen=True, auto_refresh=False) as live:
        async with trio.open_nursery() as nursery:
            if sys.stdin.isatty():
                nursery.start_soon(end_on_q)
            async for found, rate in _looks(to, count):
                live.update(_drawn(found, rate, on), refresh=True)
            nursery.cancel_scope.cancel()
    return 0


@contextmanager
def _single_keys() -> Generator[None, None, None]:
    """Let a key be read when it is pressed, and not be shown; as before at the end."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _drawn(found: Status, rate: Rates, on: "Console") -> Any:
    """One picture, as high as the terminal."""
    from rich.console import Console
    from rich.text import Text

    paper = Console(
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        width=on.width,
        highlight=False,
        markup=False,
        emoji=False,
    )
    name = f"{printable(found['name'])} of cluster {printable(found['cluster_id'])}"
    view = ClusterView(found)
    state = "ready" if found["ready"] else printable(str(found["unready_reason"]))
    Lines(paper).write(
        [
            [
                (f"node {name}", "bold"),
                (f"  {state}", "green" if found["ready"] else "red"),
                (f"  up {duration(found['uptime_s'])}  {size(found['rss_bytes'])}", "dim"),
            ],
            [(view.summary(), "" if view.is_whole else "red")],
            [
                ("in   ", "dim"),
                (f"{rate.messages_in:>11,.0f} msgs/s", "bold"),
                (f"  {size(rate.bytes_in):>9}/s", ""),
                (f"  {rate.persistent_in:,.0f} persistent, {rate.commits:,.0f} commits/s", "dim"),
            ],
            [("out  ", "dim"), (f"{'':>18}  {size(rate.bytes_out):>9}/s", "bold")],
            [],
        ]
    )
    busiest = sorted(rate.logs.items(), key=lambda item: -item[1])[:LOGS_SHOWN]
    if busiest:
        columns = [Column("topic", style="cyan"), Column("msgs/s", justify="right")]
        show_table(
            columns, [(printable(key[1]), f"{per_s:,.0f}") for key, per_s in busiest], on=paper
        )
        Lines(paper).write([[]])
    if found["tasks"]["queues_count"]:
        done, failed = f"{rate.tasks_completed:,.0f}", f"{rate.attempts_failed:,.0f}"
        workers = counted(found["tasks"]["workers"], "worker")
        told: list[Part] = [
            ("tasks ", "dim"), (f"{done:>10} done/s", "bold"), (f"  {failed} failed/s", ""),
            (f"  {workers} here", "dim"),
        ]  # fmt: skip
        Lines(paper).write([told])
        show_node_queues(found["tasks"], found["utc_us"], QUEUES_SHOWN, paper)
        Lines(paper).write([[]])
    show_clients(found, paper)
    file = paper.file
    assert isinstance(file, StringIO)
    lines = file.getvalue().splitlines()
    if len(lines) > on.height:
        lines = [*lines[: on.height - 1], "…"]
    return Text.from_ansi("\n".join(lines))
