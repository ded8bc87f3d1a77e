"""An archive on the disk: runs, each of which became visible at once and is never changed again.

    ARCHIVE/run=00000001/shelf=<topic>/date=<day>/<file>.parquet
    ARCHIVE/run=00000001/_manifest.json       which ranges it has, with count and hash of each file
    ARCHIVE/_run                              a run that is being made, or whose making was ended
    ARCHIVE/_lock                             one process at a time makes runs

Spark passes over names that begin with `_`, so `spark.read.parquet(ARCHIVE)` has what the finished
runs have, and `run`, `shelf` and `date` as columns besides.
"""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from busnode.pipeline.archive_files import ArchivedFile
from busnode.pipeline.logs import Cursors
from busnode.segments.bucket import make_durable_directory
from busnode.wire.errors import BadOption, DataDirectoryInUse, StorageFailed
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.world.files import Files, read_whole, remove_tree, replace_whole

RUN: Final = "run="
MAKING: Final = "_run"
MANIFEST: Final = "_manifest.json"
MANIFEST_BYTES_MAX: Final = 1024 * 1024 * 1024
VERSION: Final = 2
"""Of what is in files and manifests. What 1 wrote lacked the flags of messages; no release did."""


@dataclass(frozen=True, slots=True)
class Run:
    """One that is finished."""

    number: int
    directory: str
    files: tuple[ArchivedFile, ...]
    ends: Cursors
    """How far it has gone in each log that it has something of."""


class Archive:
    """The runs in a folder."""

    def __init__(self, files: Files, directory: str) -> None:
        self.directory = directory
        self._files = files

    @property
    def making(self) -> str:
        """The folder of the run that is being made."""
        return f"{self.directory}/{MAKING}"

    def runs(self) -> list[Run]:
        """All that are finished. BadOption for a folder that is no archive, StorageFailed for a
        manifest that cannot be read: then nobody knows what was archived."""
        if not self._files.exists(self.directory):
            raise BadOption(f"{self.directory} is no archive: there is no such folder")
        found: list[Run] = []
        for name in self._files.names(self.directory):
            if name.startswith(RUN) and name.removeprefix(RUN).isdecimal():
                found.append(self._run(name))
        return found

    def _run(self, name: str) -> Run:
        directory = f"{self.directory}/{name}"
        path = f"{directory}/{MANIFEST}"
        try:
            told: dict[str, Any] = json.loads(read_whole(self._files, path, MANIFEST_BYTES_MAX))
            if told["version"] != VERSION:
                raise ValueError(f"it has version {told['version']!r:.40}, expected {VERSION}")
            files = tuple(ArchivedFile(**each) for each in told["files"])
            ends = {
                LogId(BrokerId(bytes.fromhex(broker_id)), Topic(topic)): int(last_no)
                for broker_id, topic, last_no in told["ends"]
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageFailed(f"{path} cannot be read: {error!s:.200}") from error
        return Run(int(name.removeprefix(RUN)), directory, files, ends)

    def ends(self) -> Cursors:
        """How far each log is archived."""
        ends: Cursors = {}
        for run in self.runs() if self._files.exists(self.directory) else ():
            for log_id, last_no in run.ends.items():
                ends[log_id] = max(ends.get(log_id, 0), last_no)
        return ends

    @contextmanager
    def locked(self) -> Generator[None]:
        """While somebody makes a run nobody else does; what an ended one has left goes first."""
        make_durable_directory(self._files, self.directory)
        lock = self._files.lock(f"{self.directory}/_lock")
        if lock is None:
            raise DataDirectoryInUse(f"another process is archiving to {self.directory}")
        try:
            self.discard()
            yield
        finally:
            lock.close()

    def discard(self) -> None:
        """Let go of a run that is not finished."""
        if self._files.exists(self.making):
            remove_tree(self._files, self.making)

    def finish(self, files: Sequence[ArchivedFile], ends: Cursors) -> Run:
        """Make the run visible: all of it, in the instant in which its folder gets its name."""
        self._keep_only(files)
        number = max((run.number for run in self.runs()), default=0) + 1
        manifest = {
            "version": VERSION,
            "ends": [
                [log_id.broker_id.hex(), log_id.topic, last_no]
                for log_id, last_no in sorted(ends.items())
            ],
            "files": [each.fields() for each in files],
        }
        replace_whole(self._files, f"{self.making}/{MANIFEST}", json.dumps(manifest).encode())
        directory = f"{self.directory}/{RUN}{number:08d}"
        self._files.rename(self.making, directory)
        self._files.sync_directory(self.directory)
        return Run(number, directory, tuple(files), dict(ends))

    def _keep_only(self, files: Sequence[ArchivedFile]) -> None:
        """Remove what attempts of tasks have left that were ended, or lost to a faster one."""
        kept = {f"{self.making}/{each.path}" for each in files}
        for shelf in self._files.names(self.making):
            for date in self._files.names(f"{self.making}/{shelf}"):
                folder = f"{self.making}/{shelf}/{date}"
                for name in self._files.names(folder):
                    if f"{folder}/{name}" not in kept:
                        self._files.remove(f"{folder}/{name}")
