"""`busnode doctor`: looks for the usual troubles and says what to do."""
# ruff: noqa: PLC0415 - the help does without trio, the client and rich

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli import WrongUsage
from busnode.node.cli_asking import STATUS, Status, ask
from busnode.node.config import PEER_PORT
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import Column, Lines, counted, show_table
from busnode.node.setting_kinds import Seeds

if TYPE_CHECKING:
    from busnode.node.diagnosis import Finding
    from busnode.world.network import Address
    from busnode.world.world import World

LOOPBACK: Final = "127.0.0.1"
NOBODY: Final = "?"
"""The cluster that seeds are greeted for while nobody has named one: they answer all the same."""

STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def _seeds(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> "tuple[Address, ...]":
    try:
        return Seeds(PEER_PORT).read(texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--cluster-id", metavar="ID", help="The cluster that nodes should be of.")
@click.option("--interface", metavar="IF", help="The network interface that nodes listen on.")
@click.option("--listen", metavar="HOST", help="The address that nodes listen on.")
@click.option(
    "--seed",
    "seeds",
    metavar="HOST:PORT",
    multiple=True,
    callback=_seeds,
    help="Another node's address for nodes; may be repeated.",
)
@click.option("--data", metavar="DIR", help="A data directory, for the space on its disk.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def doctor(
    *,
    cluster_id: str | None,
    interface: str | None,
    listen: str | None,
    seeds: "tuple[Address, ...]",
    data: str | None,
    as_json: bool,
    to: Target,
) -> None:
    """Look for the usual troubles: ok, warning or failed, what was seen and what to do.

    Asks the node at --url, tries out multicast for a few seconds and hears who is announced, and
    greets each --seed as a node would. Exit code 1 if something failed.
    """
    if interface is not None:
        if listen is not None:
            raise click.UsageError("--interface and --listen: give one of them")
        listen = _address_of(interface)
    run(partial(_doctor, to, cluster_id, listen, seeds, data, as_json))


def _address_of(interface: str) -> str:
    from busnode.world.real_interfaces import addresses_of

    try:
        return addresses_of(interface)[0]
    except OSError as error:
        raise WrongUsage(f"--interface: {error.strerror}") from None


class _Report:
    """Tells each finding when it is there; as JSON all of them at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._findings: list[Finding] = []

    def tell(self, *findings: "Finding | None") -> None:
        for finding in findings:
            if finding is None:
                continue
            self._findings.append(finding)
            if not self._as_json:
                _show(finding)

    def end(self) -> int:
        """The exit code."""
        from busnode.node.diagnosis import Verdict

        verdicts = [finding.verdict for finding in self._findings]
        failed, warnings = verdicts.count(Verdict.FAILED), verdicts.count(Verdict.WARNING)
        if self._as_json:
            rows: list[dict[str, Any]] = [
                {
                    "check": each.check,
                    "verdict": each.verdict.value,
                    "seen": each.seen,
                    "advice": each.advice,
                }
                for each in self._findings
            ]
            told = {"ok": not failed, "failed": failed, "warnings": warnings, "checks": rows}
            click.echo(json.dumps(told, ensure_ascii=False, indent=2).encode())
        else:
            text = f"{failed} of {counted(len(verdicts), 'check')} failed"
            if not failed:
                text = f"nothing failed in {counted(len(verdicts), 'check')}"
            more = f", {counted(warnings, 'warning')}" if warnings else ""
            Lines().write([[(f"{text}{more}", "bold red" if failed else "bold")]])
        return 1 if failed else 0


def _show(finding: "Finding") -> None:
    """A line, and below what was seen what to do."""
    columns = [
        Column("", style=STYLES[finding.verdict]),
        Column("", style="bold"),
        Column("", wraps=True),
    ]
    rows = [(f"{finding.verdict:<7}", f"{finding.check:<10}", finding.seen)]
    if finding.advice:
        rows.append(("", "", f"→ {finding.advice}"))
    show_table(columns, rows, names=2)
    sys.stdout.flush()


async def _doctor(
    to: Target,
    wanted: str | None,
    listen: str | None,
    seeds: "Sequence[Address]",
    data: str | None,
    as_json: bool,
) -> int:
    from busnode.node import diagnosis
    from busnode.node.seed_greeting import greet_seed
    from busnode.world.real_process import absolute, disk_space, file_limits, interpreter
    from busnode.world.real_world import real_world

    world = real_world()
    report = _Report(as_json)
    found, error, ahead_s, round_trip_s = await _ask(to, world)
    report.tell(diagnosis.of_reach(to.url, found, error))
    if found is not None:
        report.tell(diagnosis.of_readiness(found), diagnosis.of_cluster_id(found, wanted))
        report.tell(diagnosis.of_mesh(found), diagnosis.of_discovery(found))
        report.tell(diagnosis.of_clock(ahead_s, round_trip_s))
    cluster_id = wanted or (None if found is None else str(found["cluster_id"]))
    answers = [await greet_seed(world, seed, cluster_id or NOBODY) for seed in seeds]
    if found is not None:
        report.tell(diagnosis.of_listening(found, listen, answers))
    await _listen(report, world, listen or _host_of(found), cluster_id, explicit=wanted is not None)
    report.tell(*(diagnosis.of_seed(answer, cluster_id) for answer in answers))
    report.tell(diagnosis.of_files(file_limits()), diagnosis.of_interpreter(interpreter()))
    if data is not None:
        directory = absolute(data)
        report.tell(diagnosis.of_disk(directory, disk_space(directory)))
    return report.end()


async def _ask(to: Target, world: "World") -> tuple[Status | None, str | None, float, float]:
    """The node's status or why there is none, by how much its clock is ahead, the round trip."""
    from busnode.client import connect
    from busnode.wire.errors import BusnodeError

    try:
        async with connect(
            to.url, name="busnode doctor", deadline_s=to.timeout_s, **to.options
        ) as bus:
            before_us, began = world.clock.utc_us(), world.clock.monotonic()
            found = await ask(bus, STATUS, b"", to.timeout_s)
            round_trip_s = world.clock.monotonic() - began
    except BusnodeError as error:
        return None, error.text, 0.0, 0.0
    ahead_s = (found["utc_us"] - before_us) / 1e6 - round_trip_s / 2
    return found, None, ahead_s, round_trip_s


def _host_of(found: Status | None) -> str:
    """Where the node listens, for multicast is sent from there."""
    if found is None or "peer" not in found["addresses"]:
        return LOOPBACK
    return str(found["addresses"]["peer"]).rpartition(":")[0].strip("[]")


async def _listen(
    report: _Report, world: "World", host: str, cluster_id: str | None, *, explicit: bool
) -> None:
    from busnode.node import diagnosis
    from busnode.node.surroundings import multicast_interfaces
    from busnode.world.real_multicast import try_multicast

    interfaces = multicast_interfaces(host)
    heard = await try_multicast(interfaces, world.entropy)
    report.tell(diagnosis.of_multicast(heard, interfaces))
    if heard.heard_own:
        hints = list(heard.announced.values())
        report.tell(diagnosis.of_announced(hints, cluster_id, explicit=explicit))
        report.tell(diagnosis.of_protocol(hints, cluster_id))
