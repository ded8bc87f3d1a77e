"""The cluster as one node sees it, for people: from what its status tells, in words and as a table.

A node is *here* when there is a link to it or from it. What is not here was heard of, and may be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from busnode.node.presentation import Column, Lines, counted, moment, printable, show_table, size

if TYPE_CHECKING:
    from rich.console import Console

Status = Mapping[str, Any]

NAMED_MAX: Final = 3
"""Missing links and silent nodes that one line names."""

SECOND_US: Final = 1_000_000
BROKER_DIGITS: Final = 8
"""Of a brokerId, as people compare them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node that is here or may be."""

    name: str | None
    """None for an address at which nobody has told a name."""
    broker_id: str | None
    clients_at: str
    peers_at: str
    """Where it was dialled or may be."""
    linked: bool
    """Whether we have a link to it."""
    dials_us: bool
    error: str | None
    up_s: float | None
    messages: int | None
    received_bytes: int | None

    @property
    def is_here(self) -> bool:
        return self.linked or self.dials_us

    @property
    def link(self) -> str:
        match self.linked, self.dials_us:
            case True, True:
                return "both ways"
            case True, False:
                return "we dial only"
            case False, True:
                return "dials us only"
            case _:
                return "down"


def _peer(row: Status) -> Peer:
    places = row.get("clients_at", [])
    return Peer(
        name=None if row["name"] is None else printable(row["name"]),
        broker_id=row["broker_id"],
        clients_at=printable(", ".join(places[:1])) or "–",
        peers_at=printable(", ".join(row["addresses"][:1])) or "–",
        linked=row["link"] == "up",
        dials_us=row["dials_us"],
        error=None if row["error"] is None else printable(row["error"]),
        up_s=row.get("link_s"),
        messages=row.get("messages"),
        received_bytes=row.get("received_bytes"),
    )


class ClusterView:
    """What one node's status tells of all nodes."""

    def __init__(self, found: Status) -> None:
        cluster: Status = found["cluster"]
        peers = [_peer(row) for row in cluster["peers"]]
        self._found = found
        self.is_alone_by_choice = "peer" not in found["addresses"]
        self.here = [peer for peer in peers if peer.is_here]
        self.silent = [peer for peer in peers if not peer.is_here and peer.name is not None]
        """Nodes that were heard of by name and are not linked."""
        self.unknown = [peer for peer in peers if not peer.is_here and peer.name is None]
        """Addresses where a node may be: seeds that nobody has answered for."""
        links = [
            (printable(link["dialler"]), printable(link["listener"]))
            for link in cluster["missing_links"]
        ]
        self.missing = [f"{one} → {other}" for one, other in links]
        self.missing_count: int = cluster["missing_links_count"]
        known = {printable(found["name"]), *(peer.name for peer in self.here)}
        self._told_of = {name for link in links for name in link} - known
        """Nodes that others are linked to and this one is not."""
        self.discovery_failure: str | None = cluster["discovery"]["failure"]

    @property
    def nodes_count(self) -> int:
        """Nodes that are linked to any other, and this one."""
        return 1 + len(self.here) + len(self._told_of)

    @property
    def is_whole(self) -> bool:
        return not self.missing_count and all(peer.linked and peer.dials_us for peer in self.here)

    def summary(self) -> str:
        """`3 nodes, fully meshed`, `3 nodes, 1 link missing: n2 → n3`."""
        if self.is_alone_by_choice:
            return "1 node: it stays alone (--peer-port off)"
        nodes = counted(self.nodes_count, "node")
        if self.missing_count:
            text = f"{nodes}, {counted(self.missing_count, 'link')} missing: "
            text += _some(self.missing, self.missing_count)
        elif not self.is_whole:
            halves = [f"{peer.name} {peer.link}" for peer in self.here if peer.link != "both ways"]
            text = f"{nodes}, linking: {_some(halves, len(halves))}"
        elif self.here:
            text = f"{nodes}, fully meshed"
        else:
            text = f"{nodes}: no other is linked"
        silent = [str(peer.name) for peer in self.silent if peer.name not in self._told_of]
        silent += [peer.peers_at for peer in self.unknown]
        if silent:
            verb = "does" if len(silent) == 1 else "do"
            text += f"; {len(silent):,} more {verb} not answer: {_some(silent, len(silent))}"
        return text

    def discovery_trouble(self) -> str | None:
        """Why nodes do not find each other, or None while nothing is known to be wrong."""
        if self.discovery_failure is None:
            return None
        return f"nobody new can be found: {printable(self.discovery_failure)}"

    def troubles(self) -> list[str]:
        """A line for each link that is missing and each node that is not here."""
        lines = [f"missing link: {link}" for link in self.missing]
        unnamed = self.missing_count - len(self.missing)
        if unnamed:
            lines.append(f"missing links: {unnamed:,} more")
        for peer in self.silent:
            lines.append(f"down: {peer.name}  {peer.error or 'not reached yet'}")
        for peer in self.unknown:
            why = peer.error or f"{peer.peers_at}: not reached yet"
            lines.append(f"may be there: {why}")
        return lines

    def show(self, *, itself: bool, on: "Console | None" = None) -> None:
        """A table of the nodes that have a name, and below what is wrong."""
        rows = [self._own_row()] if itself else []
        rows += [self._row(peer) for peer in (*self.here, *self.silent)]
        if rows:
            show_table(COLUMNS, rows, names=3, on=on)
        Lines(on).write([[(text, "red")] for text in self.troubles()])

    def _own_row(self) -> Sequence[str]:
        found, counters = self._found, self._found["counters"]
        return (
            printable(found["name"]),
            found["broker_id"][:BROKER_DIGITS],
            str(found["addresses"]["client"]),
            "itself",
            self._since(found["uptime_s"]),
            f"{counters['messages_live'] + counters['messages_persistent']:,}",
            size(counters["received_bytes"]),
        )

    def _row(self, peer: Peer) -> Sequence[str]:
        return (
            str(peer.name),
            (peer.broker_id or "–")[:BROKER_DIGITS],
            peer.clients_at,
            peer.link,
            "–" if peer.up_s is None else self._since(peer.up_s),
            "–" if peer.messages is None else f"{peer.messages:,}",
            "–" if peer.received_bytes is None else size(peer.received_bytes),
        )

    def _since(self, seconds: float) -> str:
        """A time of today, or one with its day."""
        now_us: int = self._found["utc_us"]
        now, then = moment(now_us), moment(now_us - round(seconds * SECOND_US))
        day = len("YYYY-MM-DD")
        return then[day + 1 :] if then[:day] == now[:day] else then[len("YYYY-") : -len(":SS")]


COLUMNS: Final = (
    Column("node", style="bold"),
    Column("broker", style="dim"),
    Column("clients", style="cyan"),
    Column("link"),
    Column("up since", beside="up since {}"),
    Column("messages in", justify="right", beside="messages in {}"),
    Column("bytes", justify="right"),
)


def _some(texts: Sequence[str], count: int) -> str:
    rest = count - min(count, NAMED_MAX)
    return ", ".join(texts[:NAMED_MAX]) + (f" and {rest:,} more" if rest else "")
