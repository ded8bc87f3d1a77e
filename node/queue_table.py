"""Queues for people: a table of what is in them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from busnode.node.presentation import Column, Lines, counted, duration, printable, show_table

if TYPE_CHECKING:
    from rich.console import Console

COUNTS: Final = ("ready", "delayed", "retrying", "leased", "settling", "dead")
TOTALS: Final = ("completed", "failed")
SECOND_US: Final = 1_000_000

COLUMNS: Final = (
    Column("queue", style="cyan"),
    Column("ready", justify="right", style="bold", beside="{} ready"),
    Column("delayed", justify="right", beside="{} delayed"),
    Column("retries", justify="right", beside="{} retries"),
    Column("in flight", justify="right", beside="{} in flight"),
    Column("oldest", justify="right", beside="oldest {}"),
    Column("dead", justify="right", style="red", beside="{} dead"),
    Column("done", justify="right", beside="{} done"),
    Column("failed", justify="right", beside="{} failed"),
)

Row = Mapping[str, Any]


def add_rows(answers: Mapping[str, Iterable[Row]]) -> list[dict[str, Any]]:
    """What the nodes tell of each queue, by name, with who has some of it."""
    queues: dict[str, dict[str, Any]] = {}
    for node, rows in answers.items():
        for row in rows:
            known = queues.get(row["queue"])
            if known is None:
                known = queues[row["queue"]] = {
                    "queue": row["queue"], **dict.fromkeys((*COUNTS, *TOTALS), 0),
                    "oldest_us": None, "nodes": [], "orphans": [],
                }  # fmt: skip
            for name in (*COUNTS, *TOTALS):
                known[name] += row[name]
            ages = (known["oldest_us"], row["oldest_us"])
            known["oldest_us"] = min((age for age in ages if age is not None), default=None)
            known["nodes"].append(node)
            known["orphans"] = sorted({*known["orphans"], *row.get("orphans", ())})
    return [queues[name] for name in sorted(queues)]


def show_queues(rows: Sequence[Row], now_us: int, on: "Console | None" = None) -> None:
    """A row for each; what a worker has said is in flight until it is durable."""
    if rows:
        show_table(COLUMNS, [_cells(row, now_us) for row in rows], on=on)


def show_node_queues(
    tasks: Row, now_us: int, shown_max: int | None = None, on: "Console | None" = None
) -> None:
    """Those of one node as its status has them, or the largest of them, and how many there are."""
    rows: list[Row] = tasks["queues"][:shown_max]
    others: Row | None = tasks["other_queues"]
    told = len(rows)
    if others is not None and shown_max is None:
        rows = [*rows, {**others, "queue": f"{others['queues']:,} others"}]
        told += others["queues"]
    show_queues(rows, now_us, on)
    count: int = tasks["queues_count"]
    more = f"; {count - told:,} are not shown" if count > told else ""
    Lines(on).write([[(f"{counted(count, 'queue')}{more}", "bold")]])


def _cells(row: Row, now_us: int) -> tuple[str, ...]:
    oldest_us = row["oldest_us"]
    return (
        printable(row["queue"]),
        f"{row['ready']:,}",
        f"{row['delayed']:,}",
        f"{row['retrying']:,}",
        f"{row['leased'] + row['settling']:,}",
        "–" if oldest_us is None else duration(max(0, now_us - oldest_us) / SECOND_US),
        f"{row['dead']:,}",
        f"{row['completed']:,}",
        f"{row['failed']:,}",
    )
