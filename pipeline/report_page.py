"""A report as one page of HTML that asks nobody for anything: scripts and data stand in it."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from busnode.pipeline import service_charts, traffic_charts
from busnode.pipeline.copies_chart import copies_chart

if TYPE_CHECKING:
    from busnode.pipeline.report import Findings

TABLE_ROWS_MAX: Final = 50

STYLE: Final = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; }
* { box-sizing: border-box; }
body { margin: 0; background: #f1f5f9; color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; }
header { margin-bottom: 18px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.02em; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 2px; }
section > p, .none { color: var(--soft); margin: 0 0 6px; }
.cards, .grid { display: grid; gap: 14px; }
.cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); margin-bottom: 14px; }
.grid { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.card, section { background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 16px; border-left: 4px solid #3b82f6; }
.card.good { border-left-color: #10b981; }
.card.bad { border-left-color: #ef4444; }
.card.warn { border-left-color: #f59e0b; }
.card b { display: block; font-size: 22px; letter-spacing: -0.02em; }
.card span { color: var(--soft); }
section { padding: 14px 16px; min-width: 0; }
section.wide { grid-column: 1 / -1; }
@media (max-width: 860px) { .grid { grid-template-columns: minmax(0, 1fr); } }
details { margin-top: 8px; }
summary { cursor: pointer; color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; }
"""

SCRIPT: Final = """
const figures = JSON.parse(document.getElementById('figures').textContent);
const settings = {responsive: true, displaylogo: false, displayModeBar: false};
for (const [id, figure] of Object.entries(figures))
  Plotly.newPlot(id, figure.data, figure.layout, settings);
document.body.dataset.drawn = Object.keys(figures).length;
"""


def page(found: "Findings") -> str:
    """The whole page."""
    offline: Any = import_module("plotly.offline")
    figures: dict[str, Any] = {}
    parts = "".join(_sections(found, figures))
    data = json.dumps({name: json.loads(each.to_json()) for name, each in figures.items()})
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(found.title)}: report</title>",
            f"<style>{STYLE}</style></head><body><main>",
            _header(found),
            f'<div class="cards">{"".join(_cards(found))}</div>',
            f'<div class="grid">{parts}</div></main>',
            f"<script>{offline.get_plotlyjs()}</script>",
            f'<script type="application/json" id="figures">{inert(data)}</script>',
            f"<script>{SCRIPT}</script></body></html>\n",
        ]
    )


def inert(data: str) -> str:
    """JSON that cannot end the script it stands in, whatever a topic is called."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _header(found: "Findings") -> str:
    when = ""
    if found.totals:
        first = min(row["first"] for row in found.totals)
        last = max(row["last"] for row in found.totals)
        when = f"{_time(first)} – {_time(last)} UTC · "
    where = escape(", ".join(found.sources))
    return (
        f"<header><h1>{escape(found.title)}</h1>"
        f"<p>{when}as of {_time(found.made)} UTC, from {where}</p></header>"
    )


def _cards(found: "Findings") -> Iterator[str]:
    messages = sum(row["messages"] for row in found.totals)
    size = sum(row["bytes"] or 0 for row in found.totals)
    yield _card(f"{messages:,}", f"messages in {len(found.totals):,} topics")
    yield _card(size_text(size), "of payload")
    if found.standing:
        down = sum(row["state"] != "healthy" for row in found.standing)
        text = f"{len(found.standing) - down:,} of {len(found.standing):,}"
        yield _card(text, "services healthy", "warn" if down else "good")
    if found.queues:
        done = sum(row["completed"] for row in found.queues)
        yield _card(
            f"{done:,}", f"of {sum(row['tasks'] for row in found.queues):,} tasks completed"
        )
        dead = sum(row["dead"] for row in found.queues)
        yield _card(f"{dead:,}", "dead letters", "bad" if dead else "good")
    if found.audited is not None:
        wrong = [row for row in found.audited.findings if row["what"] != "short"]
        text = f"{len(wrong):,} wrong" if wrong else "all whole"
        kinds = f"{found.audited.copies:,} copies of {found.audited.logs:,} logs"
        yield _card(text, kinds, "bad" if wrong else "good")


def _card(number: str, text: str, kind: str = "") -> str:
    return f'<div class="card {kind}"><b>{number}</b><span>{escape(text)}</span></div>'


def _sections(found: "Findings", figures: dict[str, Any]) -> Iterator[str]:
    def section(
        name: str, title: str, text: str, figure: Any, table: str = "", *, wide: bool = False
    ) -> str:
        kind = ' class="wide"' if wide else ""
        drawn = '<p class="none">Nothing to show.</p>'
        if figure is not None:
            figures[name] = figure
            drawn = f'<div id="{name}"></div>'
        return f"<section{kind}><h2>{title}</h2><p>{text}</p>{drawn}{table}</section>"

    rates = traffic_charts.rate_chart(found.curve, found.window_s)
    text = f"Messages a second by topic, in windows of {found.window_s} s."
    yield section("rate", "Traffic", text, rates, wide=True)
    names = ["topic", "messages", "bytes", "producers", "first", "last"]
    volumes, sizes = (
        traffic_charts.volume_chart(found.totals),
        traffic_charts.size_chart(found.totals),
    )
    yield section("volume", "Volume", "Payload by topic.", volumes, _table(found.totals, names))
    text = "Of messages: half are below p50, one in a hundred is above p99."
    yield section("sizes", "Sizes", text, sizes)
    latencies = traffic_charts.latency_chart(found.totals)
    if latencies is not None:
        text = "Since a message says that it was sent, or since the first one with its id."
        yield section("latency", "Latency", text, latencies)
    if found.changes:
        drawn = service_charts.health_chart(found.changes, found.made)
        table = _table(found.standing, ["service", "state", "at", "beat"])
        text = "Healthy, unresponsive or dead, by their heartbeats."
        yield section("health", "Services", text, drawn, table, wide=latencies is None)
    if found.queues:
        names = ["queue", "tasks", "completed", "waiting", "retrying", "dead", "attempts"]
        names += ["seconds_p50", "seconds_p95", "seconds_max"]
        drawn, table = service_charts.queue_chart(found.queues), _table(found.queues, names)
        yield section("queues", "Task queues", "What became of tasks.", drawn, table)
        drawn = service_charts.took_chart(found.took)
        yield section("took", "Time to completion", "From when a task was enqueued.", drawn)
    if found.dead:
        table = _table(found.dead, ["queue", "error", "tasks", "first", "last"])
        drawn = service_charts.dead_chart(found.dead)
        yield section("dead", "Dead letters", "By the last error.", drawn, table, wide=True)
    if found.audited is not None:
        names = ["topic", "broker_id", "holder", "what", "first_no", "last_no"]
        drawn = copies_chart(found.audited.extents, found.audited.findings)
        text = "From which message to which each copy of a log goes; those with findings first."
        table = _table(found.audited.findings, names)
        yield section("copies", "Copies", text, drawn, table, wide=True)


def _table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    if not rows:
        return ""
    numeric = {
        name for name in names
        if all(isinstance(row[name], int | float | None) for row in rows)
    }  # fmt: skip

    def row_of(tag: str, cells: Sequence[str]) -> str:
        kinds = (' class="number"' if name in numeric else "" for name in names)
        return "".join(f"<{tag}{k}>{c}</{tag}>" for k, c in zip(kinds, cells, strict=True))

    head = row_of("th", [escape(name.replace("_", " ")) for name in names])
    body = "".join(
        f"<tr>{row_of('td', [_cell(row[name]) for name in names])}</tr>"
        for row in rows[:TABLE_ROWS_MAX]
    )
    more = f"<p>and {len(rows) - TABLE_ROWS_MAX:,} more</p>" if len(rows) > TABLE_ROWS_MAX else ""
    return (
        f'<details><summary>{len(rows):,} rows</summary><div class="scroll"><table>'
        f"<tr>{head}</tr>{body}</table></div>{more}</details>"
    )


def _cell(value: Any) -> str:
    match value:
        case None:
            return "–"
        case datetime():
            return _time(value)
        case float():
            return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return escape(str(value))


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
