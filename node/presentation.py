"""What people see: numbers, times and payloads as text, and tables and progress on a terminal.

Commands hand over plain values and this decides how they look, so that all commands look alike.
On a terminal it uses colour and keeps to the width. In a pipe it writes plain text, one thing a
line and never wrapped. Whatever came from outside goes through `printable` or `preview` first: a
payload must not be able to move the cursor of whoever looks at it.
"""
# ruff: noqa: PLC0415 - rich takes 70 ms to import, and neither --help nor a pipe needs it

import codecs
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console

EPOCH: Final = datetime(1970, 1, 1)
PREVIEW_CHARACTERS: Final = 160
"""How much of a payload a line shows where there is no terminal to tell its width."""
PREVIEW_CHARACTERS_MIN: Final = 24
"""With less room than this behind the rest of a line it goes below."""
INDENT: Final = 6
"""How far what belongs to a line stands in, below it."""
SENTENCE_CHARACTERS_MIN: Final = 30
"""How narrow a column of sentences may become."""

Part = tuple[str, str]
"""A piece of a line: its text, and the rich style that it has on a terminal."""


# Values as text -------------------------------------------------------------------------------


def size(count_bytes: float) -> str:
    """A number of bytes in decimal units, three digits or four: `812 B`, `15.2 MB`."""
    if count_bytes < 1000:
        return f"{count_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count_bytes /= 1000
        if count_bytes < 999.95:
            return f"{count_bytes:.1f} {unit}"
    return f"{count_bytes / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """`3 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(count: int, noun: str) -> str:
    """`1 log`, `1,200 logs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(utc_us: int, timespec: str = "seconds") -> str:
    """A time as people read it; the bare number where it is before year 1 or after 9999."""
    try:
        return (EPOCH + timedelta(microseconds=utc_us)).isoformat(" ", timespec)
    except OverflowError:
        return f"{utc_us} µs"


def span(first_us: int, last_us: int) -> str:
    """Two times as one text that does not repeat what they have in common: the day or the year."""
    first, last = moment(first_us, "minutes"), moment(last_us, "minutes")
    if first == last:
        return first
    for shared in (len("YYYY-MM-DD "), len("YYYY-")):
        if first[:shared] == last[:shared]:
            return f"{first} – {last[shared:]}"
    return f"{first} – {last}"


def printable(text: str) -> str:
    """The text with all that is not plainly visible escaped: control and format characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def preview(payload: bytes, characters: int) -> str:
    """The beginning of a payload on one line: as text where it is text, else as hex digits."""
    if not payload:
        return "(empty)"
    piece = payload[: characters * 4]  # a character has at most four bytes
    whole = len(piece) == len(payload)
    try:
        # Where it is cut, the last character may be in two.
        text = printable(codecs.utf_8_decode(piece, "strict", whole)[0])
    except UnicodeDecodeError:
        text = f"0x{piece.hex()}"
    if whole and len(text) <= characters:
        return text
    rest = f"… {size(len(payload))}"
    return text[: max(characters - len(rest), 0)] + rest


# Lines and tables -----------------------------------------------------------------------------


def terminal(stream: TextIO | None = None) -> "Console | None":
    """The console on stdout or another stream, or None where that is a pipe or a file."""
    if not (stream or sys.stdout).isatty():
        return None
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


class Lines:
    """Writes lines, many of them, to stdout: in colour on a terminal, plain and fast in a pipe."""

    def __init__(self, on: "Console | None" = None) -> None:
        self._on = on or terminal()

    def write(self, lines: Iterable[Sequence[Part]]) -> None:
        if self._on is None:
            plain = ("".join(text for text, _ in line).rstrip() for line in lines)
            sys.stdout.write("".join(f"{line}\n" for line in plain))
            return
        from rich.text import Text

        for line in lines:
            self._on.print(Text.assemble(*line))

    def remark(self, text: str) -> None:
        """Something about the line before."""
        if self._on is None:
            sys.stdout.write(f"{' ' * INDENT}{text}\n")
            return
        from rich.padding import Padding
        from rich.text import Text

        self._on.print(Padding(Text(text, "dim"), (0, 0, 0, INDENT)))

    def with_payload(self, parts: Sequence[Part], payload: bytes) -> list[Part]:
        """The line with as much of a payload as fits behind it, or below where hardly any would."""
        if self._on is None:
            return [*parts, (preview(payload, PREVIEW_CHARACTERS), "")]
        from rich.cells import cell_len

        def fitting(room: int) -> str:
            text = preview(payload, room)
            return text if cell_len(text) <= room else preview(payload, room // 2)  # 日本

        room = self._on.width - sum(cell_len(text) for text, _ in parts)
        if room < PREVIEW_CHARACTERS_MIN and len(payload) > room:
            return [*parts, (f"\n{' ' * INDENT}{fitting(self._on.width - INDENT)}", "")]
        return [*parts, (fitting(room), "")]


class Column(NamedTuple):
    title: str
    justify: Literal["left", "right"] = "left"
    style: str = ""
    wraps: bool = False
    """Whether its text may be broken into lines: for sentences."""
    beside: str = "{}"
    """How a cell reads where there is no title above it."""


def show_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    names: int = 1,
    on: "Console | None" = None,
) -> None:
    """A table where the terminal is wide enough for it; else some lines for each row.

    Then the first `names` columns say on one line what the row is about, and the others follow
    below: so a long topic is never broken into a narrow column. In a pipe it is always a table.
    """
    on = on or terminal()
    titles = [column.title for column in columns]
    if on is None:
        _write_table(columns, [titles, *rows] if any(titles) else rows)
        return
    from rich.cells import cell_len
    from rich.table import Table

    least = 2 * (len(columns) - 1)
    for column, *cells in zip(columns, titles, *rows, strict=True):
        width = max(map(cell_len, cells))
        least += min(width, SENTENCE_CHARACTERS_MIN) if column.wraps else width
    if least > on.width:
        _show_rows(columns, rows, names, on)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(titles))
    for column in columns:
        table.add_column(
            column.title, justify=column.justify, style=column.style, no_wrap=not column.wraps
        )
    for row in rows:
        table.add_row(*row)
    on.print(table)


def _write_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if column.justify == "right" else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _show_rows(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], names: int, on: "Console"
) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    for row in rows:
        cells = list(zip(columns, row, strict=True))
        lines = [Text("  ").join(Text(cell, column.style) for column, cell in cells[:names])]
        below = ""
        for column, cell in cells[names:]:
            fact = column.beside.format(cell)
            if below and cell_len(below) + 2 + cell_len(fact) > on.width - INDENT:
                lines.append(Text(f"{' ' * INDENT}{below}"))
                below = ""
            below += f"  {fact}" if below else fact
        on.print(*lines, Text(f"{' ' * INDENT}{below}"), sep="\n")


def show_facts(title: str, facts: Mapping[str, str], on: "Console | None" = None) -> None:
    """One thing, and below it what there is to say of it."""
    Lines(on).write([[(title, "bold")]])
    rows = [(f"  {name}", text) for name, text in facts.items()]
    show_table([Column("", style="dim"), Column("", wraps=True)], rows, on=on)


# Progress -------------------------------------------------------------------------------------


@contextmanager
def progress(title: str, total_bytes: int) -> Generator[Callable[[int], None], None, None]:
    """A bar on stderr, if that is a terminal; call what it gives with each number of bytes done."""
    on = terminal(sys.stderr)
    if on is None:
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=on,
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda count: bar.advance(task, count)
