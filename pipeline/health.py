"""`health`: which services are healthy, unresponsive or dead, from their heartbeats.

A heartbeat is any persistent message of a service: it is named by the header `service`, or else by
the topic. As a stream, changes come as beats do, and silence is noticed when the watermark passes;
as a table, silence is judged as of one moment.
"""
# ruff: noqa: ARG002 - Spark says what the methods of a processor take, by name

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from busnode.pipeline.pulse import Change, Patience, Pulse

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

TOPICS: Final = "/heartbeat/*"
COLUMNS: Final = "topic string, utc timestamp, headers map<string,string>"
"""What is read for it."""

CHANGES: Final = "service string, at timestamp, state string, beat timestamp"
STATE: Final = "state string, beat_us bigint, beats bigint"
LATENESS: Final = "5 seconds"
"""How much later than others a beat may reach a stream."""

ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""What Spark wants of a session whose streams keep state in this way."""


class _Watch(StatefulProcessor):
    """Follows one service with the state that Spark keeps for it."""

    def __init__(self, patience: Patience, *, timers: bool) -> None:
        self._patience = patience
        self._timers = timers
        self._handle: Any = None
        self._kept: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        untyped: Any = handle
        self._handle = handle
        self._kept = untyped.getValueState("pulse", STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        pulse = self._pulse()
        beats = sorted((row["utc_us"], not row["beat"]) for row in rows)
        changes: list[Change] = []
        for at_us, silent in beats:
            changes += pulse.passed(at_us) if silent else pulse.beat(at_us)
        return self._told(key, pulse, changes)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        pulse = self._pulse()
        return self._told(key, pulse, pulse.passed(expiredTimerInfo.getExpiryTimeInMs() * 1000))

    def close(self) -> None:
        """Nothing is open."""

    def _pulse(self) -> Pulse:
        return Pulse(self._patience, *(self._kept.get() or ()))  # None before the first row

    def _told(self, key: Any, pulse: Pulse, changes: list[Change]) -> Iterator[Row]:
        self._kept.update((pulse.state, pulse.beat_us, pulse.beats))
        if self._timers:
            for expiry_ms in list(self._handle.listTimers()):
                self._handle.deleteTimer(expiry_ms)
            if pulse.next_us is not None:
                self._handle.registerTimer(-(-pulse.next_us // 1000))
        return iter(
            [
                Row(service=key[0], at_us=each.at_us, state=each.state, beat_us=each.beat_us)
                for each in changes
            ]
        )


def heartbeats(messages: "DataFrame") -> "DataFrame":
    """Which service has given a sign of life when."""
    service = f.coalesce(f.col("headers")["service"], "topic")
    return messages.select(service.alias("service"), "utc")


def health(beats: "DataFrame", as_of: "datetime", patience: Patience | None = None) -> "DataFrame":
    """All changes that there were up to a moment, of a table of beats: service, at, state, beat."""
    known = beats.where(f.col("utc") <= f.lit(as_of)).withColumn("beat", f.lit(True))
    ticks = known.select("service", f.lit(as_of).alias("utc"), f.lit(False).alias("beat"))
    return _watched(known.unionByName(ticks.distinct()), patience, timers=False)


def health_stream(beats: "DataFrame", patience: Patience | None = None) -> "DataFrame":
    """Changes as they are noticed, of a stream of beats. Silence is noticed when beats of others
    tell that time has passed."""
    rows = beats.withWatermark("utc", LATENESS).withColumn("beat", f.lit(True))
    return _watched(rows, patience, timers=True)


def _watched(rows: "DataFrame", patience: Patience | None, *, timers: bool) -> "DataFrame":
    keyed: Any = rows.withColumn("utc_us", f.unix_micros("utc")).groupBy("service")
    changes: DataFrame = keyed.transformWithState(
        _Watch(patience or Patience(), timers=timers),
        "service string, at_us bigint, state string, beat_us bigint",
        "append",
        "EventTime" if timers else "None",
    )
    return changes.select(
        "service",
        f.timestamp_micros("at_us").alias("at"),
        "state",
        f.timestamp_micros("beat_us").alias("beat"),
    )


def standing(changes: "DataFrame") -> "DataFrame":
    """How each service is by its last change, the worst first."""
    order = f.when(f.col("state") == "dead", 0).when(f.col("state") == "unresponsive", 1)
    last = changes.groupBy("service").agg(
        f.max_by(f.struct("state", f.col("at").alias("since"), "beat"), "at").alias("last"),
        f.count("*").alias("changes"),
    )
    rows = last.select("service", "last.*", "changes")
    return rows.orderBy(order.otherwise(2), "service")
