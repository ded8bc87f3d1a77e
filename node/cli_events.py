"""`busnode events`: what has happened in the cluster, and what happens."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from busnode.node.cli_asking import EVENTS, Status, ask_around, ask_pages
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.event import Event, read_event
from busnode.node.event_kinds import KINDS, LINK_MADE, SEVERITIES
from busnode.node.presentation import Lines, Part, moment, printable

if TYPE_CHECKING:
    from busnode.client import Bus

NAME: Final = "busnode events"

SHOWN: Final = 100
SHOWN_BEFORE_FOLLOWING: Final = 10

SETTLE_S: Final = 1.0
"""What happens to a node that comes happens soon: it is asked after so long."""

STYLES: Final = {"info": "green", "warning": "yellow", "error": "red"}


class Wanted(NamedTuple):
    """Which events are shown."""

    node: str | None
    kinds: tuple[str, ...]
    severity: str

    def __call__(self, event: Event) -> bool:
        enough = SEVERITIES[SEVERITIES.index(self.severity) :]
        named = not self.kinds or any(_is_of(event.kind, kind) for kind in self.kinds)
        return named and event.severity in enough and self.node in (None, event.node)


def _is_of(kind: str, wanted: str) -> bool:
    return kind == wanted or kind.startswith(f"{wanted}.")


class Shown:
    """Which events were shown: each node numbers its own, so what is missing can be told. Pure."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def new_of(self, events: Iterable[Event]) -> list[Event]:
        """Those that were not shown, by time; from now on they were."""
        new = [event for event in events if event.number > self._last.get(event.broker_id, 0)]
        for event in new:
            last = self._last.get(event.broker_id, 0)
            self._last[event.broker_id] = max(last, event.number)
        return sorted(new, key=lambda event: (event.utc_us, event.broker_id, event.number))

    def lacks_before(self, event: Event) -> bool:
        """Whether there were others between the last one of the same node and this."""
        return event.number > self._last.get(event.broker_id, 0) + 1


def _kinds(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    known = {*KINDS, *(name.partition(".")[0] for name in KINDS)}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}; expected one of {', '.join(sorted(known))}")
    return names


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--node", metavar="NAME", help="Those of one node only.")
@click.option(
    "--kind", "kinds", metavar="KIND", multiple=True, callback=_kinds,
    help="Those of a kind, such as mirror.let-go, or of a group, such as mirror; may be repeated.",
)  # fmt: skip
@click.option(
    "--severity", type=click.Choice(SEVERITIES), default="info", show_default=True,
    help="Those that are as bad as this, or worse.",
)  # fmt: skip
@click.option(
    "--count", metavar="N", type=click.IntRange(0),
    help=f"The last N of those that have happened: {SHOWN}, or {SHOWN_BEFORE_FOLLOWING} with "
    "--follow.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@reaching_a_node
def events(
    *,
    follow: bool,
    node: str | None,
    kinds: tuple[str, ...],
    severity: str,
    count: int | None,
    as_json: bool,
    to: Target,
) -> None:
    """Print what has happened in the cluster: links, mirrors, repairs, gaps, disks.

    Each node keeps its last thousand; those of all nodes are shown by time. What happens over and
    over is told once, and then how often.
    """
    wanted = Wanted(node, kinds, severity)
    if count is None:
        count = SHOWN_BEFORE_FOLLOWING if follow else SHOWN
    run(partial(_follow if follow else _recent, to, wanted, count, as_json))


async def _recent(to: Target, wanted: Wanted, count: int, as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        events = await _kept(bus, to.timeout_s)
    _show(_last([event for event in events if wanted(event)], count), as_json)
    return 0


async def _follow(to: Target, wanted: Wanted, count: int, as_json: bool) -> int:
    import trio

    from busnode.client import connect
    from busnode.wire.errors import Unavailable

    shown = Shown()
    came = trio.Event()

    async def kept() -> list[Event]:
        try:
            return await _kept(bus, to.timeout_s)
        except Unavailable:
            return []  # the home was lost; there will be another one, and other events

    def show(events: Iterable[Event]) -> None:
        _show([event for event in shown.new_of(events) if wanted(event)], as_json)

    async def ask_when_something_was_missed() -> None:
        """A node that comes has nobody to hear its first events, and may have no others; and while
        there is no home, nothing is heard of anybody."""
        nonlocal came
        connections = bus.statistics().connections
        while True:
            with trio.move_on_after(SETTLE_S):
                await came.wait()
            if came.is_set() or bus.statistics().connections != connections:
                await trio.sleep(SETTLE_S)
                came, connections = trio.Event(), bus.statistics().connections
                show(await kept())

    async with (
        connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus,
        bus.subscribe(f"{EVENTS}/{wanted.node or '+'}") as messages,
    ):
        past = [event for event in shown.new_of(await kept()) if wanted(event)]
        _show(_last(past, count), as_json)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_when_something_was_missed)
            async for message in messages:
                event = read_event(json.loads(message.payload))
                if event.kind == LINK_MADE.name:
                    came.set()
                # Some may be lost on their way, with a home for one: the nodes have kept them.
                show([*(await kept() if shown.lacks_before(event) else []), event])
    return 0


async def _kept(bus: "Bus", timeout_s: float) -> list[Event]:
    """What all nodes have kept."""

    async def question(bus: "Bus", _: Status) -> list[Any]:
        return await ask_pages(bus, EVENTS, "events", "after", {}, timeout_s)

    told = await ask_around(bus, timeout_s, NAME, question)
    for node, reason in told.silent.items():
        click.echo(f"busnode: nothing from {printable(node)}: {printable(reason)}", err=True)
    found: dict[tuple[str, int], Event] = {}
    for rows in told.answers.values():
        found |= {event.identity: event for event in map(read_event, rows)}
    return sorted(found.values(), key=lambda event: (event.utc_us, event.broker_id, event.number))


def _last(events: Sequence[Event], count: int) -> Sequence[Event]:
    return events[len(events) - min(count, len(events)) :]


def _show(events: Sequence[Event], as_json: bool) -> None:
    if as_json:
        for event in events:
            click.echo(json.dumps(event.told(), ensure_ascii=False).encode())
    else:
        Lines().write([_line(event) for event in events])
    sys.stdout.flush()


def _line(event: Event) -> list[Part]:
    times = f"  ({event.count:,} times)" if event.count > 1 else ""
    return [
        (f"{moment(event.utc_us, 'milliseconds')}  ", "dim"),
        (f"{printable(event.node):<8} ", "bold"),
        (f"{event.severity:<7}  ", STYLES.get(event.severity, "")),
        (f"{event.kind:<18} ", "dim"),
        (printable(event.text) + times, ""),
    ]
