"""One incarnation's folder of segment files: which logs are in it."""

import posixpath
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from typing import Final

from busnode.segments.damage import Flaw
from busnode.segments.records import LogKey
from busnode.segments.recovery import (
    end_segment,
    recover_segment,
    topic_in_header,
    topic_in_records,
)
from busnode.segments.segment import Segment, SegmentName
from busnode.wire.errors import DataDirectoryInUse, NotADataDirectory
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, LogId, Topic
from busnode.world.files import Files, Lock

LOGS: Final = "logs"


def check_data_directory(files: Files, directory: str) -> None:
    """NotADataDirectory unless a node has stored logs there."""
    if not files.exists(f"{directory}/{LOGS}"):
        raise NotADataDirectory(
            f"{directory} has no folder {LOGS!r}: no node has stored logs there"
        )


def make_durable_directory(files: Files, path: str) -> None:
    """Make a directory whose name survives a power loss, and those above it.

    Each level is durable before the next is made. So of those that are found there only the last
    one may not be: a process may have died between making and syncing it.
    """
    parent = posixpath.dirname(path)
    if not files.exists(path):
        make_durable_directory(files, parent)
        files.make_directory(path)
    # What we may not even list we have not made.
    with suppress(PermissionError):
        files.sync_directory(parent)


def lock_directory(files: Files, directory: str) -> Lock:
    """The right to use a data directory, alone. Raises DataDirectoryInUse."""
    lock = files.lock(f"{directory}/lock")
    if lock is None:
        raise DataDirectoryInUse(f"another process has {directory} open")
    return lock


def broker_ids(files: Files, directory: str) -> list[BrokerId]:
    """The incarnations that a data directory holds logs of. Other names are left alone."""
    found: list[BrokerId] = []
    for name in files.names(f"{directory}/{LOGS}"):
        try:
            raw = bytes.fromhex(name)
        except ValueError:
            continue
        if len(raw) == BROKER_ID_BYTES and raw.hex() == name:
            found.append(BrokerId(raw))
    return found


class Bucket:
    """What the names and headers in the folder say; the records are read by `recover`.

    The segments of a log share its number. One of them whose header is damaged is known by the
    others; if none can tell the topic, the files are left alone and named as a flaw.
    """

    def __init__(self, files: Files, path: str, broker_id: BrokerId) -> None:
        self._files = files
        self._path = path
        self.flaws: list[Flaw] = []
        self.logs: dict[LogId, list[SegmentName]] = {}
        """The segments of each log, in the order of their numbers."""
        by_number: dict[int, list[SegmentName]] = {}
        for file_name in files.names(path):
            name = SegmentName.parse(file_name)
            if name is not None:
                by_number.setdefault(name.log_no, []).append(name)
        self.log_no_max = max(by_number, default=0)
        for names in by_number.values():
            topic = self._topic(names, broker_id)
            if topic is not None:
                # Two numbers for one topic: a log that was given up, and begun again.
                log = self.logs.setdefault(LogId(broker_id, topic), [])
                log += names
                log.sort(key=attrgetter("first_no"))

    def _topic(self, names: list[SegmentName], broker_id: BrokerId) -> Topic | None:
        paths = [f"{self._path}/{name}" for name in reversed(names)]
        for topic_in in (topic_in_header, topic_in_records):
            for path in paths:
                topic = topic_in(self._files, path, broker_id)
                if topic is not None:
                    return topic
        for path in reversed(paths):
            self.flaws.append(Flaw(path, 0, 0, "neither header nor any record tells its topic"))
        return None

    def recover(
        self, key: LogKey, names: list[SegmentName], *, trust_index: bool = True
    ) -> list[Segment]:
        """The state of a log's segments, read from the disk and changing nothing on it."""
        segments = [
            recover_segment(
                self._files, f"{self._path}/{name}", key, name.first_no, trust_index=trust_index
            )
            for name in names
        ]
        for segment, following in pairwise(segments):
            if segment.first_no < following.first_no < segment.next_no:
                end_segment(self._files, segment, key, following.first_no)
        return segments
