"""What the disks hold for sure: read from the platters, past the code that is judged by it.

It knows the layout of a record (docs/protocol.md) and nothing of stores, indexes and recovery. What
it finds is what a power loss in this moment would leave, as far as its hashes are right.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh3_64_intdigest

from busnode.testing.sim.directory import Directory, File
from busnode.testing.sim.disk import SimDisk
from busnode.wire.ids import BrokerId, LogId, Topic

LOGS: Final = "/data/logs"
RECORDS_AT: Final = 512
_HEADER: Final = struct.Struct("<IBBBB16sQQQIBBxxQQQ")
_PLAIN: Final = (1, 1, 0, 0)
"""Type and version of a batch; on a disk it has no transport flags."""
_MARK_AT: Final = 8
"""Where in a record its brokerId stands, by which the next one is found behind damage."""


class Record(NamedTuple):
    """One good record of a log: a batch as it lies in a file."""

    topic: str
    first_no: int
    last_no: int
    offset: int
    length: int
    body_hash: int
    utc_us: int
    """By its producer's clock."""

    @property
    def numbers(self) -> range:
        return range(self.first_no, self.last_no + 1)


@dataclass(slots=True)
class _Read:
    """What was read of one file, and from where to go on."""

    changes: int
    at: int = RECORDS_AT
    records: list[Record] = field(default_factory=list[Record])
    damaged: bool = False


class Platter:
    """One disk. What was read once is not read again until it is damaged, cut or lost."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self._read: dict[File, _Read] = {}
        self._topics: dict[File, str] = {}
        self._version = -1
        self._listed: dict[BrokerId, list[tuple[str, File]]] = {}
        """Segments, as long as no name changes on the disk."""
        self._about: dict[LogId, list[File]] = {}
        """Of those the files that may have something of a log."""

    def holds(self, log_id: LogId, msg_no: int) -> bool:
        """Whether a message is safe here."""
        for file in reversed(self._files_about(log_id)):  # mostly it is new
            for record in reversed(self.records(file, log_id.broker_id)):
                if record.topic != log_id.topic:
                    break
                if record.first_no <= msg_no <= record.last_no:
                    return True
        return False

    def has_beyond(self, log_id: LogId, msg_no: int) -> bool:
        """Whether a later message of the same log is safe here."""
        return any(
            record.topic == log_id.topic and record.last_no > msg_no
            for file in self._files_about(log_id)
            for record in self.records(file, log_id.broker_id)[-1:]
        )

    def begins_behind(self, log_id: LogId, msg_no: int) -> bool:
        """Whether there is a log here, and all that is safe of it comes later."""
        numbers = self.contents().get(log_id, {})
        return bool(numbers) and min(numbers) > msg_no

    def brokers(self) -> list[BrokerId]:
        entries = self.disk.durable_entries(LOGS)
        return sorted(BrokerId(bytes.fromhex(name)) for name in entries if len(name) == 32)

    def contents(self) -> dict[LogId, dict[int, Record]]:
        """All that is safe here: of each log its numbers."""
        found: dict[LogId, dict[int, Record]] = {}
        for broker_id in self.brokers():
            for _, file in self._segments(broker_id):
                for record in self.records(file, broker_id):
                    numbers = found.setdefault(LogId(broker_id, Topic(record.topic)), {})
                    for number in record.numbers:
                        numbers[number] = record
        return found

    def payloads(self) -> Iterator[tuple[LogId, int, bytes]]:
        """Every message that is safe here."""
        for broker_id in self.brokers():
            for _, file in self._segments(broker_id):
                for record in self.records(file, broker_id):
                    log_id = LogId(broker_id, Topic(record.topic))
                    for place, payload in enumerate(payloads_of(file, record)):
                        yield log_id, record.first_no + place, payload

    def segments(self) -> Iterator[tuple[BrokerId, str, File]]:
        for broker_id in self.brokers():
            for path, file in self._segments(broker_id):
                yield broker_id, path, file

    def broker_of(self, path: str) -> BrokerId | None:
        """Whose records a segment file holds; None when it is none."""
        folder, _, name = path.rpartition("/")
        if not name.endswith(".seg") or not folder.startswith(f"{LOGS}/"):
            return None
        return BrokerId(bytes.fromhex(folder.rpartition("/")[2]))

    @staticmethod
    def first_no_of(path: str) -> int:
        """The number with which a segment begins, by its name: `<log>-<first number>.seg`."""
        return int(path.removesuffix(".seg").rpartition("-")[2])

    def first_no_behind(self, path: str) -> int:
        """The number with which the next segment of the same log begins; 0 when there is none."""
        log, first_no = path.rpartition("-")[0], self.first_no_of(path)
        behind = (
            self.first_no_of(other)
            for _, other, _ in self.segments()
            if other.rpartition("-")[0] == log and self.first_no_of(other) > first_no
        )
        return min(behind, default=0)

    def files_of(self, broker_id: BrokerId) -> list[File]:
        return [file for _, file in self._segments(broker_id)]

    def _segments(self, broker_id: BrokerId) -> list[tuple[str, File]]:
        if self._version != self.disk.names_version:
            self._version = self.disk.names_version
            self._listed.clear()
            self._about.clear()
        found = self._listed.get(broker_id)
        if found is None:
            folder = f"{LOGS}/{broker_id.hex()}"
            entries = self.disk.durable_entries(folder)
            found = self._listed[broker_id] = [
                (f"{folder}/{name}", inode)
                for name, inode in sorted(entries.items(), key=lambda each: each[0])
                if name.endswith(".seg") and not isinstance(inode, Directory)
            ]
        return found

    def _files_about(self, log_id: LogId) -> list[File]:
        """Where records of a log can be: not in files that have those of another topic."""
        segments = self._segments(log_id.broker_id)
        found = self._about.get(log_id)
        if found is None:
            found = self._about[log_id] = [
                file for _, file in segments if self._topics.get(file, log_id.topic) == log_id.topic
            ]
        return found

    def topic_of(self, file: File) -> str | None:
        """The topic of the records that a file had when it was read last."""
        return self._topics.get(file)

    def records(self, file: File, broker_id: BrokerId) -> list[Record]:
        """The good records of a segment file, as far as they are durable."""
        contents = file.contents
        read = self._read.get(file)
        if read is None or read.changes != contents.changes:
            read = self._read[file] = _Read(contents.changes)
        end = contents.durable_bytes
        if read.at < end:
            data = bytes(contents.cached[:end])
            while read.at < end:
                record = read_record(data, read.at, broker_id)
                if record is not None:
                    read.records.append(record)
                    if self._topics.get(file) != record.topic:
                        self._topics[file] = record.topic
                        self._about.clear()  # others need not look into it any more
                    read.at += record.length
                    continue
                found = data.find(broker_id, read.at + _MARK_AT + 1)
                if found < 0:
                    break  # it may not be all there yet
                read.damaged = True
                read.at = found - _MARK_AT
        return read.records


def read_record(data: bytes, at: int, broker_id: BrokerId) -> Record | None:
    """The record there if it is whole and good."""
    if len(data) - at < _HEADER.size:
        return None
    (
        length, kind, version, transport, zero, broker, first_no, header_hash, body_hash, count, _,
        topic_bytes, utc_us, _, _,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    end = at + length
    if (kind, version, transport, zero, broker) != (*_PLAIN, broker_id):
        return None
    if end > len(data) or not count:
        return None
    if xxh3_64_intdigest(data[at + 48 : end]) != body_hash:
        return None
    if xxh3_64_intdigest(data[at + 40 : at + 80], first_no ^ xxh3_64_intdigest(broker)) != (
        header_hash
    ):
        return None
    topic = data[at + 80 : at + 80 + topic_bytes].decode()
    return Record(topic, first_no, first_no + count - 1, at, length, body_hash, utc_us)


def payloads_of(file: File, record: Record) -> list[bytes]:
    body_at = record.offset + 80 + len(record.topic.encode())
    body = bytes(file.contents.cached[body_at : record.offset + record.length])
    columns: Any = msgpack.unpackb(body)
    return list(columns[3])
