"""The sink: rows of a table as persistent messages, each once.

A task packs its rows into batches by topic, in the order of the rows, and publishes them in a
window: it waits for acks at its end only. Which rows make a batch depends on the rows and on how
many of them Spark hands over at once, which is a setting, and never on time; `numbering` says why.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from busnode.client.bus import Bus, Require, connect
from busnode.client.publisher import Publisher
from busnode.pipeline.arrow import RecordBatch, pa
from busnode.pipeline.numbering import Numbering
from busnode.pipeline.options import SinkOptions
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.errors import BadOption, BadTopic, LimitReached
from busnode.wire.ids import Topic
from busnode.wire.topics import check_topic
from busnode.world.real_entropy import RealEntropy

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 192 * 1024
"""A batch of messages ends at either: from there on a larger one gains nothing."""

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""What may wait in batches that are not full, where rows are of many topics."""

NAME: Final = "spark"

COLUMNS: Final[dict[str, Any]] = {
    "topic": StringType(),
    "payload": BinaryType(),
    "id": StringType(),
    "headers": MapType(StringType(), StringType()),
}

QUERY: Final = "sql.streaming.queryId"
EPOCH: Final = "streaming.sql.batchId"


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """BadOption, with its name, for a column that is missing, unknown or of another type."""
    for column in schema.fields:
        kind = COLUMNS.get(column.name)
        if kind is None:
            raise BadOption(f"column {column.name!r}: a message has {', '.join(COLUMNS)}; drop it")
        if column.dataType.simpleString() != kind.simpleString():
            raise BadOption(
                f"column {column.name!r} is {column.dataType.simpleString()}; a message's is "
                f"{kind.simpleString()}: cast it"
            )
    if "payload" not in schema.names:
        raise BadOption("column 'payload' is missing: what a message holds, as binary")
    if ("topic" in schema.names) == (options.topic is not None):
        given = "both are there" if options.topic else "neither is there"
        raise BadOption(f"the topic comes from the column or from the option topic: {given}")


@dataclass
class Published(WriterCommitMessage):
    """What one task has published."""

    messages: int


class MessageWriter(DataSourceArrowWriter):
    """Publishes a table. A task that is run again publishes nothing twice."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = f"{RealEntropy().u64():016x}"

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return publish(self._options, Numbering(self._run, 0, _task().partitionId()), iterator)


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream. A micro-batch that is run again publishes nothing twice."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, epoch = task.getLocalProperty(QUERY), task.getLocalProperty(EPOCH)
        assert query is not None, f"Spark does not tell the task its {QUERY}"
        assert epoch is not None, f"Spark does not tell the task its {EPOCH}"
        numbering = Numbering(query, int(epoch), task.partitionId())
        return publish(self._options, numbering, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: each task has waited for its acks."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays; when the batch is run again it is dropped."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def publish(
    options: SinkOptions, numbering: Numbering, batches: Iterator[RecordBatch]
) -> Published:
    """Publish all rows and wait until they are acked. Raises what a node refuses."""
    messages = 0
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(_publishing(options, numbering)) as bus,
    ):
        packing = Packing(options.topic)
        outlet = _Outlet(portal, bus, numbering, options)
        for batch in batches:
            messages += batch.num_rows
            for topic, columns in packing.add(batch):
                outlet.send(topic, columns)
        for topic, columns in packing.finish():
            outlet.send(topic, columns)
        outlet.flush()
    return Published(messages)


@asynccontextmanager
async def _publishing(options: SinkOptions, numbering: Numbering) -> AsyncGenerator[Bus]:
    async with connect(options.url, name=NAME, producer_id=numbering.producer_id) as bus:
        yield bus


class _Outlet:
    """Publishes batches under their numbers."""

    def __init__(
        self, portal: BlockingPortal, bus: Bus, numbering: Numbering, options: SinkOptions
    ) -> None:
        self._portal = portal
        self._bus = bus
        self._numbering = numbering
        self._require: Require = options.require
        self._publishers: dict[Topic, Publisher] = {}

    def send(self, topic: Topic, columns: Columns) -> None:
        if self._numbering.is_full:
            raise LimitReached(
                "one task publishes at most 65,535 batches of messages: repartition the table"
            )
        publisher = self._publishers.get(topic)
        if publisher is None:
            publisher = self._bus.publisher(topic, persistent=True, require=self._require)
            self._publishers[topic] = publisher
        seq = self._numbering.next_seq(topic.encode() + b"\0" + encode_columns(columns))
        self._portal.call(publisher.send_numbered, columns, seq)

    def flush(self) -> None:
        for publisher in self._publishers.values():
            self._portal.call(publisher.flush)


@dataclass(slots=True)
class _Waiting:
    """Rows of one topic that do not fill a batch yet."""

    payloads: list[bytes] = field(default_factory=list[bytes])
    ids: list[str | None] = field(default_factory=list[str | None])
    headers: list[dict[str, str] | None] = field(default_factory=list[dict[str, str] | None])
    size_bytes: int = 0

    def columns(self) -> Columns:
        return Columns(
            self.payloads,
            None,
            self.ids if any(each is not None for each in self.ids) else None,
            self.headers if any(self.headers) else None,
        )


class Packing:
    """Rows into batches of one topic each. Pure: the same rows always make the same batches."""

    def __init__(self, topic: Topic | None) -> None:
        self._topic = topic
        self._waiting: dict[Topic, _Waiting] = {}
        self._waiting_bytes = 0

    def add(self, batch: RecordBatch) -> Iterator[tuple[Topic, Columns]]:
        """Take rows; the batches that are full with them."""
        if not batch.num_rows:
            return
        if batch.column("payload").null_count:
            raise BadOption("column 'payload' has a null: a message without payload is b''")
        for topic, rows in self._by_topic(batch):
            yield from self._fill(topic, rows)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[Topic, Columns]]:
        """What is left, in the order in which topics came."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for topic, each in waiting.items():
            yield topic, each.columns()

    def _by_topic(self, batch: RecordBatch) -> Iterator[tuple[Topic, RecordBatch]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise BadOption("column 'topic' has a null: each message needs a topic")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, text in enumerate(encoded.dictionary.to_pylist()):
            try:
                topic = check_topic(text)
            except BadTopic as error:
                raise BadOption(f"column 'topic': {error.text}") from error
            yield topic, batch.filter(pa.array(codes == code))

    def _fill(self, topic: Topic, rows: RecordBatch) -> Iterator[tuple[Topic, Columns]]:
        payloads = cast("list[bytes]", rows.column("payload").to_pylist())
        count = len(payloads)
        ids = _column(rows, "id")
        maps = _column(rows, "headers")
        sizes = np.cumsum(np.fromiter(map(len, payloads), np.int64, count))
        at = 0
        while at < count:
            waiting = self._waiting.setdefault(topic, _Waiting())
            before = int(sizes[at - 1]) if at else 0
            room = before + BATCH_BYTES - waiting.size_bytes
            end = min(
                at + BATCH_ROWS - len(waiting.payloads),
                max(int(np.searchsorted(sizes, room, "right")), at + (not waiting.payloads)),
                count,
            )
            waiting.payloads += payloads[at:end]
            waiting.ids += [None] * (end - at) if ids is None else ids[at:end]
            waiting.headers += [None] * (end - at) if maps is None else map(_headers, maps[at:end])
            added = (int(sizes[end - 1]) if end else 0) - before
            waiting.size_bytes += added
            self._waiting_bytes += added
            at = end
            if at < count or len(waiting.payloads) == BATCH_ROWS:
                del self._waiting[topic]
                self._waiting_bytes -= waiting.size_bytes
                yield topic, waiting.columns()


def _column(rows: RecordBatch, name: str) -> list[Any] | None:
    if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
        return None
    return cast("list[Any]", rows.column(name).to_pylist())


def _headers(pairs: list[tuple[str, str]] | None) -> dict[str, str] | None:
    return dict(pairs) if pairs else None
