"""Bugs in what keeps messages on a disk."""

from dataclasses import replace
from typing import Any

from busnode.segments import commit, file_store
from busnode.segments.commit import GroupCommit
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog, Uncommitted
from busnode.segments.log_reader import FileLogReader
from busnode.segments.segment import RECORDS_AT
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.mutants.mutant import DEATHS, DISK, POWER, SLOW, Patch, mutant, short

UNSYNCED = replace(short("unsynced", kill=4, slow_disk=6), nodes=2)


@mutant("a commit does not sync", POWER)
def no_fsync(patch: Patch) -> None:
    async def run(self: Any) -> Any:
        taken, lost = self._take()
        return self._settle(taken, {}, lost)

    patch.set(GroupCommit, "run", run)


@mutant("the names of new files are not synced", POWER)
def no_directory_fsync(patch: Patch) -> None:
    def directories(taken: Any) -> list[str]:
        del taken
        return []

    patch.set(commit, "_directories", directories)


@mutant("the folder of an incarnation is not synced", POWER)
def no_fsync_of_incarnation(patch: Patch) -> None:
    def make_bucket(self: Any, broker_id: Any) -> None:
        self._files.make_directory(self._path(broker_id))
        self._next_log_no[broker_id] = 1

    patch.set(FileStore, "_make_bucket", make_bucket)


@mutant("a sync that failed is tried again, and then believed", DISK)
def retry_after_failed_fsync(patch: Patch) -> None:
    settle = GroupCommit.__dict__["_settle"]

    def believe(self: Any, taken: Any, failed: Any, lost: Any) -> Any:
        for path in failed:
            for each in taken:
                if path in each.paths:
                    self._handles.appending(path).sync()
        return settle(self, taken, {}, lost)

    patch.set(GroupCommit, "_settle", believe)


@mutant("only the last file of a log is synced, not the one that was filled before it", SLOW)
def filled_segment_not_synced(patch: Patch) -> None:
    before = Uncommitted.__dict__["__init__"]

    def init(self: Any, log: Any, segments: Any, directory: Any) -> None:
        before(self, log, segments, directory)
        for path in self.paths[:-1]:
            log._handles.unpin(path)
        self.paths = self.paths[-1:]

    patch.set(Uncommitted, "__init__", init)


@mutant("readers are shown what is not committed yet", SLOW)
def consumer_sees_uncommitted(patch: Patch) -> None:
    def reader(self: Any, after_no: int, *, ahead: bool = False) -> Any:
        del ahead
        return FileLogReader(self, self._handles, after_no, ahead=True)

    patch.set(FileLog, "reader", reader)


@mutant("recovery cuts the last record off, as if it were torn", DEATHS)
def recovery_truncates_good_bytes(patch: Patch) -> None:
    open_broker = FileStore.__dict__["_open_broker"]

    def cut(self: Any, broker_id: Any) -> None:
        folder = self._path(broker_id)
        for name in self._files.names(folder):
            path = f"{folder}/{name}"
            if name.endswith(".seg"):
                file = self._files.open(path)
                size_bytes = file.size_bytes() - 100
                if size_bytes > RECORDS_AT:
                    self._files.truncate(path, size_bytes)
        open_broker(self, broker_id)

    patch.set(FileStore, "_open_broker", cut)


@mutant("what recovery has read is vouched for without a sync", UNSYNCED)
def recovery_does_not_sync(patch: Patch) -> None:
    def vouch(files: Any, segment: Any, key: Any) -> None:
        del files, segment, key

    patch.set(file_store, "mend_segment", vouch)


@mutant("segments without an index are done away with", short("index", power_loss=2, flip_index=1))
def metadata_deletes_log(patch: Patch) -> None:
    open_broker = FileStore.__dict__["_open_broker"]

    def tidy(self: Any, broker_id: Any) -> None:
        folder = self._path(broker_id)
        names = self._files.names(folder)
        for name in names:
            if name.endswith(".seg") and name.removesuffix(".seg") + ".idx" not in names:
                self._files.remove(f"{folder}/{name}")
        open_broker(self, broker_id)

    patch.set(FileStore, "_open_broker", tidy)


@mutant("a node that starts again takes the brokerId that it had", POWER)
def broker_id_reused(patch: Patch) -> None:
    drawn = SimEntropy.__dict__["broker_id"]

    def same(self: Any) -> Any:
        return drawn(SimEntropy(str(self._seed).partition("/start")[0]))

    def begin(self: Any, broker_id: Any) -> None:
        if broker_id not in self._next_log_no:
            self._make_bucket(broker_id)
        self._current = broker_id

    patch.set(SimEntropy, "broker_id", same)
    patch.set(FileStore, "begin", begin)
