"""Where a table's messages come from, as an interface: data directories, or a running cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from busnode.pipeline.record_rows import Span, Stretch
from busnode.wire.ids import LogId

Cursors = dict[LogId, int]
"""For each log the last message that is done; 0 before the first."""


class Extent(NamedTuple):
    """How far a log reaches: from its first message that is there to its last."""

    first_no: int
    last_no: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of one log that one task reads: a partition of Spark, so all of it can be pickled.

    What a kind of logs needs besides to read it is in what derives from this.
    """

    log_id: LogId
    span: Span


class Logs(Protocol):
    """The logs that match a table's pattern. The driver plans with it, the tasks read; it can be
    pickled."""

    def extents(self) -> dict[LogId, Extent]:
        """All that there is now. Whoever is asked again sees what came since."""
        ...

    def at_time(self, utc_us: int) -> Cursors:
        """For each log the last message before which all are older than a moment."""
        ...

    def ranges(self, log_id: LogId, span: Span, rows_max: int | None) -> list[LogRange]:
        """All of a span, in parts for as many tasks.

        With `rows_max` the parts depend on the span alone, so that a batch which is run again has
        the same; else they are as they suit the files. DataLost where something is missing, unless
        the logs are tolerant.
        """
        ...

    def read(self, part: LogRange) -> Iterator[Stretch]:
        """The records of a part, verified, in order; some may begin before it or end behind it.

        DataLost, with file and range, where they cannot be had, unless the logs are tolerant.
        """
        ...


def equal_spans(span: Span, rows_max: int) -> list[Span]:
    """A span in parts of so many messages, counted from its first."""
    return [
        Span(first, min(first + rows_max - 1, span.last_no), span.since_us, span.before_us)
        for first in range(span.first_no, span.last_no + 1, rows_max)
    ]
