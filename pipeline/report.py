"""`report`: what all jobs find, gathered for one page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from busnode.pipeline import health, journal_rows, task_outcomes, traffic
from busnode.pipeline.audit_job import Audited, audit
from busnode.pipeline.report_page import page
from busnode.pipeline.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]

WINDOWS_WANTED: Final = 90
"""Points of a curve that a page is wide enough for."""
WINDOWS_S: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400)
TOPICS_DRAWN: Final = 8
"""As many as colours can be told apart; the rest is drawn as one."""
ROWS_MAX: Final = 2000
"""Of anything that could be without end: services, errors, logs."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the page shows."""

    title: str
    sources: Sequence[str]
    made: datetime
    window_s: int
    totals: Rows
    """For each topic."""
    curve: Rows
    """Messages and bytes of each window and topic; topics that are not drawn apart are one."""
    changes: Rows
    """Of services."""
    standing: Rows
    queues: Rows
    dead: Rows
    took: Rows
    """How many tasks of each queue were completed within so many seconds."""
    audited: Audited | None
    """None where a cluster was read, of which no copies are seen."""


def report(
    spark: "SparkSession",
    source: Source,
    topics: str,
    title: str,
    moment: datetime,
    say: Callable[[str], None],
) -> tuple[str, dict[str, Any]]:
    """The page, and what stands on it in numbers."""
    found = gather(spark, source, topics, title, moment, say)
    audited = found.audited
    return page(found), {
        "messages": sum(row["messages"] for row in found.totals),
        "topics": len(found.totals),
        "services": len(found.standing),
        "queues": len(found.queues),
        "findings": None if audited is None else len(audited.findings),
    }


def gather(
    spark: "SparkSession",
    source: Source,
    topics: str,
    title: str,
    moment: datetime,
    say: Callable[[str], None],
) -> Findings:
    say("report: traffic")
    messages = source.load(spark, topics, traffic.COLUMNS)
    totals = _rows(traffic.topic_totals(messages))
    window_s = window_of(totals)
    drawn = [row["topic"] for row in totals[:TOPICS_DRAWN]]
    curve = _rows(curve_of(source.load(spark, topics, traffic.COLUMNS), window_s, drawn))
    say("report: health")
    beats = health.heartbeats(source.load(spark, health.TOPICS, health.COLUMNS))
    changes = _rows(health.health(beats, moment).orderBy("at", "service"))
    say("report: tasks")
    outcomes = task_outcomes.task_outcomes(
        source.load(spark, task_outcomes.TASK_LOGS, task_outcomes.COLUMNS),
        journal_rows.journal_rows(source.load(spark, task_outcomes.JOURNALS, journal_rows.COLUMNS)),
    ).cache()
    queues = _rows(task_outcomes.queue_totals(outcomes))
    dead = _rows(task_outcomes.dead_letters(outcomes))
    took = _rows(took_of(outcomes))
    outcomes.unpersist()
    audited = None
    if not source.is_cluster:
        say("report: audit")
        audited = audit(spark, source, topics)
    return Findings(
        title, source.names, moment, window_s, totals, curve,
        changes, standing_of(changes), queues, dead, took, audited,
    )  # fmt: skip


def _rows(frame: "DataFrame") -> Rows:
    """Times are in UTC: Spark hands them over in this machine's zone, without saying so."""
    rows = [row.asDict(recursive=True) for row in frame.limit(100 * ROWS_MAX).collect()]
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime):
                row[name] = value.astimezone(UTC)
    return rows


def window_of(totals: Rows) -> int:
    """A window by which all of the time is some ninety points wide."""
    if not totals:
        return WINDOWS_S[0]
    whole = max(row["last"] for row in totals) - min(row["first"] for row in totals)
    wanted = whole.total_seconds() / WINDOWS_WANTED
    return next((each for each in WINDOWS_S if each >= wanted), WINDOWS_S[-1])


def curve_of(messages: "DataFrame", window_s: int, drawn: Sequence[str]) -> "DataFrame":
    topic = f.when(f.col("topic").isin(*drawn), f.col("topic")).otherwise("others")
    window = f.window("utc", f"{window_s} seconds").start
    return (
        messages.groupBy(window.alias("start"), topic.alias("topic"))
        .agg(f.count("*").alias("messages"), f.sum(f.octet_length("payload")).alias("bytes"))
        .orderBy("start", "topic")
    )


def standing_of(changes: Rows) -> Rows:
    """The last change of each service."""
    last = {row["service"]: row for row in changes}
    order = {"dead": 0, "unresponsive": 1, "healthy": 2}
    return sorted(last.values(), key=lambda row: (order[row["state"]], row["service"]))


def took_of(outcomes: "DataFrame") -> "DataFrame":
    """Completed tasks by how long they took, in steps that double."""
    step = f.floor(f.log2(f.greatest(f.col("seconds"), f.lit(0.001)))).alias("step")
    return (
        outcomes.where("state = 'completed'")
        .groupBy("queue", step)
        .agg(f.count("*").alias("tasks"))
        .orderBy("step", "queue")
    )
