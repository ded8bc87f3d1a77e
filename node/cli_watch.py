"""`busnode status --watch`: mirrors, catch-up and repairs of all nodes, once a second."""
# ruff: noqa: PLC0415 - the help does without the client, its event loop and rich

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_asking import BRIEFLY, OTHERS_S, STATUS, Status, ask, neighbours
from busnode.node.cluster_view import ClusterView
from busnode.node.connecting import Target
from busnode.node.flows import Changes, Flow, FlowKey, Speed, Speeds, flows
from busnode.node.presentation import duration, moment, printable, size, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

REFRESH_S: Final = 1.0
STALE_S: Final = 3.5
"""A node that has not answered for so long is not shown any more."""

Look = Callable[[], Awaitable[Sequence[Status]]]


async def watch(to: Target, as_json: bool) -> int:
    """Until Ctrl-C."""
    on = terminal()
    async with _all_nodes(to) as look:
        if as_json:
            await _print_json(look)
        elif on is None:
            await _print_changes(look)
        else:
            await _draw(look, on)
    return 0


@asynccontextmanager
async def _all_nodes(to: Target) -> AsyncGenerator[Look, None]:
    """Gives what waits for a second and tells the statuses of all nodes that answer, the one that
    was named first."""
    import trio

    from busnode.client import connect
    from busnode.client.everyone import Neighbour
    from busnode.wire.errors import BusnodeError, Unavailable

    heard: dict[str, tuple[float, Status]] = {}
    kept: set[Neighbour] = set()

    async def keep(neighbour: Neighbour) -> None:
        try:
            async with bus.reach(neighbour.url, OTHERS_S) as other:
                while True:
                    hear(await ask(other, STATUS, BRIEFLY, OTHERS_S))
                    await trio.sleep(REFRESH_S)
        except BusnodeError:
            pass  # it is gone; whoever is linked to it again names it again
        finally:
            kept.discard(neighbour)

    def hear(status: Status) -> None:
        heard[status["name"]] = trio.current_time(), status

    async with (
        connect(to.url, name="busnode status", deadline_s=to.timeout_s, **to.options) as bus,
        trio.open_nursery() as nursery,
    ):

        async def look() -> Sequence[Status]:
            await trio.sleep(REFRESH_S if heard else 0)
            try:
                home = await ask(bus, STATUS, BRIEFLY, to.timeout_s)
            except Unavailable:
                # The node was lost while it was asked: the next question waits for another.
                home = await ask(bus, STATUS, BRIEFLY, to.timeout_s)
            hear(home)
            for neighbour in neighbours(home):
                if neighbour not in kept:
                    kept.add(neighbour)
                    nursery.start_soon(keep, neighbour)
            fresh_from = trio.current_time() - STALE_S
            for name in [name for name, (at, _) in heard.items() if at < fresh_from]:
                del heard[name]
            others = [heard[name][1] for name in sorted(heard) if name != home["name"]]
            return [home, *others]

        yield look


# In a pipe ------------------------------------------------------------------------------------


async def _print_json(look: Look) -> None:
    while True:
        statuses = await look()
        told: dict[str, Any] = {
            "utc_us": statuses[0]["utc_us"],
            "nodes": {
                status["name"]: {"ready": status["ready"], "level": status["cluster"]["level"]}
                for status in statuses
            },
            "flows": [asdict(flow) for flow in flows(statuses)],
        }
        click.echo(json.dumps(told, ensure_ascii=False).encode())
        sys.stdout.flush()


async def _print_changes(look: Look) -> None:
    changes = Changes()
    levels: dict[str, str] = {}
    while True:
        statuses = await look()
        lines: list[str] = []
        for status in statuses:
            name, level = status["name"], status["cluster"]["level"]
            if levels.get(name) != level:
                levels[name] = level
                lines.append(f"{printable(name)}: acks are {level}")
        changed, gone = changes.look(flows(statuses))
        lines += map(_line, changed)
        lines += (f"{printable(f'{key.source} → {key.target}')} {key.kind} ended" for key in gone)
        when = moment(statuses[0]["utc_us"])
        sys.stdout.write("".join(f"{when}  {line}\n" for line in lines))
        sys.stdout.flush()


def _line(flow: Flow) -> str:
    text = f"{printable(flow.title)} {flow.kind} {flow.state}"
    if not flow.is_under_way:
        return text
    return f"{text}, {flow.share:.0%}: {_messages(flow)} messages, {_bytes(flow)}"


def _messages(flow: Flow) -> str:
    return f"{flow.done:,} of {flow.total:,}"


def _bytes(flow: Flow) -> str:
    return f"{size(flow.done_bytes)} of {size(flow.total_bytes)}"


# On a terminal --------------------------------------------------------------------------------


async def _draw(look: Look, on: "Console") -> None:
    import trio
    from rich.live import Live

    speeds = Speeds()
    # What was seen last stays on the terminal when it ends.
    with Live(console=on, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            statuses = await look()
            found = flows(statuses)
            live.update(
                picture(statuses, found, speeds.look(found, trio.current_time())), refresh=True
            )


def picture(
    statuses: Sequence[Status], found: Sequence[Flow], speeds: Mapping[FlowKey, Speed]
) -> Any:
    """All that a look has found, for rich."""
    from rich.console import Group
    from rich.text import Text

    home = statuses[0]
    view = ClusterView(home)
    title = f"cluster {printable(home['cluster_id'])}: "
    parts: list[Any] = [
        Text.assemble(
            (title, "bold"), (view.summary(), "" if view.is_whole else "red"),
            (f"  {moment(home['utc_us'])}", "dim"),
        )
    ]  # fmt: skip
    parts += [Text(), _mirrors(statuses, found)]
    under_way = [flow for flow in found if flow.is_under_way]
    if under_way:
        parts += [Text(), _under_way(under_way, speeds)]
    return Group(*parts)


def _mirrors(statuses: Sequence[Status], found: Sequence[Flow]) -> "Table":
    table = _table("node", "acks are", "mirror", "lag", "waiting")
    for status in statuses:
        name, level = status["name"], status["cluster"]["level"]
        mine: list[Flow | None] = [f for f in found if (f.source, f.kind) == (name, "mirror")]
        for flow in mine or [None]:
            colour = "green" if level == "mirrored" else "yellow"
            cells = ["–", "", ""]
            if flow is not None:
                lag = f"{flow.lag:,} messages, {size(flow.lag_bytes)}" if flow.lag else "none"
                waiting = duration(flow.waiting_s) if flow.waiting_s else ""
                cells = [f"{printable(flow.target)} {flow.state}", lag, waiting]
            table.add_row(_text(printable(name)), _text(level, colour), *map(_text, cells))
    return table


def _under_way(under_way: Sequence[Flow], speeds: Mapping[FlowKey, Speed]) -> "Table":
    from rich.progress_bar import ProgressBar

    table = _table("under way", "", "", "messages", "bytes", "speed", "left")
    for flow in under_way:
        speed = speeds.get(flow.key, Speed(0.0, None))
        name = f"{flow.title} {'catch-up' if flow.kind == 'mirror' else flow.kind}"
        bar = ProgressBar(total=1.0, completed=flow.share, width=24, pulse=not flow.total)
        table.add_row(
            _text(printable(name)), bar, f"{flow.share:.0%}", _messages(flow), _bytes(flow),
            f"{size(speed.bytes_per_s)}/s", "–" if speed.left_s is None else duration(speed.left_s),
        )  # fmt: skip
    return table


def _table(*titles: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, header_style="dim", no_wrap=True)
    return table


def _text(text: str, style: str = "") -> Any:
    """Text that is no markup, whoever has named it."""
    from rich.text import Text

    return Text(text, style)
