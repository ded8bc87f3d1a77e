"""Mending a data directory whose node is down, from other data directories: those of its mirrors.

Every record is read. What is damaged or missing is looked for in the other directories, checked
with both hashes and put in its place, as a running node does it. What they have beyond the end of
a log is appended to it. Nothing is removed; damaged bytes go to quarantine.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from busnode.segments.damage import Hole, Patch
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.mending import PATCH_BYTES_MAX, check_records, records_within
from busnode.segments.records import LogKey, Scanned, scan
from busnode.segments.steps import work_off
from busnode.segments.store import Range
from busnode.wire.errors import BadRecord, StorageFailed
from busnode.wire.ids import LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Files

RANGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Repaired:
    """A hole, and what became of it."""

    log_id: LogId
    hole: Hole
    mended_no: MsgNo
    """Up to which number it is filled, or could be; before its first when nobody has any of it."""
    sources: tuple[str, ...]
    """The directories that had it."""
    quarantine: tuple[str, ...] = ()
    """The files in which damaged bytes are kept."""

    @property
    def is_whole(self) -> bool:
        return self.mended_no >= self.hole.last_no

    @property
    def mended(self) -> int:
        return self.mended_no + 1 - self.hole.first_no

    @property
    def remaining(self) -> int:
        return self.hole.last_no - self.mended_no


def repair_directory(
    files: Files, clock: Clock, directory: str, others: Sequence[str], *, dry_run: bool
) -> Iterator[Repaired]:
    """Mend what can be, log by log; with `dry_run` only look. All directories are locked meanwhile.

    Raises as the opening of a store does, and StorageFailed when the disk fails while it is mended:
    then each segment is the old one or the mended one.
    """
    with ExitStack() as stack:
        store = FileStore(files, clock, directory, read_only=dry_run)
        stack.enter_context(closing(store))
        sources: list[FileStore] = []
        for other in others:
            sources.append(FileStore(files, clock, other, read_only=True))
            stack.enter_context(closing(sources[-1]))
        try:
            for log in store.logs():
                for segment in list(log.segments):
                    log.survey_again(segment)
                for hole in [*log.holes(), *_beyond(log, sources)]:
                    yield _Filling(files, log, hole, sources, dry_run).run()
        except OSError as error:
            raise StorageFailed(f"cannot mend {directory}: {error}") from error


def _beyond(log: FileLog, sources: list[FileStore]) -> list[Hole]:
    """What others have behind the end of a log."""
    copies = (source.get(log.log_id) for source in sources)
    end_no = max((copy.committed_no for copy in copies if copy is not None), default=0)
    if end_no <= log.committed_no:
        return []
    first_no = MsgNo(log.committed_no + 1)
    reason = "this copy ends before others do"
    return [Hole(first_no, MsgNo(end_no), log.segments[-1].path, 0, 0, reason)]


class _Filling:
    """One hole, piece by piece, from whoever has the next one."""

    def __init__(
        self, files: Files, log: FileLog, hole: Hole, sources: list[FileStore], dry_run: bool
    ) -> None:
        self._files = files
        self._log = log
        self._hole = hole
        self._sources = sources
        self._dry_run = dry_run
        self._used: dict[str, None] = {}
        self._quarantine: list[str] = []

    def run(self) -> Repaired:
        hole = self._hole
        mended_no = MsgNo(hole.first_no - 1)
        while mended_no < hole.last_no:
            rest = replace(hole, first_no=MsgNo(mended_no + 1))
            found = self._find(rest)
            if found is None or not (self._dry_run or self._put(rest, found)):
                break
            _, mended_no = check_records(self._log.key, rest, found)
        sources, quarantine = tuple(self._used), tuple(self._quarantine)
        return Repaired(self._log.log_id, hole, mended_no, sources, quarantine)

    def _find(self, hole: Hole) -> bytes | None:
        for source in self._sources:
            copy = source.get(self._log.log_id)
            records = b"" if copy is None else _records(copy, hole)
            if records:
                self._used[source.directory] = None
                return records
        return None

    def _put(self, hole: Hole, records: bytes) -> bool:
        log = self._log
        if hole.first_no > log.committed_no:
            self._append(records)
            return True
        there = next((each for each in log.holes() if each.first_no == hole.first_no), None)
        if there is None:
            return False
        done = work_off(self._files, log.mend([Patch(there, records)]))
        self._quarantine += (each.quarantine for each in done if each.quarantine is not None)
        return bool(done)

    def _append(self, records: bytes) -> None:
        log = self._log
        with memoryview(records) as view:
            begun = Scanned(0, log.next_no, 0)
            _, next_no, utc_us_max = scan(view, len(view), len(view), log.key, begun)
        log.append(records, next_no - log.next_no, utc_us_max, log.stored_us)


def _records(copy: FileLog, hole: Hole) -> bytes:
    """What a copy has of a hole, from its beginning on; all of it good."""
    found = bytearray()
    next_no = int(hole.first_no)
    examined = False
    while next_no <= hole.last_no and len(found) < PATCH_BYTES_MAX:
        range_ = copy.reader(next_no - 1).next_range(RANGE_BYTES)
        if not isinstance(range_, Range):
            break
        data = bytearray(range_.length)
        with memoryview(data) as view:
            range_.file.read_into(view, range_.offset)
        length, beyond = records_within(data, next_no, hole.last_no)
        part = replace(hole, first_no=MsgNo(next_no))
        try:
            check_records(LogKey.of(copy.log_id), part, data[:length])
        except BadRecord:
            if examined:
                break
            copy.examine(range_)  # it has damage of its own, which is a hole from now on
            examined = True
            continue
        found += data[:length]
        next_no = beyond
    return bytes(found)
