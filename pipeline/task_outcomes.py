"""`tasks`: what became of the tasks of queues, how often each was tried, and how long it took.

Tasks stand in the logs `/$task/<queue>`, what became of them in journals beside these. A task that
was carried to another log, because its node was gone or started anew, keeps its id there; it is one
task, whose end counts wherever it was.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from busnode.pipeline.journal_rows import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TASKS: Final = "/$task/"
TASK_LOGS: Final = f"{TASKS}*"
JOURNALS: Final = f"{JOURNAL}*"
COLUMNS: Final = (
    "broker_id string, topic string, msg_no bigint, utc timestamp, headers map<string,string>"
)
"""What is read of tasks."""

MOVED: Final = ("carried", "elsewhere", "repeated")
"""Ends of a copy of a task, and none of the task."""

RANK: Final = {"completed": 5, "deleted": 4, "over": 3, "dead": 2, "retrying": 1, "waiting": 0}
"""Of several copies of a task, the state that has gone furthest is that of the task."""


def task_outcomes(tasks: "DataFrame", journal: "DataFrame") -> "DataFrame":
    """A row for each task: id, queue, enqueued, state, attempts, ended, seconds, error.

    `tasks` are messages of `TASK_LOGS`, `journal` is what `journal_rows` has made of `JOURNALS`.
    """
    carried = f.col("headers")["$task"]
    enqueued_us = f.get_json_object(carried, "$.enqueued_us").cast("bigint")
    copies = tasks.select(
        "broker_id",
        f.expr(f"substring(topic, {len(TASKS) + 1})").alias("queue"),
        "msg_no",
        f.coalesce(
            f.get_json_object(carried, "$.id"), f.concat_ws("-", "broker_id", "msg_no")
        ).alias("id"),
        f.coalesce(f.timestamp_micros(enqueued_us), "utc").alias("enqueued"),
        f.coalesce(f.get_json_object(carried, "$.attempts").cast("bigint"), f.lit(0)).alias(
            "before"
        ),
    )
    told = journal.withColumn("msg_no", f.explode(f.sequence("first_no", "last_no")))
    last = f.max_by(f.struct("what", "at", "error", "worker"), "record")
    ends = told.groupBy("broker_id", "queue", "msg_no").agg(
        last.alias("last"),
        f.max("attempt").alias("failed"),
        f.max_by("error", f.when(f.col("error").isNotNull(), f.col("record"))).alias("error"),
    )
    joined = copies.join(ends, ["broker_id", "queue", "msg_no"], "left")
    moved = f.col("last.what").isin(*MOVED)
    state = (
        f.when(f.col("last.what").isNull() | (f.col("last.what") == "requeued"), "waiting")
        .when(f.col("last.what") == "failed", "retrying")
        .when(moved, "waiting")
        .otherwise(f.col("last.what"))
    )
    states = joined.withColumn("state", state).withColumn("rank", _rank("state"))
    ended = f.when(f.col("state").isin("completed", "dead", "deleted", "over"), f.col("last.at"))
    failed = f.coalesce("failed", "before")
    attempts = f.when(f.col("state") == "completed", failed + 1).otherwise(failed)
    whole = states.select("queue", "id", "enqueued", "state", "rank", ended.alias("ended"),
                          attempts.alias("attempts"), "error")  # fmt: skip
    furthest = f.max_by(f.struct("state", "ended"), f.struct("rank", "ended"))
    return (
        whole.groupBy("queue", "id")
        .agg(
            f.min("enqueued").alias("enqueued"),
            furthest.alias("furthest"),
            f.max("attempts").alias("attempts"),
            f.max_by("error", "attempts").alias("error"),
        )
        .select("queue", "id", "enqueued", "furthest.*", "attempts", "error")
        .withColumn("seconds", (f.unix_micros("ended") - f.unix_micros("enqueued")) / 1e6)
    )


def _rank(name: str) -> "Column":
    return f.create_map(*(f.lit(part) for pair in RANK.items() for part in pair))[f.col(name)]


def queue_totals(outcomes: "DataFrame") -> "DataFrame":
    """For each queue how many tasks are in which state, and how long completed ones took."""
    took = f.when(f.col("state") == "completed", f.col("seconds"))
    return (
        outcomes.groupBy("queue")
        .agg(
            f.count("*").alias("tasks"),
            *(f.count_if(f.col("state") == state).alias(state) for state in RANK),
            f.sum("attempts").alias("attempts"),
            f.max("attempts").alias("attempts_max"),
            f.percentile_approx(took, [0.5, 0.95, 0.99], 1000).alias("took"),
            f.max(took).alias("seconds_max"),
        )
        .withColumns({f"seconds_p{p}": f.col("took")[at] for at, p in enumerate((50, 95, 99))})
        .drop("took")
        .orderBy(f.desc("tasks"), "queue")
    )


def dead_letters(outcomes: "DataFrame") -> "DataFrame":
    """Dead letters by queue and error, the most frequent first."""
    dead = outcomes.where("state = 'dead'").groupBy("queue", "error")
    return dead.agg(
        f.count("*").alias("tasks"),
        f.min("ended").alias("first"),
        f.max("ended").alias("last"),
        f.round(f.avg("attempts"), 1).alias("attempts"),
    ).orderBy(f.desc("tasks"), "queue", "error")
