"""`busnode status` and `busnode topics`: what a running node tells about itself."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from busnode.node.cli_asking import (
    LOGS,
    STATUS,
    TOPICS,
    Status,
    ask,
    ask_everyone,
    ask_pages,
)
from busnode.node.cli_holders import show_all_logs, show_logs, show_silent
from busnode.node.cli_watch import watch
from busnode.node.cluster_view import ClusterView
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.log_holders import merge_logs
from busnode.node.presentation import (
    Column,
    Lines,
    counted,
    duration,
    printable,
    show_facts,
    show_table,
    size,
)
from busnode.node.queue_table import show_node_queues
from busnode.wire.ids import Pattern
from busnode.wire.topics import check_pattern

if TYPE_CHECKING:
    from rich.console import Console

    from busnode.client import Bus


LOGS_SHOWN: Final = 20
"""Logs of which a status tells; --logs has all."""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


# status ---------------------------------------------------------------------------------------


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> Pattern | None:
    return None if text is None else check_pattern(text)


@click.command()
@click.option(
    "--logs", "logs", metavar="[PATTERN]", is_flag=False, flag_value="/*", callback=_pattern,
    help="All logs, or those that match: who holds each, how far, and how safe it is.",
)  # fmt: skip
@click.option(
    "--watch", "watched", is_flag=True,
    help="Mirrors, catch-up and repairs of all nodes, each second, until Ctrl-C; in a pipe a line "
    "for each change.",
)  # fmt: skip
@_as_json
@reaching_a_node
def status(*, logs: Pattern | None, watched: bool, as_json: bool, to: Target) -> None:
    """Show how a node is doing: the cluster, its clients and why each is idle, and some logs."""
    if watched and logs is not None:
        raise click.UsageError("take --logs or --watch: one looks once, the other on and on")
    if watched:
        run(partial(watch, to, as_json))
    elif logs is not None:
        run(partial(show_all_logs, to, logs, as_json))
    else:
        run(partial(_status_json if as_json else _status, to))


async def _status_json(to: Target) -> int:
    from busnode.client import connect

    async with connect(to.url, name="busnode status", deadline_s=to.timeout_s, **to.options) as bus:
        found = await ask(bus, STATUS, b"", to.timeout_s)
    click.echo(json.dumps(found, ensure_ascii=False, indent=2).encode())
    return 0


async def _status(to: Target) -> int:
    """What the node tells of itself; of some of its logs all nodes are asked who holds them."""
    found: Status = {}
    wanted = 1
    named = b""

    async def question(bus: "Bus", _: Status) -> list[Status]:
        nonlocal found, wanted, named
        if not found:
            found = await ask(bus, STATUS, b"", to.timeout_s)
            chosen = [[log["broker_id"], log["topic"]] for log in worth_showing(found["logs"])]
            named = json.dumps({"logs": chosen}).encode() if chosen else b""
        if not named:
            return []
        page = await ask(bus, LOGS, named, to.timeout_s)
        wanted = max(wanted, page["copies_wanted"])
        rows: list[Status] = page["logs"]
        return rows

    told = await ask_everyone(to, "busnode status", question)
    view = ClusterView(found)
    show_node(found, view)
    click.echo()
    if view.here or view.troubles():
        view.show(itself=False)
        click.echo()
    show_clients(found)
    click.echo()
    if found["tasks"]["queues_count"]:
        show_node_queues(found["tasks"], found["utc_us"])
        click.echo()
    logs = merge_logs(told.answers)
    logs.sort(key=lambda log: -log.size_bytes)
    show_logs(logs, found["logs_count"], wanted, len(told.answers) + len(told.silent))
    show_silent(told.silent)
    return 0


def worth_showing(logs: Sequence[Status]) -> list[Status]:
    """Those with a trouble first, then the largest."""
    troubled = [log for log in logs if log["poisoned"] or log["holes"]]
    return [*troubled, *(log for log in logs if log not in troubled)][:LOGS_SHOWN]


def show_node(found: Status, view: ClusterView) -> None:
    counters = found["counters"]
    messages = counters["messages_live"] + counters["messages_persistent"]
    kept = f"{messages:,} taken, {counters['messages_persistent']:,} of them persistent"
    facts = {
        "state": "ready" if found["ready"] else printable(str(found["unready_reason"])),
        "cluster": view.summary(),
        "mirror": _mirrors(found["cluster"]),
        "up for": duration(found["uptime_s"]),
        **{what: str(address) for what, address in found["addresses"].items()},
        "brokerId": str(found["broker_id"]),
        "version": str(found["version"]),
        "memory": size(found["rss_bytes"]),
        "messages": f"{kept}; {counted(counters['commits'], 'commit')}",
        "requests": f"{counted(found['providers'], 'provider')}, "
        f"{found['requests_under_way']:,} under way",
        "tasks": f"{counted(found['tasks']['queues_count'], 'queue')}, "
        f"{counted(found['tasks']['workers'], 'worker')} here",
    }
    trouble = view.discovery_trouble()
    if trouble:
        facts["discovery"] = f"{trouble}; name other nodes with --seed HOST:PORT"
    if counters["logs_poisoned"]:
        facts["poisoned"] = f"{counted(counters['logs_poisoned'], 'log')}: a write or sync failed"
    if found["flaws_count"]:
        flaws = [printable(flaw) for flaw in found["flaws"][:3]]
        facts["damage"] = f"{counted(found['flaws_count'], 'flaw')}: {'; '.join(flaws)}"
    name = f"node {printable(found['name'])} of cluster {printable(found['cluster_id'])}"
    show_facts(name, facts)


def _mirrors(cluster: Status) -> str:
    """Who holds copies of this node's logs, and what an ack is worth now."""
    level = f"acks are {cluster['level']}"
    if not cluster["mirrors"]:
        return f"none; {level}"
    told = [
        f"{printable(mirror['name'])} {mirror['state']}"
        + (f", {mirror['behind']:,} messages behind" if mirror["behind"] else "")
        for mirror in cluster["mirrors"]
    ]
    return f"{'; '.join(told)}; {level}"


def show_clients(found: Status, on: "Console | None" = None) -> None:
    """A row for each subscription, for it is these that are idle for a reason."""
    clients: list[Status] = found["clients"]
    columns = [
        Column("client", style="bold"),
        Column("address", style="dim"),
        Column("subscription", style="cyan"),
        Column("behind", justify="right", beside="behind {}"),
        Column("state"),
    ]
    rows: list[tuple[str, ...]] = []
    for client in clients:
        who = (f"{client['client_no']} {printable(client['name'])}", str(client["address"]))
        rows.extend((*who, *_subscription(each)) for each in client["subscriptions"])
        rows.extend((*who, *_poll(each)) for each in client["queues"])
        left_out = client["subscriptions_count"] - len(client["subscriptions"])
        if not client["subscriptions_count"] and not client["queues"]:
            rows.append((*who, "–", "–", "no subscription"))
        elif left_out:
            rows.append((*who, f"and {left_out:,} more", "–", "–"))
    if rows:
        show_table(columns, rows, names=3, on=on)
    _show_count(found["clients_count"], len(clients), "client", on)


def _subscription(found: Status) -> tuple[str, ...]:
    durable = f" as {printable(found['durable'])}" if found["durable"] else ""
    dropped = f", {found['dropped']:,} dropped" if found["dropped"] else ""
    return (
        f"{printable(found['pattern'])}{durable}",
        "?" if found["behind"] is None else f"{found['behind']:,}",
        f"{found['idle']}{dropped}",
    )


def _poll(found: Status) -> tuple[str, ...]:
    state = f"can take {found['wants']:,} more" if found["wants"] else "has all it can take"
    return f"queue {printable(found['queue'])}", "–", state


def _show_count(count: int, shown: int, noun: str, on: "Console | None") -> None:
    more = f"; {count - shown:,} are not shown" if count > shown else ""
    Lines(on).write([[(f"{counted(count, noun)}{more}", "bold")]])


# topics ---------------------------------------------------------------------------------------


@click.command()
@click.argument("pattern", default="/*", callback=_pattern)
@_as_json
@reaching_a_node
def topics(*, pattern: Pattern, as_json: bool, to: Target) -> None:
    """List the topics that a node has, or those that match PATTERN."""
    run(partial(_topics, to, pattern, as_json))


async def _topics(to: Target, pattern: Pattern, as_json: bool) -> int:
    from busnode.client import connect

    asked = {"pattern": pattern}
    async with connect(to.url, name="busnode topics", deadline_s=to.timeout_s, **to.options) as bus:
        rows = await ask_pages(bus, TOPICS, "topics", "offset", asked, to.timeout_s)
    rows.sort(key=lambda row: str(row["topic"]))
    if as_json:
        click.echo(json.dumps({"topics": rows}, ensure_ascii=False, indent=2).encode())
        return 0
    columns = [
        Column("topic", style="cyan"),
        Column("messages", justify="right", beside="messages {}"),
        Column("size", justify="right"),
        Column("logs", justify="right", beside="logs {}"),
    ]
    cells = [
        (
            printable(row["topic"]),
            f"{row['messages']:,}",
            size(row["bytes"]),
            f"{row['logs']:,}",
        )
        for row in rows
    ]
    if cells:
        show_table(columns, cells)
    Lines().write([[(counted(len(rows), "topic"), "bold")]])
    return 0
