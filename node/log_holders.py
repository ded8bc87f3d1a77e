"""Who holds a log, put together from what each node tells of itself: pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from busnode.node.presentation import counted

Row = Mapping[str, Any]
"""A log as one node tells of it (`held_logs.py`)."""

ROLES: Final = ("origin", "mirror", "copy")


@dataclass(frozen=True, slots=True)
class Holder:
    node: str
    role: str
    first_no: int
    last_no: int
    size_bytes: int
    holes: int
    poisoned: str | None
    lag: int
    """Messages that it lacks at the end."""


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log, wherever it is."""

    broker_id: str
    topic: str
    origin: str | None
    """The name of the node that wrote it, where anybody knows that."""
    first_no: int
    last_no: int
    size_bytes: int
    is_open: bool
    """Whether its origin writes it now."""
    level: str | None
    """Of an open log: what an ack would name now. None where its origin has not answered."""
    whole_copies: int
    """Holders that have all that anybody has."""
    holders: tuple[Holder, ...]

    def troubles(self, copies_wanted: int, nodes: int) -> list[str]:
        """What somebody should know of it, where so many copies are wanted and nodes there are."""
        found = [f"{h.node} takes no more: {h.poisoned}" for h in self.holders if h.poisoned]
        found += [f"{counted(h.holes, 'hole')} at {h.node}" for h in self.holders if h.holes]
        wanted = min(copies_wanted, nodes)
        if self.is_open and self.level == "local" and wanted > 1:
            found.append("acks are local")
        if not self.is_open and self.whole_copies < wanted:
            found.append(f"{self.whole_copies} of {wanted} whole copies")
        return found


def merge_logs(told: Mapping[str, Iterable[Row]]) -> list[HeldLog]:
    """All logs, by topic and brokerId, from the rows that each node has told, by its name."""
    rows: dict[tuple[str, str], dict[str, Row]] = {}
    for node, held in told.items():
        for row in held:
            rows.setdefault((row["topic"], row["broker_id"]), {})[node] = row
    return [_log(*key, rows[key]) for key in sorted(rows)]


def _log(topic: str, broker_id: str, by_node: Mapping[str, Row]) -> HeldLog:
    rows = by_node.values()
    ends = [row["last_no"] for row in rows]
    writer = next((row for row in rows if row["open"]), None)
    if writer is not None:
        ends = [writer["last_no"]]  # others were asked at another moment, and know less of it
    end_no: int = max(ends)
    first_no: int = min(row["first_no"] for row in rows)
    holders = tuple(
        sorted(
            (_holder(node, row, writer, end_no) for node, row in by_node.items()),
            key=lambda holder: (ROLES.index(holder.role), holder.node),
        )
    )
    whole = sum(not h.lag and not h.holes and h.first_no <= first_no for h in holders)
    return HeldLog(
        broker_id=broker_id,
        topic=topic,
        origin=next((row["origin"] for row in rows if row["origin"] is not None), None),
        first_no=first_no,
        last_no=end_no,
        size_bytes=max(row["bytes"] for row in rows),
        is_open=writer is not None or any(row["role"] == "mirror" for row in rows),
        level=None if writer is None else writer["level"],
        whole_copies=whole,
        holders=holders,
    )


def _holder(node: str, row: Row, writer: Row | None, end_no: int) -> Holder:
    # What the origin knows of its mirrors is of the same moment as its own end.
    last_no = row["last_no"]
    if writer is not None and writer is not row:
        last_no = writer["mirrors"].get(node, last_no)
    return Holder(
        node, row["role"], row["first_no"], row["last_no"], row["bytes"], row["holes"],
        row["poisoned"], max(0, end_no - last_no),
    )  # fmt: skip
