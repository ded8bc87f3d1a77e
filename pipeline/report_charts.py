"""The charts of a report. Each takes rows and gives a figure, or None where there is nothing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
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
STATE_COLOURS: Final = {"healthy": "#10b981", "unresponsive": "#f59e0b", "dead": "#ef4444"}
TASK_COLOURS: Final = {
    "completed": "#10b981", "waiting": "#3b82f6", "retrying": "#f59e0b", "dead": "#ef4444",
    "deleted": "#94a3b8", "over": "#cbd5e1",
}  # fmt: skip
FOUND_COLOURS: Final = {
    "hole": "#ef4444", "different": "#a855f7", "repeat": "#f59e0b", "short": "#cbd5e1",
}  # fmt: skip
BLUE: Final = "#3b82f6"
RANGE: Final = "%{customdata[0]:,}–%{customdata[1]:,}<extra>%{y}</extra>"

LABEL_MAX: Final = 44
BARS_MAX: Final = 14
"""Of a chart with a line for each: more make it a list, for which there are the tables."""


def rate_chart(curve: Rows, window_s: int) -> Figure | None:
    """Messages a second over time, topic upon topic; windows without any are at zero."""
    if not curve:
        return None
    step = timedelta(seconds=window_s)
    first, last = curve[0]["start"], curve[-1]["start"]
    count = min(round((last - first) / step) + 1, 5000)
    starts = [first + step * place for place in range(count)]
    totals: dict[str, int] = {}
    for row in curve:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["messages"]
    order = sorted(totals, key=lambda topic: (topic == "others", -totals[topic]))
    found = {(row["start"], row["topic"]): row["messages"] for row in curve}
    figure = graph.Figure()
    for place, topic in enumerate(order):
        colour = COLOURS[-1] if topic == "others" else COLOURS[place % (len(COLOURS) - 1)]
        figure.add_scatter(
            x=[_iso(start) for start in starts],
            y=[found.get((start, topic), 0) / window_s for start in starts],
            name=label(topic),
            mode="lines",
            line={"width": 1, "color": colour, "shape": "hv" if count < 12 else "linear"},
            stackgroup="all",
            hovertemplate="%{y:,.1f}/s",
        )
    return _dressed(figure, 340, "messages/s", hovermode="x unified")


def size_chart(totals: Rows) -> Figure | None:
    """How large messages are: median, and where the largest twentieth and hundredth begin."""
    rows = list(reversed([row for row in totals if row["size_p50"] is not None][:BARS_MAX]))
    return _spans(rows, "size", "bytes", "%{x:,} B") if rows else None


def latency_chart(totals: Rows) -> Figure | None:
    rows = list(reversed([row for row in totals if row["timed"]][:BARS_MAX]))
    return _spans(rows, "latency_ms", "ms", "%{x:,.1f} ms") if rows else None


def _spans(rows: Rows, name: str, unit: str, hover: str) -> Figure:
    figure = graph.Figure()
    names = labels([row["topic"] for row in rows])
    for row, shown in zip(rows, names, strict=True):
        figure.add_scatter(
            x=[row[f"{name}_p50"], row[f"{name}_p99"]],
            y=[shown, shown],
            mode="lines",
            line={"width": 7, "color": "#dbeafe"},
            hoverinfo="skip",
            showlegend=False,
        )
    for share, colour in ((50, "#1d4ed8"), (95, "#60a5fa"), (99, "#f59e0b")):
        figure.add_scatter(
            x=[row[f"{name}_p{share}"] for row in rows],
            y=names,
            mode="markers",
            name=f"p{share}",
            marker={"size": 10, "color": colour},
            hovertemplate=f"p{share} {hover}<extra>%{{y}}</extra>",
        )
    values = [row[f"{name}_p{share}"] or 0 for row in rows for share in (50, 99)]
    least = min((value for value in values if value > 0), default=1)
    wide = max(values, default=1) > 50 * least and min(values) > 0
    figure.update_xaxes(title=unit, type="log" if wide else "linear", rangemode="tozero")
    return _dressed(figure, 110 + 28 * len(rows), None)


def volume_chart(totals: Rows) -> Figure | None:
    largest = sorted(totals, key=lambda row: -row["bytes"])
    rows = [row for row in reversed(largest[:BARS_MAX]) if row["bytes"]]
    if not rows:
        return None
    figure = graph.Figure()
    figure.add_bar(
        x=[row["bytes"] for row in rows],
        y=labels([row["topic"] for row in rows]),
        orientation="h",
        marker={"color": BLUE},
        text=[f"{row['messages']:,} messages" for row in rows],
        textposition="auto",
        hovertemplate="%{x:,} bytes<extra>%{y}</extra>",
    )
    figure.update_xaxes(title="bytes")
    return _dressed(figure, 110 + 28 * len(rows), None)


def health_chart(changes: Rows, end: datetime) -> Figure | None:
    """A line for each service, in the colour of how it was."""
    if not changes:
        return None
    by_service: dict[str, list[dict[str, Any]]] = {}
    for row in changes:
        by_service.setdefault(row["service"], []).append(row)
    kept = sorted(by_service, reverse=True)[-BARS_MAX:]
    last = max(row["at"] for row in changes)
    whole = last - min(row["at"] for row in changes)
    # What has been dead for a month shall not push everything else to the edge.
    end = min(end, last + max(whole / 4, timedelta(minutes=1)))
    names = dict(zip(kept, labels(kept), strict=True))
    figure = graph.Figure()
    for state, colour in STATE_COLOURS.items():
        spans = [
            (service, row["at"], following)
            for service in kept
            for row, following in _with_end(by_service[service], end)
            if row["state"] == state
        ]
        figure.add_bar(
            base=[_iso(start) for _, start, _ in spans],
            x=[max((until - start).total_seconds() * 1000, 1) for _, start, until in spans],
            y=[names[service] for service, _, _ in spans],
            orientation="h",
            name=state,
            marker={"color": colour},
            hovertemplate=f"{state} since %{{base}}<extra>%{{y}}</extra>",
        )
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_xaxes(type="date")
    figure.update_yaxes(categoryorder="array", categoryarray=list(names.values()))
    return _dressed(figure, 110 + 30 * len(kept), None)


def _with_end(rows: Rows, end: datetime) -> list[tuple[dict[str, Any], datetime]]:
    ends = [row["at"] for row in rows[1:]] + [max(end, rows[-1]["at"])]
    return list(zip(rows, ends, strict=True))


def queue_chart(queues: Rows) -> Figure | None:
    rows = list(reversed(queues[:BARS_MAX]))
    if not rows:
        return None
    figure = graph.Figure()
    for state, colour in TASK_COLOURS.items():
        if any(row[state] for row in rows):
            figure.add_bar(
                x=[row[state] for row in rows],
                y=labels([row["queue"] for row in rows]),
                orientation="h",
                name=state,
                marker={"color": colour},
                hovertemplate=f"%{{x:,}} {state}<extra>%{{y}}</extra>",
            )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="tasks")
    return _dressed(figure, 130 + 30 * len(rows), None)


def took_chart(took: Rows) -> Figure | None:
    """How many tasks took how long, in steps that double."""
    if not took:
        return None
    low, high = took[0]["step"], took[-1]["step"]
    steps = list(range(low, high + 1))
    figure = graph.Figure()
    queues = sorted({row["queue"] for row in took})[: len(COLOURS)]
    for place, queue in enumerate(queues):
        found = {row["step"]: row["tasks"] for row in took if row["queue"] == queue}
        figure.add_bar(
            x=[f"< {_seconds(2.0 ** (step + 1))}" for step in steps],
            y=[found.get(step, 0) for step in steps],
            name=label(queue),
            marker={"color": COLOURS[place]},
            hovertemplate="%{y:,} tasks in %{x}",
        )
    figure.update_layout(barmode="stack")
    return _dressed(figure, 280, "tasks completed")


def dead_chart(dead: Rows) -> Figure | None:
    rows = list(reversed(dead[:BARS_MAX]))
    if not rows:
        return None
    figure = graph.Figure()
    figure.add_bar(
        x=[row["tasks"] for row in rows],
        y=labels([f"{row['error'] or 'no error told'} · {row['queue']}" for row in rows]),
        orientation="h",
        marker={"color": "#ef4444"},
        hovertemplate="%{x:,} dead letters<extra>%{y}</extra>",
    )
    figure.update_xaxes(title="dead letters")
    return _dressed(figure, 110 + 28 * len(rows), None)


def copies_chart(extents: Rows, findings: Rows) -> Figure | None:
    """From where to where each copy of a log goes, and what is wrong in between."""
    bad = {(row["broker_id"], row["topic"]) for row in findings}
    rows = sorted(
        extents, key=lambda row: ((row["broker_id"], row["topic"]) not in bad, -row["messages"])
    )
    chosen = list(reversed(rows[:BARS_MAX]))
    if not chosen:
        return None
    shown = (f"{row['topic']} · {row['broker_id'][:4]} at {row['holder']}" for row in chosen)
    names = dict(zip(map(_copy, chosen), labels(list(shown)), strict=True))
    figure = graph.Figure()
    figure.add_bar(
        base=[row["first_no"] for row in chosen],
        x=[row["last_no"] - row["first_no"] + 1 for row in chosen],
        y=[names[_copy(row)] for row in chosen],
        orientation="h",
        name="copy",
        marker={"color": "#93c5fd"},
        customdata=[[row["first_no"], row["last_no"]] for row in chosen],
        hovertemplate=RANGE,
    )
    for what, colour in FOUND_COLOURS.items():
        found = [row for row in findings if row["what"] == what and _copy(row) in names]
        if found:
            figure.add_bar(
                base=[row["first_no"] for row in found],
                x=[row["last_no"] - row["first_no"] + 1 for row in found],
                y=[names[_copy(row)] for row in found],
                orientation="h",
                name=what,
                marker={"color": colour},
                customdata=[[row["first_no"], row["last_no"]] for row in found],
                hovertemplate=f"{what} {RANGE}",
            )
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_xaxes(title="msgNo")
    figure.update_yaxes(categoryorder="array", categoryarray=list(names.values()))
    return _dressed(figure, 120 + 26 * len(chosen), None)


def _copy(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["broker_id"], row["topic"], row["holder"]


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


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.0f} s" if seconds < 10_000 else f"{seconds / 3600:.3g} h"


def _dressed(figure: Figure, height: int, title: str | None, **layout: Any) -> Figure:
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
