"""`archive`: what is in closed segments becomes Parquet, each message once, verified.

The driver plans ranges behind what is archived already, and makes a table of them. Tasks write the
files of each and read them back; then all become visible at once. Whatever ends a run before that
has archived nothing.
"""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from busnode.pipeline.archive_files import ArchivedFile, write_range
from busnode.pipeline.archive_runs import Archive
from busnode.pipeline.batch import open_logs
from busnode.pipeline.columns import ARCHIVED, arrow_schema
from busnode.pipeline.directories import Directories
from busnode.pipeline.logs import Cursors, LogRange, Logs
from busnode.pipeline.options import SourceOptions
from busnode.pipeline.record_rows import Span
from busnode.pipeline.work import work_done, work_frame
from busnode.wire.ids import LogId
from busnode.world.clock import Clock
from busnode.world.real_files import RealFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOSED_S: Final = 3 * 3600.0
"""A log's last segment counts as closed when nothing was written to it for so long: as long as a
node appends to one at most, unless it was told otherwise."""

FILES: Final = ", ".join(
    f"{each.name} {'bigint' if each.type in (int, 'int') else 'string'}"
    for each in fields(ArchivedFile)
)


@dataclass(frozen=True, slots=True)
class Missed:
    """A range that was gone before it could be archived."""

    broker_id: str
    topic: str
    first_no: int
    last_no: int


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run of the archive has done. All of it was verified and is visible."""

    run: int | None
    """None when there was nothing to archive."""
    messages: int
    files: int
    size_bytes: int
    logs: int
    missed: tuple[Missed, ...]

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Plan:
    ranges: list[LogRange]
    ends: Cursors
    missed: tuple[Missed, ...]


def archive(
    spark: "SparkSession",
    options: SourceOptions,
    directory: str,
    clock: Clock,
    *,
    with_open: bool = False,
) -> Archived:
    """Archive what is new. `with_open` takes also what is in segments that are still written to.

    Raises DataLost for what cannot be read, StorageFailed for what was not written as it should be,
    DataDirectoryInUse while another process does the same; then nothing was archived.
    """
    files = RealFiles()
    store = Archive(files, directory)
    with store.locked():
        logs = open_logs(options)
        plan = _plan(logs, store.ends(), clock, with_open=with_open)
        if not plan.ranges:
            return Archived(None, 0, 0, 0, 0, plan.missed)
        files.make_directory(store.making)
        tolerant = not options.fail_on_data_loss
        ranges = work_frame(spark, [(logs, each) for each in plan.ranges])
        written = written_files(ranges, store.making, tolerant=tolerant).collect()
        made = sorted((ArchivedFile(**row.asDict()) for row in written), key=_place)
        run = store.finish(made, plan.ends)
    return Archived(
        run.number,
        sum(each.rows for each in made),
        len(made),
        sum(each.size_bytes for each in made),
        len(plan.ends),
        plan.missed,
    )


def _place(file: ArchivedFile) -> tuple[str, str, int, str]:
    return file.broker_id, file.topic, file.first_no, file.path


# Planning -----------------------------------------------------------------------------------------


def _plan(logs: Logs, done: Cursors, clock: Clock, *, with_open: bool) -> _Plan:
    ranges: list[LogRange] = []
    ends: Cursors = {}
    missed: list[Missed] = []
    extents = logs.extents()
    closed = closed_ends(logs, clock.utc_us()) if not with_open else {}
    for log_id, extent in sorted(extents.items()):
        done_no = done.get(log_id, 0)
        last_no = closed.get(log_id, extent.last_no)
        if last_no <= done_no:
            continue
        first_no = max(done_no + 1, extent.first_no)
        if extent.first_no > done_no + 1:
            missed.append(
                Missed(log_id.broker_id.hex(), log_id.topic, done_no + 1, extent.first_no - 1)
            )
        if first_no > last_no:
            continue
        ranges += logs.ranges(log_id, Span(first_no, last_no), None)
        ends[log_id] = last_no
    return _Plan(ranges, ends, tuple(missed))


def closed_ends(logs: Logs, now_us: int) -> dict[LogId, int]:
    """The last message of each log to whose segment nothing will be appended any more. Of a cluster
    that is read over the network, whatever is committed counts as closed."""
    if not isinstance(logs, Directories):
        return {}
    return logs.closed_ends(now_us - int(CLOSED_S * 1e6))


# Tasks --------------------------------------------------------------------------------------------


def written_files(ranges: "DataFrame", directory: str, *, tolerant: bool) -> "DataFrame":
    """Write each range as files below a folder; a row for each file that was made and verified."""
    schema = arrow_schema(ARCHIVED)

    def write(place: int, piece: tuple[Logs, LogRange]) -> list[dict[str, Any]]:
        task = TaskContext.get()
        name = f"{place:06d}-{0 if task is None else task.taskAttemptId()}"
        made = write_range(*piece, schema, directory, name, tolerant=tolerant)
        return [each.fields() for each in made]

    return work_done(ranges, write, FILES)
