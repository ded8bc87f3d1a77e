"""The store in files: per-topic buckets of append-only segments.

    DIRECTORY/lock                                              one process at a time
    DIRECTORY/logs/<brokerId>/<log number>-<first msgNo>.seg    records
    DIRECTORY/logs/<brokerId>/<log number>-<first msgNo>.idx    index, can be rebuilt

File names are numbers; the topic stands inside.
"""

import itertools
from collections.abc import Iterator
from typing import Final

from busnode.segments.bucket import (
    LOGS,
    Bucket,
    broker_ids,
    check_data_directory,
    lock_directory,
    make_durable_directory,
)
from busnode.segments.commit import GroupCommit
from busnode.segments.damage import Flaw
from busnode.segments.handles import Handles
from busnode.segments.log import FileLog, Pending
from busnode.segments.recovery import mend_segment
from busnode.segments.retention import Candidate, Expired, RetentionRules, choose_expired
from busnode.segments.store import Committed, StoreOptions
from busnode.wire.errors import SecondWriter, StorageFailed
from busnode.wire.ids import BrokerId, LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Files

LOG_NO_MAX: Final = 10**8 - 1
"""Eight digits in a file name: a hundred million topics of one incarnation."""


class FileStore:
    """A node's logs on its disk."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        directory: str,
        options: StoreOptions | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Lock the directory and take up what it holds. `read_only` changes nothing on the disk.

        Raises DataDirectoryInUse, NotADataDirectory when there is none to read, or StorageFailed
        when the system refuses a file operation.
        """
        self.directory = directory
        self._files = files
        self._clock = clock
        self._options = options or StoreOptions()
        self._read_only = read_only
        self._handles = Handles(files, self._options.open_files_max)
        self._logs: dict[LogId, FileLog] = {}
        self._next_log_no: dict[BrokerId, int] = {}
        self._flaws: list[Flaw] = []
        self._pending = Pending()
        self._commit = GroupCommit(files, self._handles, self._pending, clock)
        self._current: BrokerId | None = None
        self._unsafe: set[BrokerId] = set()
        """Those whose folder could not be made durable: a second sync would prove nothing."""
        try:
            if read_only:
                check_data_directory(files, directory)
            else:
                make_durable_directory(files, f"{directory}/{LOGS}")
            self._lock = lock_directory(files, directory)
            try:
                if not read_only:
                    # A process that was killed may have left a folder without a durable name.
                    files.sync_directory(f"{directory}/{LOGS}")
                for broker_id in broker_ids(files, directory):
                    self._open_broker(broker_id)
            except BaseException:
                self._lock.close()
                raise
        except OSError as error:
            raise StorageFailed(f"cannot open {directory}: {error}") from error

    def _open_broker(self, broker_id: BrokerId) -> None:
        bucket = Bucket(self._files, self._path(broker_id), broker_id)
        if not self._read_only:
            # Nor may a segment be vouched for whose name is not durable.
            self._files.sync_directory(self._path(broker_id))
        self._flaws += bucket.flaws
        self._next_log_no[broker_id] = bucket.log_no_max + 1
        for log_id, names in bucket.logs.items():
            log = self._new_log(log_id, names[0].log_no)
            segments = bucket.recover(log.key, names)
            for segment in segments:
                if self._read_only:
                    segment.indexed = False
                else:
                    mend_segment(self._files, segment, log.key)
                self._flaws += segment.flaws
                if segment.torn is not None:
                    self._flaws.append(segment.torn)
            log.adopt(segments)
            self._logs[log_id] = log

    def _path(self, broker_id: BrokerId) -> str:
        return f"{self.directory}/{LOGS}/{broker_id.hex()}"

    def _new_log(self, log_id: LogId, log_no: int) -> FileLog:
        directory = self._path(log_id.broker_id)
        return FileLog(
            log_id, log_no, directory,
            self._files, self._handles, self._pending, self._clock, self._options,
        )  # fmt: skip

    # Logs -----------------------------------------------------------------------------------------

    def begin(self, broker_id: BrokerId) -> None:
        bucket = self._path(broker_id)
        if self._files.exists(bucket):
            raise SecondWriter(f"{self.directory} already holds logs of {broker_id.hex()}")
        self._make_bucket(broker_id)
        self._current = broker_id

    def _make_bucket(self, broker_id: BrokerId) -> None:
        bucket = self._path(broker_id)
        try:
            if broker_id in self._unsafe and self._files.exists(bucket):
                # Nothing was written there, and nobody knows whether its name is durable. One that
                # is made anew can be.
                aside = (f"{bucket}.unsafe{n}" for n in itertools.count(1))
                self._files.rename(bucket, next(p for p in aside if not self._files.exists(p)))
            self._files.make_directory(bucket)
            self._files.sync_directory(f"{self.directory}/{LOGS}")
        except OSError as error:
            self._unsafe.add(broker_id)
            raise StorageFailed(f"cannot make room for {broker_id.hex()}: {error}") from error
        self._unsafe.discard(broker_id)
        self._next_log_no[broker_id] = 1

    def create(self, log_id: LogId) -> FileLog:
        log = self._logs.get(log_id)
        if log is None:
            if log_id.broker_id not in self._next_log_no:
                self._make_bucket(log_id.broker_id)
            log_no = self._next_log_no[log_id.broker_id]
            assert log_no <= LOG_NO_MAX
            self._next_log_no[log_id.broker_id] = log_no + 1
            log = self._logs[log_id] = self._new_log(log_id, log_no)
        return log

    def get(self, log_id: LogId) -> FileLog | None:
        return self._logs.get(log_id)

    def logs(self) -> Iterator[FileLog]:
        return iter(list(self._logs.values()))

    def flaws(self) -> list[Flaw]:
        return list(self._flaws)

    # Committing -----------------------------------------------------------------------------------

    def dirty(self) -> bool:
        return bool(self._pending.logs)

    async def commit(self) -> Committed:
        return await self._commit.run()

    # Retention ------------------------------------------------------------------------------------

    def expire(self, rules: RetentionRules, most: int | None = None) -> list[Expired]:
        now_us = self._clock.utc_us()
        chosen = choose_expired(self._candidates(now_us), rules, now_us)[:most]
        done: list[Expired] = []
        failed: dict[LogId, OSError] = {}
        for candidate, reason in chosen:
            if candidate.log_id in failed:
                continue
            log = self._logs[candidate.log_id]
            try:
                log.drop_first()
            except OSError as error:
                failed[log.log_id] = error
                continue
            if not log.segments:
                del self._logs[candidate.log_id]
            if candidate.next_no > candidate.first_no:
                last_no = MsgNo(candidate.next_no - 1)
                size = candidate.size_bytes
                done.append(Expired(log.log_id, candidate.first_no, last_no, size, reason))
        for log_id, why in failed.items():
            # Only now: one file that cannot be removed must not let the disk fill up with others.
            raise StorageFailed(f"cannot drop a segment of {log_id}: {why}") from why
        return done

    def _candidates(self, now_us: int) -> Iterator[Candidate]:
        for log in self._logs.values():
            live = log.log_id.broker_id == self._current
            for segment in log.segments:
                if segment.empty and live:
                    break  # the next message goes there
                # Somebody waits for it to be durable: it is not older than now.
                uncommitted = segment.next_no > log.committed_no + 1 and log.poisoned is None
                yield Candidate(
                    log.log_id,
                    segment.first_no,
                    segment.next_no,
                    segment.size_bytes,
                    now_us if uncommitted else segment.stored_us,
                    writable=uncommitted or segment.empty or segment is log.active,
                )

    # Closing --------------------------------------------------------------------------------------

    def close(self) -> None:
        self._commit.run_blocking()
        for log in self._logs.values():
            log.close()
        self._handles.close()
        self._lock.close()
