"""Logs of a running cluster, read over the client protocol: no disk need be shared.

Tasks read ranges in parallel, each through whichever node it finds. That one has the range, or
fetches it from a node that holds it; when it dies the task goes on at another.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from anyio.from_thread import start_blocking_portal

from busnode.client.bus import Bus, Start, connect
from busnode.client.gaps import Gap
from busnode.client.log_records import LogRecords, Records
from busnode.client.positions import Position
from busnode.pipeline.logs import Cursors, Extent, LogRange, equal_spans
from busnode.pipeline.record_rows import Span, Stretch
from busnode.segments.records import LogKey, Scanned, scan
from busnode.wire.errors import DataLost, TimedOut
from busnode.wire.ids import LogId, MsgNo, Pattern

PART_ROWS: Final = 200_000
"""What one task reads at most, where nothing else says: of small messages, as much as of a file."""

STALL_S: Final = 60.0
"""How long nothing may come of a range. A node that dies is replaced within seconds; a range that
its holder has taken along comes when that one returns, or not at all."""

NAME: Final = "spark"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ClusterRange(LogRange):
    """A range, and where the other logs of its topic ended: they are not wanted."""

    beside: tuple[tuple[LogId, int], ...]


class Cluster:
    """The logs of a cluster that match a pattern."""

    def __init__(self, url: str, pattern: Pattern, *, tolerant: bool = False) -> None:
        self._url = url
        self._pattern = pattern
        self._tolerant = tolerant
        self._extents: dict[LogId, Extent] = {}

    # Planning -------------------------------------------------------------------------------------

    def extents(self) -> dict[LogId, Extent]:
        ends, firsts = anyio.run(self._places, None, backend="trio")
        self._extents = {
            log_id: Extent(firsts.get(log_id, last_no) + 1, last_no)
            for log_id, last_no in ends.items()
        }
        return self._extents

    def at_time(self, utc_us: int) -> Cursors:
        _, found = anyio.run(self._places, utc_us, backend="trio")
        return found

    async def _places(self, utc_us: int | None) -> tuple[Cursors, Cursors]:
        """Where all logs end, and where they begin or have a moment. In this order: what expires
        in between is then not missed."""
        async with connect(self._url, name=NAME) as bus:
            async with bus.subscribe(self._pattern, start="latest", credit_bytes=0) as latest:
                ends = latest.position
            start: Start = "earliest" if utc_us is None else _EPOCH + timedelta(microseconds=utc_us)
            async with bus.subscribe(self._pattern, start=start, credit_bytes=0) as other:
                return _cursors(ends), _cursors(other.position)

    def ranges(self, log_id: LogId, span: Span, rows_max: int | None) -> list[LogRange]:
        if not self._extents:
            self.extents()
        extent = self._extents.get(log_id)
        first_no = span.last_no + 1 if extent is None else extent.first_no
        if span.first_no < first_no and not self._tolerant:
            raise DataLost(
                f"messages {span.first_no}–{min(first_no - 1, span.last_no)} of {log_id.topic} "
                f"({log_id.broker_id.hex()}) are on no node of {self._url} that is up: "
                "they have expired, or their holders are away"
            )
        beside = tuple(
            (each, known.last_no)
            for each, known in self._extents.items()
            if each.topic == log_id.topic and each != log_id
        )
        return [
            ClusterRange(log_id, part, beside)
            for part in equal_spans(span, rows_max or PART_ROWS)
            if part.last_no >= first_no
        ]

    # Reading --------------------------------------------------------------------------------------

    def read(self, part: LogRange) -> Iterator[Stretch]:
        assert isinstance(part, ClusterRange)
        with (
            start_blocking_portal("trio") as portal,
            portal.wrap_async_context_manager(self._reading(part)) as (bus, records),
        ):
            next_no, holder = part.span.first_no, ""
            while next_no <= part.span.last_no:
                for found in portal.call(self._next, records, part, next_no):
                    if isinstance(found, Gap):
                        next_no = self._passed(part, found, next_no)
                    elif found.log == part.log_id and found.last_no >= next_no:
                        holder = bus.statistics().home or holder  # that of what came before
                        yield Stretch(holder, self._verified(part.log_id, found), next_no)
                        next_no = found.last_no + 1

    @asynccontextmanager
    async def _reading(self, part: ClusterRange) -> AsyncGenerator[tuple[Bus, LogRecords]]:
        position = Position(
            {
                (log_id.broker_id, log_id.topic): MsgNo(msg_no)
                for log_id, msg_no in (*part.beside, (part.log_id, part.span.first_no - 1))
            }
        )
        async with (
            connect(self._url, name=NAME) as bus,
            bus.log_records(part.log_id.topic, position) as records,
        ):
            yield bus, records

    async def _next(
        self, records: LogRecords, part: ClusterRange, next_no: int
    ) -> list[Records | Gap]:
        try:
            with anyio.fail_after(STALL_S):
                return await records.next_records()
        except TimeoutError:
            raise TimedOut(
                f"message {next_no} of {part.log_id} has not come for {STALL_S:g} s: the nodes of "
                f"{self._url} that are up do not have it"
            ) from None

    def _passed(self, part: ClusterRange, gap: Gap, next_no: int) -> int:
        """Where to go on behind what nobody has."""
        last_no = gap.last or part.span.last_no
        theirs = (gap.broker_id, gap.topic) != part.log_id
        if theirs or last_no < next_no or gap.first > part.span.last_no:
            return next_no
        if not self._tolerant:
            raise DataLost(gap.text)
        return last_no + 1

    def _verified(self, log_id: LogId, found: Records) -> memoryview:
        """The bodies were verified as they came; both hashes again cost a hundredth of the rest."""
        view = memoryview(found.data)
        begun = Scanned(0, found.first_no, 0)
        good = scan(view, len(view), len(view), LogKey.of(log_id), begun)
        if good.at != len(view):
            raise DataLost(f"message {good.next_no} of {log_id} came damaged from {self._url}")
        return view


def _cursors(position: Position) -> Cursors:
    return {LogId(*log): int(msg_no) for log, msg_no in position.items()}
