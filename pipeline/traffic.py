"""`traffic`: how much goes where, how large it is and how late, in windows of time."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = (
    "topic string, utc timestamp, id string, headers map<string,string>, payload binary, "
    "producer_id bigint"
)
"""What is read for it."""

WINDOW: Final = "1 minute"
SENT: Final = "sent_us"
"""The header by which a message tells when what it is about has happened: µs since 1970."""

PERCENTILES: Final = (0.5, 0.95, 0.99)
ACCURACY: Final = 1000
"""Of percentiles: right to a thousandth of the rank."""


def timed(messages: "DataFrame", sent_header: str = SENT) -> "DataFrame":
    """What counts of messages, with `latency_ms`: since the time in a header, or else since the
    first message with the same id, on whichever topic; null for that first one, and for what tells
    neither."""
    from pyspark.sql import Window  # noqa: PLC0415 - it asks for a running Spark

    utc_us = f.unix_micros("utc")
    told_us = f.try_to_number(f.col("headers")[sent_header], f.lit("9" * 18)).cast("bigint")
    first_us = f.min(utc_us).over(Window.partitionBy("id"))
    ids = messages.where("id is not null").withColumn("first_us", first_us)
    others = messages.where("id is null").withColumn("first_us", f.lit(None).cast("bigint"))
    since_us = f.coalesce(told_us, f.when(f.col("first_us") < utc_us, f.col("first_us")))
    whole = ids.unionByName(others)
    latency_ms = ((utc_us - since_us) / 1000).alias("latency_ms")
    return whole.select("topic", "utc", "payload", "producer_id", latency_ms)


def traffic(messages: "DataFrame", window: str = WINDOW, sent_header: str = SENT) -> "DataFrame":
    """For each topic, producer and window: messages, bytes, rates, and percentiles of sizes and
    latencies. A row for each that has a message; the windows are as long as `window` says."""
    size = f.octet_length("payload")
    rows = timed(messages, sent_header).groupBy(
        f.window("utc", window).alias("window"), "topic", f.hex("producer_id").alias("producer")
    )
    found = rows.agg(
        f.count("*").alias("messages"),
        f.sum(size).alias("bytes"),
        _percentiles(size).alias("sizes"),
        f.max(size).alias("size_max"),
        f.count("latency_ms").alias("timed"),
        _percentiles(f.col("latency_ms")).alias("latencies"),
        f.max("latency_ms").alias("latency_ms_max"),
    )
    return with_rates(found).orderBy("start", "topic", "producer")


def topic_totals(messages: "DataFrame", sent_header: str = SENT) -> "DataFrame":
    """The same for each topic and all of the time from its first message to its last."""
    size = f.octet_length("payload")
    return (
        timed(messages, sent_header)
        .groupBy("topic")
        .agg(
            f.count("*").alias("messages"),
            f.sum(size).alias("bytes"),
            f.count_distinct("producer_id").alias("producers"),
            f.min("utc").alias("first"),
            f.max("utc").alias("last"),
            _percentiles(size).alias("sizes"),
            f.count("latency_ms").alias("timed"),
            _percentiles(f.col("latency_ms")).alias("latencies"),
        )
        .select(
            "topic",
            "messages",
            "bytes",
            "producers",
            "first",
            "last",
            *_named("size", "sizes", "bigint"),
            "timed",
            *_named("latency_ms", "latencies", "double"),
        )
        .orderBy(f.desc("messages"), "topic")
    )


def with_rates(found: "DataFrame") -> "DataFrame":
    start, end = f.col("window.start"), f.col("window.end")
    seconds = (f.unix_micros(end) - f.unix_micros(start)) / 1e6
    return found.select(
        start.alias("start"),
        seconds.alias("seconds"),
        "topic",
        "producer",
        "messages",
        "bytes",
        (f.col("messages") / seconds).alias("messages_per_s"),
        (f.col("bytes") / seconds).alias("bytes_per_s"),
        *_named("size", "sizes", "bigint"),
        "size_max",
        "timed",
        *_named("latency_ms", "latencies", "double"),
        "latency_ms_max",
    )


def _percentiles(column: "Column") -> "Column":
    return f.percentile_approx(column, list(PERCENTILES), ACCURACY)


def _named(name: str, listed: str, kind: str) -> "list[Column]":
    return [
        f.col(listed)[place].cast(kind).alias(f"{name}_p{round(share * 100)}")
        for place, share in enumerate(PERCENTILES)
    ]
