"""A run as a picture: a line for each node, faults on it as bars, and where a message was lost."""

from collections.abc import Iterator
from html import escape
from typing import Final

from busnode.testing.sim.history import (
    Acked,
    Calm,
    Event,
    FaultBegun,
    FaultEnded,
    Healed,
    NodeDown,
    NodeUp,
    Sent,
)
from busnode.testing.sim.run import Outcome
from busnode.testing.sim.trouble.kind import KINDS

WIDTH: Final = 1400
LEFT: Final = 70
RIGHT: Final = 30
LANE: Final = 118
"""For each node: its life, and below it rows of faults."""
ROW: Final = 15
ROWS: Final = 6
TOP: Final = 64
COLOURS: Final = {
    "deaths": "#c0392b",
    "cables": "#2471a3",
    "disks": "#b9770e",
    "rot": "#7d3c98",
    "clocks": "#148f77",
    "lies": "#5d6d7e",
}
"""By the file that a kind of fault is in."""


class Picture:
    def __init__(self, outcome: Outcome, families: dict[str, str]) -> None:
        """`families` tells for each kind of fault in which file it stands."""
        self._outcome = outcome
        self._families = families
        self._end_s = max(1.0, outcome.simulated_s)
        self._lanes = {name: TOP + LANE * place for place, name in enumerate(outcome.nodes)}
        self._bottom = TOP + LANE * len(self._lanes)

    def svg(self) -> str:
        told = self._outcome.violations
        height = self._bottom + 60 + 16 * min(len(told), 6)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *self._title(),
            *self._times(),
            *self._lives(),
            *self._faults(),
            *self._moments(),
            *self._lost(),
            *self._verdict(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _x(self, at: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at / self._end_s, 1)

    def _title(self) -> Iterator[str]:
        outcome = self._outcome
        faults = sum(outcome.faults.values())
        verdict = f"{len(outcome.violations)} violations" if outcome.violations else "all well"
        text = f"seed {outcome.seed}: {len(outcome.nodes)} nodes, {faults} faults, {verdict}"
        yield f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{text}</text>'
        x = LEFT
        for family, colour in COLOURS.items():
            yield f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>'
            yield f'<text x="{x + 14}" y="43">{family}</text>'
            x += 80
        yield f'<rect x="{x}" y="34" width="10" height="10" fill="#27ae60"/>'
        yield f'<text x="{x + 14}" y="43">a node that is up</text>'

    def _times(self) -> Iterator[str]:
        step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if self._end_s / s <= 20)
        for second in range(0, int(self._end_s) + 1, step):
            x = self._x(second)
            yield f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{self._bottom}" stroke="#e5e7e9"/>'
            yield f'<text x="{x}" y="{self._bottom + 14}" text-anchor="middle">{second} s</text>'

    def _lives(self) -> Iterator[str]:
        for name, y in self._lanes.items():
            yield (
                f'<text x="{LEFT - 12}" y="{y + 15}" text-anchor="end" font-size="14" '
                f'font-weight="bold">{escape(name)}</text>'
            )
            up_since: float | None = None
            for event in self._of_node(name):
                if isinstance(event, NodeUp) and up_since is None:
                    up_since = event.at
                elif isinstance(event, NodeDown) and up_since is not None:
                    yield self._life(y, up_since, event.at)
                    yield f'<text x="{self._x(event.at) + 3}" y="{y + 15}" fill="#c0392b">✕</text>'
                    up_since = None
            if up_since is not None:
                yield self._life(y, up_since, self._end_s)

    def _of_node(self, name: str) -> Iterator[Event]:
        for event in self._outcome.history.events:
            if isinstance(event, NodeUp | NodeDown) and event.node == name:
                yield event

    def _life(self, y: int, began: float, ended: float) -> str:
        x = self._x(began)
        width = max(1.0, self._x(ended) - x)
        return f'<rect x="{x}" y="{y + 6}" width="{width:.1f}" height="10" fill="#27ae60"/>'

    def _faults(self) -> Iterator[str]:
        events = self._outcome.history.events
        ended = {event.number: event.at for event in events if isinstance(event, FaultEnded)}
        free_at: dict[tuple[str, int], float] = {}
        for event in events:
            if not isinstance(event, FaultBegun):
                continue
            end = max(ended.get(event.number, self._end_s), event.at + 0.15)
            names = [each for each in event.on.split() if each in self._lanes]
            colour = COLOURS[self._families[event.kind]]
            for name in names or list(self._lanes)[:1]:
                label_end = self._x(event.at) + 6 * len(event.kind) + 8
                until = max(self._x(end), label_end)
                row = next(
                    (r for r in range(ROWS) if free_at.get((name, r), 0.0) <= self._x(event.at)),
                    ROWS - 1,
                )
                free_at[name, row] = until
                x, y = self._x(event.at), self._lanes[name] + 22 + ROW * row
                width = max(2.0, self._x(end) - x)
                about = escape(f"{event.number}: {event.kind} on {event.on} {event.detail}")
                yield (
                    f'<g><title>{about}</title><rect x="{x}" y="{y}" width="{width:.1f}" '
                    f'height="{ROW - 4}" fill="{colour}" fill-opacity="0.35"/>'
                    f'<rect x="{x}" y="{y}" width="2" height="{ROW - 4}" fill="{colour}"/>'
                    f'<text x="{x + 4}" y="{y + 9}" font-size="10">{event.kind}</text></g>'
                )

    def _moments(self) -> Iterator[str]:
        for event in self._outcome.history.events:
            if isinstance(event, Healed | Calm):
                x = self._x(event.at)
                word = "healed" if isinstance(event, Healed) else "calm"
                low = self._bottom + (26 if word == "calm" else 14)
                yield (
                    f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{self._bottom}" stroke="#196f3d" '
                    f'stroke-dasharray="4 3"/><text x="{x + 4}" y="{low + 12}" fill="#196f3d">'
                    f"{word}</text>"
                )

    def _lost(self) -> Iterator[str]:
        """The message that the first violation is about: where it was sent, acked and missed."""
        about = next((each for each in self._outcome.violations if each.payload), None)
        if about is None:
            return
        for event in self._outcome.history.events:
            if isinstance(event, Sent | Acked) and event.payload == about.payload:
                word = "sent" if isinstance(event, Sent) else f"acked: {event.level}"
                yield self._flag(event.at, word, "#1a5276")
        yield self._flag(about.at, about.checker, "#c0392b")

    def _flag(self, at: float, text: str, colour: str) -> str:
        x = self._x(at)
        return (
            f'<line x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{self._bottom}" stroke="{colour}" '
            f'stroke-width="2"/><text x="{x + 4}" y="{TOP - 6}" fill="{colour}" '
            f'font-weight="bold">{escape(text)}</text>'
        )

    def _verdict(self) -> Iterator[str]:
        y = self._bottom + 52
        for violation in self._outcome.violations[:6]:
            text = escape(str(violation)[:210])
            yield f'<text x="{LEFT}" y="{y}" fill="#c0392b">{text}</text>'
            y += 16


def draw(outcome: Outcome) -> str:
    """The picture of a run as SVG."""
    families = {name: strike.__module__.rpartition(".")[2] for name, strike in KINDS.items()}
    return Picture(outcome, families).svg()
