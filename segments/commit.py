"""Group commit: one sync serves all that was appended since the one before."""

from functools import partial

from busnode.segments.handles import Handles
from busnode.segments.log import Pending, Uncommitted
from busnode.segments.store import Committed, Log
from busnode.world.clock import Clock
from busnode.world.files import Files


class GroupCommit:
    """Takes all that is pending and syncs the files, and the folders with new names, in parallel.

    A file whose sync fails poisons its log: the kernel may have dropped the pages, and a second
    sync would report success for bytes that are nowhere. It is never tried again.
    """

    def __init__(self, files: Files, handles: Handles, pending: Pending, clock: Clock) -> None:
        self._files = files
        self._handles = handles
        self._pending = pending
        self._clock = clock
        self._running = False

    async def run(self) -> Committed:
        assert not self._running, "one commit at a time"
        self._running = True
        try:
            taken, lost = self._take()
            if not taken:
                return Committed([], lost)
            directories = _directories(taken)
            with self._handles.syncing(_paths(taken)) as (files, failed):
                outcomes = await self._files.sync_all(files, directories)
            paths = [*(file.path for file in files), *directories]
            failed |= {p: error for p, error in zip(paths, outcomes, strict=True) if error}
            return self._settle(taken, failed, lost)
        finally:
            self._running = False

    def run_blocking(self) -> Committed:
        """The same for closing, when there may be no event loop any more."""
        taken, lost = self._take()
        with self._handles.syncing(_paths(taken)) as (files, failed):
            syncs = [(file.path, file.sync) for file in files]
            for path in _directories(taken):
                syncs.append((path, partial(self._files.sync_directory, path)))
            for path, sync in syncs:
                try:
                    sync()
                except OSError as error:
                    failed[path] = error
        return self._settle(taken, failed, lost)

    def _take(self) -> tuple[list[Uncommitted], list[Log]]:
        """What is to be synced, and the logs that an append has poisoned since the last time."""
        logs, self._pending.logs = self._pending.logs, {}
        taken = [log.take_uncommitted() for log in logs if log.poisoned is None]
        return taken, [log for log in logs if log.poisoned is not None]

    def _settle(
        self, taken: list[Uncommitted], failed: dict[str, OSError], lost: list[Log]
    ) -> Committed:
        now_us = self._clock.utc_us()
        moved: list[Log] = []
        poisoned = [*lost]
        for each in taken:
            log = each.log
            error = next((failed[p] for p in (*each.paths, each.directory) if p in failed), None)
            if error is not None:
                log.not_committed(each, f"sync failed: {error}")
                poisoned.append(log)
            else:
                log.committed(each, now_us)
                moved.append(log)
        return Committed(moved, poisoned)


def _paths(taken: list[Uncommitted]) -> list[str]:
    return [path for each in taken for path in each.paths]


def _directories(taken: list[Uncommitted]) -> list[str]:
    """Those with names of new files, each once and in a fixed order."""
    return list(dict.fromkeys(each.directory for each in taken if each.directory is not None))
