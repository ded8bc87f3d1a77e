"""The chart of copies: from where to where each goes, and what is wrong in between."""

from typing import Any, Final

from busnode.pipeline.chart_style import BARS_MAX, Figure, Rows, dressed, graph, labels

FOUND_COLOURS: Final = {
    "hole": "#ef4444", "different": "#a855f7", "repeat": "#f59e0b", "short": "#cbd5e1",
}  # fmt: skip
RANGE: Final = "%{customdata[0]:,}–%{customdata[1]:,}<extra>%{y}</extra>"


def copies_chart(extents: Rows, findings: Rows) -> Figure | None:
    """From where to where each copy of a log goes, and what is wrong in between."""
    bad = {(row["broker_id"], row["topic"]) for row in findings}
    rows = sorted(
        extents, key=lambda row: ((row["broker_id"], row["topic"]) not in bad, -row["messages"])
    )
    chosen = list(reversed(rows[:BARS_MAX]))
    if not chosen:
        return None
    names = dict(zip(map(_copy, chosen), labels(list(map(_name, chosen))), strict=True))
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
    return dressed(figure, 120 + 26 * len(chosen), None)


def _copy(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["broker_id"], row["topic"], row["holder"]


def _name(row: dict[str, Any]) -> str:
    wrote_it = " (origin)" if row.get("origin") == row["holder"] else ""
    return f"{row['topic']} · {row['broker_id'][:4]} at {row['holder']}{wrote_it}"
