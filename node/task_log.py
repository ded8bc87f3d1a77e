"""The tasks of one queue as they lie in a log, and the batches of them that are kept decoded.

A task that was just enqueued is most likely the next to be polled. So what is committed stays in
memory, decoded, while there is room for it, and until all of it was handed out once. What does not
fit, and what is tried again, is read from the log.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from busnode.node.batch_reader import Batches, BatchReader, Waiting
from busnode.node.publishing import OWN_PRODUCER
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.wire.batches import Columns, decode_columns
from busnode.wire.errors import BadBatch
from busnode.wire.frames import BatchHeader
from busnode.wire.ids import BrokerId, LogId
from busnode.wire.limits import MIB
from busnode.wire.task_options import TaskOptions, read_batch
from busnode.world.files import Files

logger = logging.getLogger(__name__)

FRESH_BYTES_MAX: Final = 64 * MIB
"""Batches kept decoded for all queues of a node together: a second of the fastest producers."""

READ_BYTES_MAX: Final = 4 * MIB
"""Batches that were read from the log again, kept for one queue: neighbours are asked for next."""

ROW_BYTES: Final = 100
"""What a frame has of each task beside its payload and headers."""

MESSAGE_BYTES: Final = 120
"""What a decoded message costs beside its payload."""


@dataclass(slots=True)
class TaskBatch:
    """A batch of tasks, decoded."""

    first_no: int
    utc_us: int
    columns: Columns
    options: list[TaskOptions | None] | None
    """None when no task has any."""
    size_bytes: int
    left: int
    """Tasks of it that were not handed out yet."""

    @property
    def next_no(self) -> int:
        return self.first_no + len(self.columns.payloads)

    def enqueued_us(self) -> list[int]:
        """When each was."""
        deltas = self.columns.utc_deltas_us
        if deltas is None:
            return [self.utc_us] * len(self.columns.payloads)
        return [max(0, self.utc_us - delta) for delta in deltas]

    def task(self, number: int, owner: BrokerId) -> tuple[bytes, dict[str, str], str, int]:
        """Payload, the user's headers, id, and when it was enqueued."""
        at = number - self.first_no
        columns = self.columns
        options = None if self.options is None else self.options[at]
        headers = None if columns.headers is None else columns.headers[at]
        said = {} if headers is None else {k: v for k, v in headers.items() if k[:1] != "$"}
        if options is not None and options.carried is not None:
            carried = options.carried
            return columns.payloads[at], said, carried.id, carried.enqueued_us
        deltas = columns.utc_deltas_us
        enqueued_us = self.utc_us if deltas is None else max(0, self.utc_us - deltas[at])
        return columns.payloads[at], said, f"{owner.hex()}-{number}", enqueued_us

    def tasks(self, first: int, count: int, owner: BrokerId) -> "TaskColumns":
        """The same of a run of tasks."""
        columns = self.columns
        if columns.headers is not None:
            rows = [self.task(number, owner) for number in range(first, first + count)]
            return TaskColumns(
                [row[0] for row in rows],
                [row[1] for row in rows],
                [row[2] for row in rows],
                [row[3] for row in rows],
            )
        at = first - self.first_no
        prefix = f"{owner.hex()}-"
        ids = [prefix + str(number) for number in range(first, first + count)]
        deltas = columns.utc_deltas_us
        if deltas is None:
            enqueued_us = [self.utc_us] * count
        else:
            enqueued_us = [max(0, self.utc_us - delta) for delta in deltas[at : at + count]]
        payloads = list(columns.payloads[at : at + count])
        return TaskColumns(payloads, [{}] * count, ids, enqueued_us)


class TaskColumns(NamedTuple):
    """What workers are told of some tasks."""

    payloads: list[bytes]
    headers: list[dict[str, str]]
    ids: list[str]
    enqueued_us: list[int]

    @property
    def sizes_bytes(self) -> list[int]:
        """About what each takes in a frame."""
        sizes = [len(payload) + ROW_BYTES for payload in self.payloads]
        if any(self.headers):
            for at, said in enumerate(self.headers):
                sizes[at] += sum(len(k) + 4 * len(v) for k, v in said.items())
        return sizes

    def cut(self, count: int) -> "TaskColumns":
        """The first ones."""
        payloads, headers, ids, enqueued_us = self
        return TaskColumns(payloads[:count], headers[:count], ids[:count], enqueued_us[:count])


class Room:
    """Bytes that decoded batches of all queues may take together."""

    def __init__(self, size_bytes: int = FRESH_BYTES_MAX) -> None:
        self.left_bytes = size_bytes


def decode_tasks(header: BatchHeader, body: memoryview) -> TaskBatch:
    """A batch of tasks; BadBatch where it cannot be read at all."""
    columns = decode_columns(body, header.count)
    options = read_batch(columns.headers, by_node=header.producer_id == OWN_PRODUCER)
    size_bytes = len(body) + MESSAGE_BYTES * header.count
    return TaskBatch(header.first_no, header.utc_us, columns, options, size_bytes, header.count)


class TaskLog:
    """One queue's log of one incarnation."""

    def __init__(self, files: Files, log: Log, room: Room, after_no: int = 0) -> None:
        self.log = log
        self._files = files
        self._room = room
        self._committed = BatchReader(files, log, after_no)
        self._fresh: dict[int, TaskBatch] = {}
        self._starts: list[int] = []
        """The first numbers of fresh batches, in order."""
        self._read: OrderedDict[int, TaskBatch] = OrderedDict()
        self._read_bytes = 0

    @property
    def log_id(self) -> LogId:
        return self.log.log_id

    # What is committed ----------------------------------------------------------------------------

    def committed(self) -> tuple[list[TaskBatch | Hole], bool]:
        """Batches that were committed since the last call, and whether that are all: if not, the
        disk must be waited for. Call `wait_committed` until it gives nothing."""
        found: list[TaskBatch | Hole] = []
        while True:
            try:
                piece = self._committed.read()
            except OSError as error:
                logger.warning("%s cannot be read, and is tried again: %s", self.log_id, error)
                return found, False
            if isinstance(piece, Waiting):
                return found, False
            if piece is None:
                return found, True
            if isinstance(piece, Hole):
                self.read_again(piece.first_no)  # another copy may fill it
                return found, False
            found += self._decoded(piece)

    async def wait_committed(self) -> list[TaskBatch | Hole]:
        """The next of them. OSError, or BadRecord: they come when it is called again."""
        piece = await self._committed.read_or_wait()
        return [] if piece is None else self._decoded(piece)

    def read_again(self, number: int) -> None:
        """Let a task be the next that comes."""
        self._committed = BatchReader(self._files, self.log, number - 1)

    def _decoded(self, piece: Batches | Hole) -> list[TaskBatch | Hole]:
        if isinstance(piece, Hole):
            return [piece]
        found: list[TaskBatch | Hole] = []
        for header, body in piece.batches:
            try:
                batch = decode_tasks(header, body)
            except BadBatch as error:
                found.append(_unreadable(header, error.text))
                continue
            found.append(batch)
            if self._room.left_bytes >= batch.size_bytes and not _is_for_later(batch):
                self._room.left_bytes -= batch.size_bytes
                self._fresh[batch.first_no] = batch
                self._starts.append(batch.first_no)
        return found

    # What is asked for ----------------------------------------------------------------------------

    def find(self, number: int) -> TaskBatch | None:
        """The batch with a task, if it is in memory."""
        at = bisect_right(self._starts, number) - 1
        if at >= 0:
            batch = self._fresh[self._starts[at]]
            if number < batch.next_no:
                return batch
        for batch in self._read.values():
            if batch.first_no <= number < batch.next_no:
                return batch
        return None

    async def load(self, number: int) -> TaskBatch | Hole | None:
        """The same from the log: what there is of it here. OSError, or BadRecord."""
        reader = BatchReader(self._files, self.log, number - 1)
        piece = await reader.read_or_wait()
        if not isinstance(piece, Batches):
            return piece
        wanted: TaskBatch | None = None
        for batch in self._decode_again(piece):
            if batch.first_no <= number < batch.next_no:
                wanted = batch
            if batch.first_no not in self._fresh and batch.first_no not in self._read:
                self._read[batch.first_no] = batch
                self._read_bytes += batch.size_bytes
            if self._read_bytes > READ_BYTES_MAX:
                break
        while self._read_bytes > READ_BYTES_MAX and len(self._read) > 1:
            self._read_bytes -= self._read.popitem(last=False)[1].size_bytes
        return wanted

    async def carried(self) -> AsyncIterator[TaskBatch]:
        """All batches that a node has written here, from the beginning. OSError, or BadRecord."""
        reader = BatchReader(self._files, self.log, self.log.first_no - 1)
        while (piece := await reader.read_or_wait()) is not None:
            if isinstance(piece, Batches):
                own = [each for each in piece.batches if each[0].producer_id == OWN_PRODUCER]
                for batch in self._decode_again(Batches(own)):
                    yield batch

    @staticmethod
    def _decode_again(piece: Batches) -> "list[TaskBatch]":
        found: list[TaskBatch] = []
        for header, body in piece.batches:
            try:
                found.append(decode_tasks(header, body))
            except BadBatch:
                continue
        return found

    def handed_out(self, batch: TaskBatch, count: int) -> None:
        """Some of its tasks are on their way, for the first time or once more."""
        batch.left -= count
        if batch.left <= 0 and self._fresh.pop(batch.first_no, None) is not None:
            self._starts.remove(batch.first_no)
            self._room.left_bytes += batch.size_bytes

    def close(self) -> None:
        """Give back the room."""
        self._room.left_bytes += sum(batch.size_bytes for batch in self._fresh.values())
        self._fresh.clear()
        self._starts.clear()


def _is_for_later(batch: TaskBatch) -> bool:
    """Whether none of it will be asked for soon."""
    options = batch.options
    return options is not None and all(
        each is not None and (each.delay_ms > 0 or each.due_us is not None) for each in options
    )


def _unreadable(header: BatchHeader, reason: str) -> Hole:
    return Hole(header.first_no, header.last_no, "", 0, header.length, reason)
