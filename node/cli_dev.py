"""`busnode dev`: a cluster on this machine, for trying things out and breaking them."""
# ruff: noqa: PLC0415 - the help does without trio, the client and rich

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli import WRONG_USAGE, WrongUsage
from busnode.node.connecting import SCHEME
from busnode.node.presentation import Lines, Part, moment
from busnode.node.setting_kinds import Duration, Text

if TYPE_CHECKING:
    from busnode.node.dev_events import Event
    from busnode.node.dev_node import DevNode

NODES_MAX: Final = 20
"""A full mesh of these has 380 links, and each is a process of 40 MB."""

PORT_STEP: Final = 10
"""From one node's ports to the next one's, as in 4250, 4260 …"""

KILL_EVERY: Final = Duration(1.0)
CLUSTER_ID: Final = Text("ID")


def _kill_every(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else KILL_EVERY.read(text)
    except ValueError as error:
        raise click.BadParameter(f"{text[:100]!r} {error}" if text else str(error)) from None


def _cluster_id(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    try:
        return None if text is None else CLUSTER_ID.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "-n",
    "--nodes",
    "count",
    metavar="N",
    type=click.IntRange(1, NODES_MAX),
    default=3,
    show_default=True,
    help="How many nodes.",
)
@click.option(
    "--kill-every",
    "kill_every_s",
    metavar="TIME",
    callback=_kill_every,
    help="Kill a random node that often, as kill -9 does, and start it again: 10s.",
)
@click.option(
    "--cluster-id",
    metavar="ID",
    callback=_cluster_id,
    help="The cluster's id; a random one unless given.",
)
@click.option(
    "--data", metavar="DIR", help="Keep the data there; a scratch folder is removed at the end."
)
@click.option(
    "--port",
    "base",
    metavar="BASE",
    type=click.IntRange(1, 65535),
    help="Clients at BASE, BASE+10 …, nodes and HTTP behind each; free ports unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each event.")
def dev(
    count: int,
    kill_every_s: float | None,
    cluster_id: str | None,
    data: str | None,
    base: int | None,
    as_json: bool,
) -> None:
    """Run a cluster of real nodes on this machine until Ctrl-C, and tell what happens to it.

    A node that dies, or is killed by --kill-every, is started again at the same place with its
    data. No process stays behind, however this one ends.
    """
    last = None if base is None else base + PORT_STEP * (count - 1) + 2
    if last is not None and last > 65535:
        raise click.UsageError(f"--port: {count} nodes would need ports up to {last}, of 65535")
    import trio

    from busnode.node.dev_node import NodeDied
    from busnode.world.real_process import absolute
    from busnode.world.real_scratch import scratch_directory
    from busnode.world.real_world import real_world

    world = real_world()
    cluster_id = cluster_id or f"dev-{world.entropy.u64():016x}"[:12]
    with ExitStack() as stack:
        if data is None:
            directory = stack.enter_context(scratch_directory("busnode-dev-"))
        else:
            directory = absolute(data)
            world.files.make_directory(directory)
        nodes = _nodes(count, cluster_id, directory, base)
        teller = _Teller(cluster_id, directory, nodes, as_json, keeps=data is not None)
        try:
            trio.run(_run, nodes, teller, kill_every_s)
        except* NodeDied as deaths:
            death = deaths.exceptions[0]
            assert isinstance(death, NodeDied)
            if death.exit_code == WRONG_USAGE:
                raise WrongUsage(death.text) from None
            raise death from None


def _nodes(count: int, cluster_id: str, directory: str, base: int | None) -> "list[DevNode]":
    from busnode.node.dev_node import DevNode, Ports

    firsts = [None if base is None else base + PORT_STEP * place for place in range(count)]
    ports = [Ports() if first is None else Ports(first, first + 1, first + 2) for first in firsts]
    return [
        DevNode(f"n{number}", cluster_id, directory, each)
        for number, each in enumerate(ports, start=1)
    ]


async def _run(nodes: "list[DevNode]", teller: "_Teller", kill_every_s: float | None) -> None:
    import signal

    import trio

    from busnode.node.dev_cluster import DevCluster
    from busnode.node.dev_events import Ended
    from busnode.world.real_world import real_world

    cluster = DevCluster(real_world(), nodes, teller.tell)
    working = trio.CancelScope()

    async def leave_when_told() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            await anext(signals)
            teller.leaves()
            working.cancel()
            await anext(signals)
            cluster.hurry()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave_when_told)
        try:
            with working:
                await cluster.run(kill_every_s)
        finally:
            await cluster.end()
        teller.tell(Ended(len(nodes)))
        nursery.cancel_scope.cancel()


class _Teller:
    """Prints what happens: for people a line with the time of day, and more once all is meshed."""

    def __init__(
        self, cluster_id: str, directory: str, nodes: "list[DevNode]", as_json: bool, *, keeps: bool
    ) -> None:
        from busnode.world.real_clock import RealClock

        self._cluster_id = cluster_id
        self._directory = directory
        self._nodes = nodes
        self._as_json = as_json
        self._keeps = keeps
        self._clock = RealClock()
        self._lines = Lines()
        self._introduced = False

    def tell(self, event: "Event") -> None:
        from busnode.node.dev_events import Meshed, Started

        now_us = self._clock.utc_us()
        if self._as_json:
            _print({"event": event.kind, "utc_us": now_us, **event.told()})
        elif not isinstance(event, Started):
            when = moment(now_us)[len("YYYY-MM-DD ") :]
            self._lines.write([[(f"{when}  ", "dim"), (event.text(), STYLES[event.kind])]])
        if isinstance(event, Meshed) and not self._introduced:
            self._introduced = True
            self._introduce(now_us)
        sys.stdout.flush()

    def leaves(self) -> None:
        if sys.stdout.isatty():
            click.echo()  # the next line shall not stand behind a ^C

    def _introduce(self, now_us: int) -> None:
        """Where everything is."""
        places = [(node, node.place) for node in self._nodes if node.place is not None]
        url = SCHEME + ",".join(place.client for _, place in places)
        if self._as_json:
            rows = [
                {
                    "name": node.name, "pid": node.pid, "broker_id": place.broker_id,
                    "client": place.client, "peer": place.peer, "http": place.http,
                }
                for node, place in places
            ]  # fmt: skip
            told = {"cluster_id": self._cluster_id, "url": url, "data": self._directory}
            _print({"event": "ready", "utc_us": now_us, **told, "nodes": rows})
            return
        lines: list[list[Part]] = [[], [(f"cluster {self._cluster_id}", "bold")]]
        for node, place in places:
            line = [(f"  {node.name:<4}", "bold"), (f"{SCHEME}{place.client}", "cyan")]
            lines.append([*line, (f"  http://{place.http}", "")])
        kept = "data and logs" if self._keeps else "data and logs, removed at the end:"
        lines += [[(f"  {kept} ", "dim"), (self._directory, "")], []]
        self._lines.write(lines)
        # Not through rich, which would break it where the terminal ends: it is to be copied.
        click.echo(f"export BUSNODE_URL={url}\n")


STYLES: Final = {
    "killed": "red",
    "died": "red",
    "torn": "yellow",
    "restarted": "",
    "meshed": "green",
    "ended": "bold",
}


def _print(told: dict[str, Any]) -> None:
    click.echo(json.dumps(told, ensure_ascii=False).encode())
