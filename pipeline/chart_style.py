"""How all charts of a report look: colours, names, axes."""

from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib import import_module
from typing import Any, Final

graph: Any = import_module("plotly.graph_objects")

Figure = Any
Rows = Sequence[dict[str, Any]]

COLOURS: Final = (
    "#3b82f6", "#f59e0b", "#10b981", "#8b5cf6", "#ef4444", "#06b6d4", "#ec4899", "#84cc16",
    "#94a3b8",
)  # fmt: skip

LABEL_MAX: Final = 44
BARS_MAX: Final = 14
"""Of a chart with a line for each: more make it a list, for which there are the tables."""


def label(text: str) -> str:
    """A name as a chart takes it: not too long, and nothing in it is markup. The end tells more."""
    shown = text if len(text) <= LABEL_MAX else "…" + text[-LABEL_MAX + 1 :]
    return escape("".join(c if c.isprintable() else "·" for c in shown))


def labels(texts: Sequence[str]) -> list[str]:
    """The same for names of which each has a place of its own: two that are cut to the same text
    would be drawn as one."""
    seen: dict[str, int] = {}
    made: list[str] = []
    for text in texts:
        shown = label(text)
        seen[shown] = seen.get(shown, 0) + 1
        made.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return made


def iso(moment: datetime) -> str:
    """A time as charts take it, in UTC."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def dressed(figure: Figure, height: int, title: str | None, **layout: Any) -> Figure:
    """A figure as it stands on the page."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12, "color": "#334155"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
        hoverlabel={"align": "left"},
        **layout,
    )
    figure.update_xaxes(automargin=True, gridcolor="#eef2f7")
    figure.update_yaxes(automargin=True, gridcolor="#eef2f7", title=title, ticksuffix=" ")
    return figure
