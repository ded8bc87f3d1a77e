"""Checking a whole data directory without trusting an index: every record is read and hashed."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from busnode.segments.bucket import (
    LOGS,
    Bucket,
    broker_ids,
    check_data_directory,
    lock_directory,
)
from busnode.segments.damage import Flaw, Hole
from busnode.segments.log import missing_between
from busnode.segments.records import LogKey
from busnode.segments.segment import Segment
from busnode.wire.errors import StorageFailed
from busnode.wire.ids import LogId
from busnode.world.files import Files


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """One log, completely read. `log_id` is None for files that cannot be told whose they are."""

    log_id: LogId | None
    segments: list[Segment]
    holes: list[Hole]
    flaws: list[Flaw]


def verify_directory(files: Files, directory: str) -> Iterator[VerifiedLog]:
    """Read everything, log by log, changing nothing. Raises as the opening of a store does."""
    try:
        check_data_directory(files, directory)
        with closing(lock_directory(files, directory)):
            for broker_id in broker_ids(files, directory):
                bucket = Bucket(files, f"{directory}/{LOGS}/{broker_id.hex()}", broker_id)
                if bucket.flaws:
                    yield VerifiedLog(None, [], [], bucket.flaws)
                for log_id, names in bucket.logs.items():
                    segments = bucket.recover(LogKey.of(log_id), names, trust_index=False)
                    yield _verified(log_id, segments)
    except OSError as error:
        raise StorageFailed(f"cannot verify {directory}: {error}") from error


def _verified(log_id: LogId, segments: list[Segment]) -> VerifiedLog:
    holes: list[Hole] = []
    flaws: list[Flaw] = []
    before: Segment | None = None
    for segment in segments:
        if before is not None and before.next_no < segment.first_no:
            holes.append(missing_between(before, segment))
        holes += [hole for hole in segment.holes if not hole.costs_nothing]
        flaws += segment.flaws
        if segment.torn is not None:
            flaws.append(segment.torn)
        before = segment
    return VerifiedLog(log_id, segments, holes, flaws)
