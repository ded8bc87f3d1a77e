"""Rows of a result for people and for programs."""
# ruff: noqa: PLC0415 - rich takes 70 ms to import, and a pipe does not need it

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import click

Rows = Sequence[Mapping[str, Any]]


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, default=plain, ensure_ascii=False, indent=2).encode())


def plain(value: Any) -> Any:
    """What JSON has no type for."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return value.hex()
        case _:
            return str(value)


def show_rows(rows: Rows, empty: str) -> None:
    """A table on a terminal; lines with tabs in a pipe. `empty` is said where there are none."""
    if not rows:
        click.echo(empty)
        return
    names = list(rows[0])
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(cell(row[name]) for name in names))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        numeric = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(cell(row[name])) for name in names))
    Console(highlight=False, markup=False, emoji=False).print(table)


def cell(value: Any) -> str:
    """One value; what came from outside cannot move anybody's cursor."""
    match value:
        case None:
            return "–"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case int():
            return f"{value:,}"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case _:
            text = str(value)
            shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
            return "".join(shown)
