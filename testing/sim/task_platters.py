"""What the disks know of tasks: where each lies, and what journals say became of it.

Files are read once, as they grow. The truth about a task is what is written on any disk; what a
node could have known is what is written on its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from busnode.tasks.journal import Failed, FencesReserved, Finished, JournalRecord, decode_record
from busnode.testing.sim.directory import File
from busnode.testing.sim.platter import Platter, Record
from busnode.wire.batches import Columns, decode_columns
from busnode.wire.carried_task import CARRIED, decode_carried
from busnode.wire.ids import BrokerId, LogId, Topic

TASKS: Final = "/$task/"
JOURNAL: Final = "/$sys/task/journal/"


class Place(NamedTuple):
    """A task in an owner's log, under a number of its own."""

    log_id: LogId
    number: int


def name_of(topic: str, task_id: str) -> str:
    """An id with its queue: two queues of an owner have the same ids."""
    return f"{topic.removeprefix(TASKS)} {task_id}"


class Kept(NamedTuple):
    """What a log has under a number."""

    id: str
    """With its queue."""
    payload: bytes
    origin: Place | None
    """From where it was carried."""


@dataclass(slots=True)
class _Read:
    """What was read of one file."""

    changes: int
    count: int = 0
    tasks: dict[int, Kept] = field(default_factory=dict[int, Kept])
    said: dict[int, JournalRecord] = field(default_factory=dict[int, JournalRecord])
    finished: set[int] = field(default_factory=set[int])
    failed: dict[int, int] = field(default_factory=dict[int, int])
    """Attempts that a journal tells of, by the task's number."""
    ceiling: int = 0


class TaskPlatters:
    """All disks of a run; `platters` changes while it goes on."""

    def __init__(self, platters: Mapping[str, Platter]) -> None:
        self._platters = platters
        self._files: dict[File, _Read] = {}

    # What a node could know -----------------------------------------------------------------------

    def settled_at(self, place: Place, verb: str, attempt: int) -> tuple[str, ...]:
        """On which disks a journal says that an attempt has ended so."""

        def says(read: _Read) -> bool:
            if verb == "complete":
                return place.number in read.finished
            return read.failed.get(place.number, 0) >= attempt or place.number in read.finished

        return self._names(place.log_id, says)

    def fenced_at(self, log_id: LogId, fence: int) -> tuple[str, ...]:
        """On which disks a journal says that fences up to this one may have been given out."""
        return self._names(log_id, lambda read: read.ceiling >= fence)

    def _names(self, log_id: LogId, says: Callable[[_Read], bool]) -> tuple[str, ...]:
        topic = JOURNAL + log_id.topic.removeprefix(TASKS)
        broker_id = log_id.broker_id
        return tuple(
            name
            for name, platter in self._platters.items()
            if any(map(says, self._of(platter, broker_id, topic)))
        )

    # What is true ---------------------------------------------------------------------------------

    def tasks(self) -> dict[Place, Kept]:
        """All that any disk has."""
        found: dict[Place, Kept] = {}
        for _, log_id, read in self._all(TASKS):
            for number, kept in read.tasks.items():
                found.setdefault(Place(log_id, number), kept)
        return found

    def journals(self) -> dict[LogId, list[JournalRecord]]:
        """By the log of the tasks: what its journal says, in order, on all disks together."""
        found: dict[LogId, dict[int, JournalRecord]] = {}
        for _, log_id, read in self._all(JOURNAL):
            name = log_id.topic.removeprefix(JOURNAL)
            found.setdefault(LogId(log_id.broker_id, Topic(TASKS + name)), {}).update(read.said)
        return {
            log_id: [record for _, record in sorted(said.items(), key=lambda each: each[0])]
            for log_id, said in found.items()
        }

    # Reading --------------------------------------------------------------------------------------

    def _all(self, prefix: str) -> Iterator[tuple[str, LogId, _Read]]:
        for name, platter in self._platters.items():
            for broker_id, _, file in platter.segments():
                records = platter.records(file, broker_id)
                if records and records[0].topic.startswith(prefix):
                    log_id = LogId(broker_id, Topic(records[0].topic))
                    yield name, log_id, self._read(file, records, broker_id)

    def _of(self, platter: Platter, broker_id: BrokerId, topic: str) -> Iterator[_Read]:
        for file in platter.files_of(broker_id):
            records = platter.records(file, broker_id)
            if records and records[0].topic == topic:
                yield self._read(file, records, broker_id)

    def _read(self, file: File, records: list[Record], broker_id: BrokerId) -> _Read:
        read = self._files.get(file)
        if read is None or read.changes != file.contents.changes:
            read = self._files[file] = _Read(file.contents.changes)
        for record in records[read.count :]:
            columns = _columns(file, record)
            if record.topic.startswith(JOURNAL):
                for number, payload in enumerate(columns.payloads, record.first_no):
                    _note(read, number, decode_record(payload))
            else:
                log_id = LogId(broker_id, Topic(record.topic))
                for number in record.numbers:
                    read.tasks[number] = _kept(columns, number - record.first_no, log_id, number)
        read.count = len(records)
        return read


def _columns(file: File, record: Record) -> Columns:
    body_at = record.offset + 80 + len(record.topic.encode())
    body = bytes(file.contents.cached[body_at : record.offset + record.length])
    return decode_columns(body, record.last_no - record.first_no + 1)


def _kept(columns: Columns, at: int, log_id: LogId, number: int) -> Kept:
    headers = columns.headers[at] if columns.headers is not None else None
    payload = columns.payloads[at]
    if headers is None or CARRIED not in headers:
        task_id = f"{log_id.broker_id.hex()}-{number}"
        return Kept(name_of(log_id.topic, task_id), payload, None)
    carried = decode_carried(headers[CARRIED])
    assert carried.origin is not None
    origin = Place(LogId(carried.origin, log_id.topic), carried.number)
    return Kept(name_of(log_id.topic, carried.id), payload, origin)


def _note(read: _Read, number: int, record: JournalRecord) -> None:
    read.said[number] = record
    match record:
        case Finished(_, runs):
            for first, last in runs:
                read.finished.update(range(first, last + 1))
        case Failed():
            read.failed.update(zip(record.numbers, record.attempts, strict=True))
        case FencesReserved(ceiling):
            read.ceiling = max(read.ceiling, ceiling)
        case _:
            pass
