"""Reading a table of messages at once: what is there when it is planned, in parts for tasks."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from busnode.pipeline.arrow import RecordBatch, Schema
from busnode.pipeline.cluster import Cluster
from busnode.pipeline.directories import Directories
from busnode.pipeline.filters import Chosen
from busnode.pipeline.logs import Cursors, Extent, LogRange, Logs
from busnode.pipeline.options import Place, SourceOptions
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.wire.errors import DataLost
from busnode.wire.ids import LogId
from busnode.wire.topics import matches


class Part(InputPartition):
    """What one task reads, if anything."""

    def __init__(self, part: LogRange) -> None:
        super().__init__(None)
        self.part = part


class _PushFilters:
    """Takes filters where Spark pushes them down. Where it does not (that is a setting of the
    session, which a reader cannot see) it refuses readers that have this method; so this one passes
    for the method that every reader inherits."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._chosen.add(filters)
        return filters


class MessageReader(DataSourceReader):
    """Reads what is there when it is planned."""

    def __init__(self, options: SourceOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema
        self._logs = open_logs(options)
        self._chosen = Chosen()
        self.pushFilters = _PushFilters(self._chosen)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        extents = self._logs.extents()
        check_known(self._options, extents)
        starts = places(self._options.start, extents, self._logs)
        ends = places(self._options.end, extents, self._logs, ends=True)
        parts: list[InputPartition] = []
        for log_id, extent in extents.items():
            if not self._chosen.has(log_id):
                continue
            span = self._chosen.within(
                Span(
                    starts.get(log_id, extent.first_no - 1) + 1,
                    min(ends.get(log_id, extent.last_no), extent.last_no),
                    self._options.start if isinstance(self._options.start, int) else None,
                    self._options.end if isinstance(self._options.end, int) else None,
                )
            )
            if span.first_no <= span.last_no:
                parts += map(Part, self._logs.ranges(log_id, span, None))
        return parts

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_part(partition, self._logs, self._schema, self._options)


def open_logs(options: SourceOptions) -> Logs:
    if options.url is not None:
        return Cluster(options.url, options.pattern, tolerant=not options.fail_on_data_loss)
    return Directories(
        options.paths,
        options.pattern,
        tolerant=not options.fail_on_data_loss,
        every_copy=options.every_copy,
    )


def places(
    place: Place, extents: dict[LogId, Extent], logs: Logs, *, ends: bool = False
) -> Cursors:
    """The cursor that a place means in each log."""
    match place:
        case "earliest":
            return {log_id: extent.first_no - 1 for log_id, extent in extents.items()}
        case "latest":
            return {log_id: extent.last_no for log_id, extent in extents.items()}
        case int() if ends:  # what comes later may be older: each message is looked at
            return {log_id: extent.last_no for log_id, extent in extents.items()}
        case int():
            return logs.at_time(place)
        case _:
            return {log_id: place.get(log_id, 0) for log_id in extents}


def check_known(options: SourceOptions, extents: dict[LogId, Extent]) -> None:
    """DataLost where a position names what no copy has: a cursor in a log that is not there, or an
    end behind the last message of one. Nobody knows what was there."""
    if not options.fail_on_data_loss:
        return
    for name, place in (("start", options.start), ("end", options.end)):
        for log_id, msg_no in place.items() if isinstance(place, dict) else ():
            extent = extents.get(log_id)
            known_no = 0 if extent is None else extent.last_no
            lost = extent is None if name == "start" else True
            if matches(options.pattern, log_id.topic) and msg_no > known_no and lost:
                raise DataLost(
                    f"option {name}: message {msg_no} of {log_id.topic} "
                    f"({log_id.broker_id.hex()}) is in no copy: "
                    + ("there is no such log" if extent is None else f"they end at {known_no}")
                )


def read_part(
    partition: Any, logs: Logs, schema: Schema, options: SourceOptions
) -> Iterator[RecordBatch]:
    """The rows of one task."""
    if not isinstance(partition, Part):  # Spark makes one of its own where there is none
        return
    part = partition.part
    rows = RecordRows(schema, part.log_id, part.span, tolerant=not options.fail_on_data_loss)
    for stretch in logs.read(part):
        yield from rows.add(stretch)
    yield from rows.finish()
