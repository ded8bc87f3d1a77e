"""Charts of traffic. Each takes rows and gives a figure, or None where there is nothing."""

from datetime import timedelta

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
            x=[iso(start) for start in starts],
            y=[found.get((start, topic), 0) / window_s for start in starts],
            name=label(topic),
            mode="lines",
            line={"width": 1, "color": colour, "shape": "hv" if count < 12 else "linear"},
            stackgroup="all",
            hovertemplate="%{y:,.1f}/s",
        )
    return dressed(figure, 340, "messages/s", hovermode="x unified")


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
    return dressed(figure, 110 + 28 * len(rows), None)


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
        marker={"color": COLOURS[0]},
        text=[f"{row['messages']:,} messages" for row in rows],
        textposition="auto",
        hovertemplate="%{x:,} bytes<extra>%{y}</extra>",
    )
    figure.update_xaxes(title="bytes")
    return dressed(figure, 110 + 28 * len(rows), None)
