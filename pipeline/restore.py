"""`restore`: ranges of an archive as a data directory, which everything reads that reads logs.

A task restores all of one incarnation, since its folder has one writer. What it reads is verified
against the manifest, and what it has written is read back as a log and hashed again. The directory
gets its name when all of it is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from busnode.pipeline.archive_files import ArchivedFile, read_verified
from busnode.pipeline.archive_runs import Archive
from busnode.pipeline.arrow import Table, pa
from busnode.pipeline.columns import ARCHIVED, arrow_schema
from busnode.pipeline.directories import Directories
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.pipeline.restored_log import append_rows
from busnode.pipeline.row_digest import RowDigest
from busnode.pipeline.work import work_done, work_frame
from busnode.segments.bucket import LOGS, make_durable_directory
from busnode.segments.file_store import FileStore
from busnode.segments.store import StoreOptions
from busnode.wire.errors import BadOption, StorageFailed
from busnode.wire.ids import BrokerId, LogId, Pattern, Topic
from busnode.wire.topics import matches
from busnode.world.files import remove_tree
from busnode.world.real_clock import RealClock
from busnode.world.real_files import RealFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRATCH: Final = ".restoring"
RESTORED: Final = "broker_id string, topic string, messages bigint, first_no bigint, last_no bigint"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are restored."""

    pattern: Pattern
    since: date | None = None
    """From this day on."""
    until: date | None = None
    """Up to this day, and with it."""

    def has(self, file: ArchivedFile) -> bool:
        day = date.fromisoformat(file.date)
        return (
            matches(self.pattern, Topic(file.topic))
            and (self.since is None or day >= self.since)
            and (self.until is None or day <= self.until)
        )


@dataclass(frozen=True, slots=True)
class Restored:
    """A log of the new data directory, read back and found to be what the archive has."""

    broker_id: str
    topic: str
    messages: int
    first_no: int
    last_no: int

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Source:
    """A file, and the folder of its run."""

    directory: str
    file: ArchivedFile


Numbers = tuple[int, int]
"""The first and the last of a range."""


def restore(spark: "SparkSession", directory: str, wanted: Wanted, to: str) -> list[Restored]:
    """Make the data directory `to`, which must not be there yet. BadOption where it is, or where
    the archive has nothing of what is wanted; StorageFailed where the archive is damaged."""
    files = RealFiles()
    logs = planned(directory, wanted, to)
    scratch = to + SCRATCH
    if files.exists(scratch):
        remove_tree(files, scratch)
    make_durable_directory(files, f"{scratch}/{LOGS}")
    rows = restored_logs(work_frame(spark, incarnations(logs)), scratch).collect()
    for broker_id in sorted({log_id.broker_id.hex() for log_id in logs}):
        made = f"{scratch}/{broker_id}"
        files.rename(f"{made}/{LOGS}/{broker_id}", f"{scratch}/{LOGS}/{broker_id}")
        remove_tree(files, made)
    files.sync_directory(f"{scratch}/{LOGS}")
    files.rename(scratch, to)
    files.sync_directory(to.rpartition("/")[0] or "/")
    restored = (Restored(**row.asDict()) for row in rows)
    return sorted(restored, key=lambda each: (each.broker_id, each.topic))


def planned(directory: str, wanted: Wanted, to: str) -> dict[LogId, tuple[Numbers, list[_Source]]]:
    """What `restore` would restore; raises what it would, without Spark."""
    files = RealFiles()
    if files.exists(to):
        raise BadOption(f"{to} is there already: restore makes a new data directory")
    logs = chosen(Archive(files, directory), wanted)
    if not logs:
        raise BadOption(f"{directory} has nothing of {wanted.pattern} in these days")
    return logs


def chosen(archive: Archive, wanted: Wanted) -> dict[LogId, tuple[Numbers, list[_Source]]]:
    """For each log the numbers that are wanted, and the files that have them. Days choose numbers
    from the first to the last that has one of them: clocks go back, and a log has no holes."""
    all_files: dict[LogId, list[_Source]] = {}
    spans: dict[LogId, Numbers] = {}
    for run in archive.runs():
        for file in run.files:
            log_id = LogId(BrokerId(bytes.fromhex(file.broker_id)), Topic(file.topic))
            all_files.setdefault(log_id, []).append(_Source(run.directory, file))
            if wanted.has(file):
                first_no, last_no = spans.get(log_id, (file.first_no, file.last_no))
                spans[log_id] = min(first_no, file.first_no), max(last_no, file.last_no)
    return {
        log_id: (
            (first_no, last_no),
            [
                each
                for each in all_files[log_id]
                if each.file.first_no <= last_no and each.file.last_no >= first_no
            ],
        )
        for log_id, (first_no, last_no) in spans.items()
    }


# Tasks --------------------------------------------------------------------------------------------

Chosen = tuple[LogId, Numbers, list[_Source]]


def incarnations(logs: dict[LogId, tuple[Numbers, list[_Source]]]) -> list[list[Chosen]]:
    """The logs of each incarnation: what one task restores."""
    by_broker: dict[BrokerId, list[Chosen]] = {}
    for log_id, (span, sources) in sorted(logs.items()):
        by_broker.setdefault(log_id.broker_id, []).append((log_id, span, sources))
    return list(by_broker.values())


def restored_logs(work: "DataFrame", scratch: str) -> "DataFrame":
    """Write each incarnation into a data directory of its own; a row for each log."""

    def write(_: int, logs: list[Chosen]) -> list[dict[str, Any]]:
        return [
            each.fields()
            for each in restore_incarnation(f"{scratch}/{logs[0][0].broker_id.hex()}", logs)
        ]

    return work_done(work, write, RESTORED)


def restore_incarnation(directory: str, logs: Sequence[Chosen]) -> list[Restored]:
    """What one task does. StorageFailed where what it has written does not read back as it was."""
    files = RealFiles()
    if files.exists(directory):
        remove_tree(files, directory)  # of an attempt that was ended
    store = FileStore(files, RealClock(), directory, StoreOptions())
    digests: dict[LogId, RowDigest] = {}
    try:
        for log_id, span, sources in logs:
            log, digest = store.create(log_id), RowDigest()
            for table in _tables(sources, span):
                append_rows(log, log_id, table)
                digest.add_table(table)
            digests[log_id] = digest
    finally:
        store.close()
    return [_verified(directory, log_id, span, digests[log_id]) for log_id, span, _ in logs]


def _tables(sources: Sequence[_Source], span: Numbers) -> Iterator[Table]:
    """The rows of one log in the order of their numbers. Files of one stretch have one day each,
    and where a clock went back they interleave; those of different stretches never do."""
    ordered = sorted(sources, key=lambda each: each.file.first_no)
    while ordered:
        together = [ordered.pop(0)]
        end_no = together[0].file.last_no
        while ordered and ordered[0].file.first_no <= end_no:
            together.append(ordered.pop(0))
            end_no = max(end_no, together[-1].file.last_no)
        table = pa.concat_tables([read_verified(each.directory, each.file) for each in together])
        numbers = table.column("msg_no").to_numpy()
        if len(together) > 1:
            table = table.take(pa.array(numbers.argsort(kind="stable")))
            numbers = table.column("msg_no").to_numpy()
        inside = (numbers >= span[0]) & (numbers <= span[1])
        yield table if inside.all() else table.filter(pa.array(inside))


def _verified(directory: str, log_id: LogId, span: Numbers, expected: RowDigest) -> Restored:
    """Read a restored log back as everybody will."""
    logs = Directories([directory], Pattern(log_id.topic), tolerant=True)
    logs.extents()
    schema = arrow_schema(ARCHIVED)
    digest = RowDigest()
    for part in logs.ranges(log_id, Span(*span), None):
        rows = RecordRows(schema, log_id, part.span)
        for stretch in logs.read(part):
            for batch in rows.add(stretch):
                digest.add(batch)
        for batch in rows.finish():
            digest.add(batch)
    if digest.hexdigest() != expected.hexdigest():
        raise StorageFailed(
            f"{directory}: {digest.rows} messages of {log_id} read back with hash "
            f"{digest.hexdigest()}; the archive has {expected.rows} with {expected.hexdigest()}"
        )
    return Restored(log_id.broker_id.hex(), log_id.topic, digest.rows, *span)
