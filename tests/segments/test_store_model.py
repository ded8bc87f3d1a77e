"""Files held to memory as their model, under any series of operations.

Segments are tiny, so that they roll and expire all the time, and the store is closed or killed and
opened again in between. The model never expires anything: what the files still have must be just
what the model has from there on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given, note, settings
from hypothesis import strategies as st

from busnode.segments.damage import Hole
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.log_reader import FileLogReader
from busnode.segments.memory_store import MemoryLog, MemoryStore
from busnode.segments.retention import RetentionRules
from busnode.segments.store import StoreOptions
from busnode.testing.sim import SimDisk, simulate
from busnode.wire.ids import LogId, MsgNo

from .samples import (
    BROKER,
    DIRECTORY,
    OTHER_BROKER,
    PRESSURE,
    TEMPERATURE,
    UTC_US,
    StoppedClock,
    range_bytes,
    read_log,
    read_ranges,
    write,
)

LOGS = [TEMPERATURE, PRESSURE, TEMPERATURE._replace(broker_id=OTHER_BROKER)]
OPTIONS = StoreOptions(segment_bytes_max=2048, segment_age_s_max=600, open_files_max=3)


@dataclass(frozen=True)
class Append:
    log: int
    sizes: list[int]
    utc: int


@dataclass(frozen=True)
class Commit:
    pass


@dataclass(frozen=True)
class Read:
    log: int
    part: float
    bytes_max: int
    utc: int


@dataclass(frozen=True)
class Follow:
    """Take one step with a reader that stays."""

    log: int
    bytes_max: int


@dataclass(frozen=True)
class Skip:
    log: int
    by: int


@dataclass(frozen=True)
class Expire:
    age_s: float | None
    log_bytes_max: int | None
    store_bytes_max: int | None


@dataclass(frozen=True)
class Wait:
    seconds: int


@dataclass(frozen=True)
class Reopen:
    killed: bool


Operation: TypeAlias = Append | Commit | Read | Follow | Skip | Expire | Wait | Reopen

logs = st.sampled_from([0, 0, 0, 0, 1, 2])  # what goes wrong takes several steps with one log
sizes = st.lists(st.integers(0, 200), min_size=1, max_size=4)
bytes_maxs = st.sampled_from([1, 300, 1500, 1 << 20])
bounds = st.integers(0, 8000)
appends = st.builds(Append, logs, sizes, st.integers(0, 50))
commits = st.builds(Commit)
operations = st.one_of(
    appends,
    appends,
    appends,
    commits,
    commits,
    st.builds(Read, logs, st.floats(0, 1), bytes_maxs, st.integers(0, 60)),
    st.builds(Follow, logs, bytes_maxs),
    st.builds(Skip, logs, st.integers(0, 5)),
    st.builds(Expire, st.sampled_from([0, 100, 300]), st.none(), st.none()),
    st.builds(Expire, st.sampled_from([0, 100, 300]), st.none(), st.none()),
    st.builds(Expire, st.none(), bounds, st.none()),
    st.builds(Expire, st.none() | st.just(300), st.none() | bounds, bounds),
    st.builds(Wait, st.sampled_from([60, 200, 700])),
    st.builds(Reopen, st.booleans()),
)


@dataclass
class Written:
    """One batch, as the model remembers it."""

    first_no: int
    last_no: int
    utc_us: int
    stored_us: int


@dataclass
class World:
    """The files, the model, and the readers that stay."""

    clock: StoppedClock = field(default_factory=StoppedClock)
    batches: dict[LogId, list[Written]] = field(
        default_factory=lambda: {log_id: [] for log_id in LOGS}
    )
    readers: dict[LogId, FileLogReader] = field(default_factory=dict[LogId, FileLogReader])
    retired: set[LogId] = field(default_factory=set[LogId])
    """Logs of which everything has expired, and the log itself with it."""

    def __post_init__(self) -> None:
        self.disk = SimDisk(clock=self.clock)
        self.model = MemoryStore(self.disk, self.clock)
        self.files = FileStore(self.disk, self.clock, DIRECTORY, OPTIONS)
        self.files.begin(BROKER)

    def pair(self, log_id: LogId) -> tuple[FileLog, MemoryLog]:
        return self.files.create(log_id), self.model.create(log_id)

    def pairs(self) -> Iterator[tuple[FileLog, MemoryLog]]:
        return (self.pair(log_id) for log_id in LOGS if log_id not in self.retired)

    async def do(self, operation: Operation) -> None:
        match operation:
            case Append(log, sizes, utc):
                log_id = LOGS[log]
                utc_us = UTC_US + utc
                written = Written(self.model.create(log_id).next_no, 0, utc_us, self.clock.now_us)
                payloads = [b"%d " % (written.first_no + n) * size for n, size in enumerate(sizes)]
                for each in self.pair(log_id):
                    write(each, payloads, utc_us)
                written.last_no = written.first_no + len(sizes) - 1
                self.batches[log_id].append(written)
            case Commit():
                moved = {log.log_id for log in (await self.model.commit()).logs}
                done = await self.files.commit()
                assert {log.log_id for log in done.logs} == moved
            case Read(log, part, bytes_max, utc):
                self._read(LOGS[log], part, bytes_max, utc)
            case Follow(log, bytes_max):
                self._follow(LOGS[log], bytes_max)
            case Skip(log, by):
                file, memory = self.pair(LOGS[log])
                next_no = MsgNo(memory.next_no + by)
                file.skip_to(next_no)
                memory.skip_to(next_no)
            case Expire():
                # What skips goes on at once: a log never ends with a hole for long.
                if not any(memory.next_no > memory.appended_no + 1 for _, memory in self.pairs()):
                    self._expire(operation)
            case Wait(seconds):
                self.clock.advance(seconds)
            case Reopen(killed):
                await self._reopen(killed)

    def judge(self) -> None:
        assert self.files.dirty() == self.model.dirty()
        for file, memory in self.pairs():
            assert (file.next_no, file.committed_no) == (memory.next_no, memory.committed_no)
            assert file.poisoned is None
            assert file.first_no >= memory.first_no

    def _read(self, log_id: LogId, part: float, bytes_max: int, utc: int) -> None:
        file, memory = self.pair(log_id)
        after_no = round(part * memory.committed_no)
        found, wanted = read_ranges(file, after_no, bytes_max), read_ranges(memory, after_no)
        ends = {written.first_no: written.last_no for written in self.batches[log_id]}
        kept = {n: data for n, data in wanted.records.items() if ends[n] >= file.first_no}
        assert found.records == kept
        expired: list[tuple[int, int]] = []
        if after_no < memory.committed_no and after_no + 1 < file.first_no:
            expired = [(after_no + 1, file.first_no - 1)]
        later = [span for span in wanted.spans if span[0] >= file.first_no]
        assert found.spans == expired + later
        assert found.expired == (expired or wanted.expired)
        assert list(read_log(file, after_no).records) == list(kept)
        utc_us = UTC_US + utc
        number = next(
            (
                written.first_no
                for written in self.batches[log_id]
                if written.utc_us >= utc_us
                and file.first_no <= written.first_no <= file.committed_no
            ),
            file.committed_no + 1,
        )
        assert file.first_at(utc_us) == number

    def _follow(self, log_id: LogId, bytes_max: int) -> None:
        file, memory = self.pair(log_id)
        if log_id not in self.readers:
            self.readers[log_id] = file.reader(0)
        reader = self.readers[log_id]
        next_no = reader.next_no
        found = reader.next_range(bytes_max)
        if found is None:
            assert next_no > memory.committed_no
            return
        assert found.first_no == next_no
        assert reader.next_no == found.last_no + 1
        if isinstance(found, Hole):
            return
        wanted = read_ranges(memory, next_no - 1).records
        ends = {written.first_no: written.last_no for written in self.batches[log_id]}
        whole = b"".join(wanted[n] for n in sorted(wanted) if ends[n] <= found.last_no)
        assert range_bytes(found) == whole

    def _expire(self, rules: Expire) -> None:
        begins = {log.log_id: log.first_no for log in self.files.logs()}
        dropped = self.files.expire(
            RetentionRules(rules.age_s, rules.log_bytes_max, rules.store_bytes_max)
        )
        for one in dropped:
            assert begins[one.log_id] <= one.first_no <= one.last_no
            assert one.last_no <= self.model.create(one.log_id).committed_no
            begins[one.log_id] = MsgNo(one.last_no + 1)
            if rules.log_bytes_max is None and rules.store_bytes_max is None:
                assert rules.age_s is not None
                for written in self.batches[one.log_id]:
                    if one.first_no <= written.first_no <= one.last_no:
                        assert self.clock.now_us - written.stored_us > rules.age_s * 1e6
        for log_id in LOGS:
            log = self.files.get(log_id)
            if log is None:
                if log_id in begins:
                    self.retired.add(log_id)
                continue
            assert log.first_no >= begins[log_id]
            if rules.log_bytes_max is not None and log.size_bytes > rules.log_bytes_max:
                first = log.segments[0]
                uncommitted = first.next_no > log.committed_no + 1
                assert first is log.active or first.empty or uncommitted

    async def _reopen(self, killed: bool) -> None:
        """All that was written is there again: closing commits it, and so does recovery."""
        if killed:
            self.disk.kill()
        else:
            self.files.close()
        await self.model.commit()
        self.readers.clear()
        self.files = FileStore(self.disk, self.clock, DIRECTORY, OPTIONS)
        assert self.files.flaws() == []
        for log_id in LOGS:
            if log_id not in self.retired:
                file, memory = self.pair(log_id)
                file.skip_to(memory.next_no)  # a skip alone is not remembered


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.lists(operations, min_size=15, max_size=60))
def test_files_do_what_memory_does(series: list[Operation]) -> None:
    async def main() -> None:
        world = World()
        for operation in series:
            note(f"{operation}")
            log = getattr(operation, "log", None)
            if log is not None and LOGS[log] in world.retired:
                continue
            await world.do(operation)
            world.judge()
        await world.do(Reopen(killed=False))
        for log_id in LOGS:
            if log_id not in world.retired:
                world._read(log_id, 0, 1000, 0)

    simulate(0, main)
