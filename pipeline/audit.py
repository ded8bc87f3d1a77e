"""`audit`: whether all copies of all logs are whole and the same, in two stages.

First the cheap one: how many messages each copy has, from where to where, and a sum over what their
headers say; for that no body is decoded. Then only those logs are read whole of which some copy
shows something: every number of each copy, with a hash of its message.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXTENT_COLUMNS: Final = (
    "broker_id string, topic string, msg_no bigint, producer_id bigint, producer_seq bigint, "
    "holder string"
)
"""What the first stage reads, of every copy; the second reads all columns of the suspects."""

LOG: Final = ("broker_id", "topic")
COPY: Final = (*LOG, "holder")

HOLE: Final = "hole"
"""Numbers that are missing between others of the same copy."""
REPEAT: Final = "repeat"
"""Numbers that are there more than once in one copy."""
SHORT: Final = "short"
"""Numbers that another copy has before or behind all of this one: expired, or not caught up."""
DIFFERENT: Final = "different"
"""Another message than the same number has at its origin, or where that is not known in the best
copy."""


def copy_extents(headers: "DataFrame") -> "DataFrame":
    """Stage one: a row for each copy of each log."""
    mark = f.xxhash64("msg_no", "producer_id", "producer_seq").cast("decimal(38,0)")
    return headers.groupBy(*COPY).agg(
        f.count("*").alias("messages"),
        f.min("msg_no").alias("first_no"),
        f.max("msg_no").alias("last_no"),
        f.sum(mark).alias("mark"),
    )


def suspects(extents: "DataFrame") -> "DataFrame":
    """Logs of which a copy has a hole or a repeat, or two copies are not the same."""
    whole = f.col("last_no") - f.col("first_no") + 1 == f.col("messages")
    return (
        extents.groupBy(*LOG)
        .agg(
            f.bool_and(whole).alias("whole"),
            f.count_distinct("first_no", "last_no", "messages", "mark").alias("kinds"),
        )
        .where(~f.col("whole") | (f.col("kinds") > 1))
        .select(*LOG)
    )


def findings(
    messages: "DataFrame", logs: "DataFrame | None" = None, origins: "DataFrame | None" = None
) -> "DataFrame":
    """Stage two: what is wrong, as ranges. `messages` are all copies, with all columns; of `logs`
    alone, or of all logs where none are named. `origins` tells who has written them, as far as that
    is known: broker_id, origin.

    A message is compared with that of the origin. Where that one has none under the number, or is
    not known, it is compared with that of the longest copy which has, and of several of these with
    the first by name. All is read once, and compared in windows of what was read.
    """
    if logs is not None:
        messages = messages.join(f.broadcast(logs), list(LOG), "left_semi")
    content = f.xxhash64(
        f.unix_micros("utc"), "id", f.to_json("headers"), "payload", "producer_id", "producer_seq"
    )
    numbers = messages.groupBy(*COPY, "msg_no").agg(
        f.count("*").alias("times"), f.min(content).alias("content")
    )
    nobody = f.lit(None).cast("string").alias("origin")
    known = (
        numbers.select("*", nobody)
        if origins is None
        else numbers.join(f.broadcast(origins), "broker_id", "left")
    )
    found = numbers_compared(known).select(*COPY, "origin", f.explode(_found()).alias("found"))
    return merged(found)


def numbers_compared(numbers: "DataFrame") -> "DataFrame":
    """Each number of each copy, with what its copy and its log have besides."""
    from pyspark.sql import Window  # noqa: PLC0415 - it asks for a running Spark

    copy, log = Window.partitionBy(*COPY), Window.partitionBy(*LOG)
    extents = numbers.withColumns(
        {
            "next_no": f.lead("msg_no").over(copy.orderBy("msg_no")),
            "first_no": f.min("msg_no").over(copy),
            "last_no": f.max("msg_no").over(copy),
            "held": f.count("*").over(copy),
        }
    )
    whole = extents.withColumns(
        {"log_first_no": f.min("msg_no").over(log), "log_last_no": f.max("msg_no").over(log)}
    )
    is_origin = f.coalesce(f.col("holder") == f.col("origin"), f.lit(False))
    truth = f.max_by("content", f.struct(is_origin, "held", _backwards("holder")))
    return whole.withColumn("truth", truth.over(Window.partitionBy(*LOG, "msg_no")))


def _found() -> "Column":
    """What one number of one copy shows, as ranges."""
    number, next_no = f.col("msg_no"), f.col("next_no")
    first_no, last_no = f.col("first_no"), f.col("last_no")
    log_first_no, log_last_no = f.col("log_first_no"), f.col("log_last_no")

    def range_of(what: str, shown: "Column", first: "Column", last: "Column") -> "Column":
        ranged = f.struct(f.lit(what).alias("what"), first.alias("first_no"), last.alias("last_no"))
        return f.when(shown, ranged)

    return f.array_compact(
        f.array(
            range_of(REPEAT, f.col("times") > 1, number, number),
            range_of(DIFFERENT, f.col("content") != f.col("truth"), number, number),
            range_of(HOLE, next_no > number + 1, number + 1, next_no - 1),
            range_of(
                SHORT, (number == first_no) & (first_no > log_first_no), log_first_no, first_no - 1
            ),
            range_of(
                SHORT, (number == last_no) & (last_no < log_last_no), last_no + 1, log_last_no
            ),
        )
    )


def merged(found: "DataFrame") -> "DataFrame":
    """Ranges of the same kind that follow on each other as one."""
    from pyspark.sql import Window  # noqa: PLC0415 - it asks for a running Spark

    rows = found.select(*COPY, "origin", "found.*")
    place = Window.partitionBy(*COPY, "what").orderBy("first_no")
    apart = f.col("first_no") > f.coalesce(f.lag("last_no").over(place), f.lit(-1)) + 1
    islands = rows.withColumn("apart", apart.cast("int"))
    islands = islands.withColumn("island", f.sum("apart").over(place))
    return (
        islands.groupBy(*COPY, "origin", "what", "island")
        .agg(f.min("first_no").alias("first_no"), f.max("last_no").alias("last_no"))
        .drop("island")
        .orderBy(*COPY, "first_no")
    )


def _backwards(name: str) -> "Column":
    """Sorts texts the other way round: of those that are alike otherwise the first is the most."""
    return f.translate(f.hex(name), "0123456789ABCDEF", "FEDCBA9876543210")
