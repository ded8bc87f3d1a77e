"""Charts of services and of their tasks. Each takes rows and gives a figure, or None where there is
nothing.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from busnode.pipeline.chart_style import (
    BARS_MAX,
    COLOURS,
    Figure,
    Rows,
    dressed,
    graph,
    iso,
    label,
    labels,
)

STATE_COLOURS: Final = {"healthy": "#10b981", "unresponsive": "#f59e0b", "dead": "#ef4444"}
TASK_COLOURS: Final = {
    "completed": "#10b981", "waiting": "#3b82f6", "retrying": "#f59e0b", "dead": "#ef4444",
    "deleted": "#94a3b8", "over": "#cbd5e1",
}  # fmt: skip


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
            base=[iso(start) for _, start, _ in spans],
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
    return dressed(figure, 110 + 30 * len(kept), None)


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
    return dressed(figure, 130 + 30 * len(rows), None)


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
    return dressed(figure, 280, "tasks completed")


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
    return dressed(figure, 110 + 28 * len(rows), None)


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.0f} s" if seconds < 10_000 else f"{seconds / 3600:.3g} h"
