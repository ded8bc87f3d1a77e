"""`busnode status --logs`: each log of the cluster, who holds it, and how far behind a copy is."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_asking import LOGS, Status, ask, ask_everyone, ask_pages
from busnode.node.connecting import Target
from busnode.node.log_holders import HeldLog, Holder, merge_logs
from busnode.node.presentation import Column, Lines, counted, printable, show_table, size
from busnode.wire.ids import Pattern

if TYPE_CHECKING:
    from busnode.client import Bus

SHOWN_MAX: Final = 1000
"""Rows for people; JSON has all."""

BROKER_DIGITS: Final = 8

COLUMNS: Final = (
    Column("topic", style="cyan"),
    Column("broker", style="dim"),
    Column("origin", beside="of {}"),
    Column("msgNo", justify="right", beside="msgNo {}"),
    Column("size", justify="right"),
    Column("level"),
    Column("holders", wraps=True),
)


async def show_all_logs(to: Target, pattern: Pattern, as_json: bool) -> int:
    """Those that match, of all nodes."""
    wanted = 1

    async def question(bus: "Bus", _: Status) -> list[Any]:
        nonlocal wanted
        page = await ask(bus, LOGS, b'{"logs": [], "limit": 1}', to.timeout_s)
        wanted = max(wanted, page["copies_wanted"])
        return await ask_pages(bus, LOGS, "logs", "offset", {"pattern": pattern}, to.timeout_s)

    told = await ask_everyone(to, "busnode status", question)
    logs = merge_logs(told.answers)
    if as_json:
        report = {
            "nodes": list(told.answers),
            "silent": told.silent,
            "copies_wanted": wanted,
            "logs": [asdict(log) for log in logs],
        }
        click.echo(json.dumps(report, ensure_ascii=False, indent=2).encode())
        return 0
    nodes = len(told.answers) + len(told.silent)
    show_logs(logs[:SHOWN_MAX], len(logs), wanted, nodes)
    show_silent(told.silent)
    return 0


def show_logs(logs: Sequence[HeldLog], count: int, wanted: int, nodes: int) -> None:
    """A table of some of so many logs, and a line for each trouble."""
    if logs:
        show_table(COLUMNS, [_row(log) for log in logs], names=2)
    troubles = [
        f"{log.broker_id[:BROKER_DIGITS]}:{printable(log.topic)}  {printable(trouble)}"
        for log in logs
        for trouble in log.troubles(wanted, nodes)
    ]
    lines = Lines()
    lines.write([[(trouble, "yellow")] for trouble in troubles])
    more = f"; {count - len(logs):,} are not shown: name a PATTERN" if count > len(logs) else ""
    lines.write([[(f"{counted(count, 'log')}{more}", "bold")]])


def show_silent(silent: Mapping[str, str]) -> None:
    lines = [f"no answer from {printable(node)}: {printable(why)}" for node, why in silent.items()]
    Lines().write([[(line, "red")] for line in lines])


def _row(log: HeldLog) -> tuple[str, ...]:
    numbers = f"{log.first_no}–{log.last_no}" if log.last_no >= log.first_no else "none"
    return (
        printable(log.topic),
        log.broker_id[:BROKER_DIGITS],
        "?" if log.origin is None else printable(log.origin),
        numbers,
        size(log.size_bytes),
        _level(log),
        ", ".join(_holder(log, holder) for holder in log.holders),
    )


def _level(log: HeldLog) -> str:
    if log.is_open:
        return log.level or "?"
    return "1 copy" if log.whole_copies == 1 else f"{log.whole_copies:,} copies"


def _holder(log: HeldLog, holder: Holder) -> str:
    text = f"{printable(holder.node)} {holder.role}"
    if holder.first_no > log.first_no:
        text += f" {holder.first_no}–{holder.last_no}"
    return f"{text} {holder.lag:,} behind" if holder.lag else text
