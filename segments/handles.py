"""Open files, few at a time: so that ten thousand topics need no ten thousand descriptors."""

from collections import OrderedDict
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from busnode.world.files import AppendFile, Files, ReadFile


class Handles:
    """The files that are open, those used last kept longest.

    A file with unsynced writes is pinned until the commit that syncs it: closing it could lose the
    report of a failed write-back. Only when everything is pinned is one synced on the spot.
    """

    def __init__(self, files: Files, open_files_max: int) -> None:
        self._files = files
        self._open_files_max = open_files_max
        self._appending: OrderedDict[str, AppendFile] = OrderedDict()
        self._reading: OrderedDict[str, ReadFile] = OrderedDict()
        self._pins: dict[str, int] = {}
        self._syncing: set[str] = set()
        self._failed: dict[str, OSError] = {}

    def appending(self, path: str) -> AppendFile:
        """The file open for appending. Raises OSError when it cannot be opened, or when a sync of
        it has failed since it was last asked for."""
        file = self._appending.get(path)
        if file is not None:
            self._appending.move_to_end(path)
            return file
        if path in self._failed:
            raise self._failed[path]
        if len(self._appending) >= self._open_files_max:
            self._make_room()
        file = self._appending[path] = self._files.append_to(path)
        return file

    def _make_room(self) -> None:
        for path in self._appending:
            if path not in self._pins:
                self._appending.pop(path).close()
                return
        for path in self._appending:
            if path not in self._syncing:
                self._close_synced(path)
                return
        # All are being synced just now: until that is over there is one more than there should be.

    def _close_synced(self, path: str) -> None:
        file = self._appending.pop(path)
        try:
            file.sync()
        except OSError as error:
            self._failed[path] = error
        finally:
            file.close()

    @contextmanager
    def syncing(
        self, paths: Iterable[str]
    ) -> Generator[tuple[list[AppendFile], dict[str, OSError]], None, None]:
        """Those of the pinned files that a commit must sync; they stay open until it is through.

        One that is not open has been synced when it was closed: nothing is left to do for it, or
        that has failed, and the error is given too.
        """
        files: list[AppendFile] = []
        failed: dict[str, OSError] = {}
        for path in paths:
            if path in self._appending:
                files.append(self._appending[path])
            elif path in self._failed:
                failed[path] = self._failed[path]
        self._syncing.update(file.path for file in files)
        try:
            yield files, failed
        finally:
            self._syncing.clear()

    def reading(self, path: str) -> ReadFile:
        """The file open for reading. It closes itself when the last who holds it lets go, so that
        a range that is being sent outlives its place here."""
        file = self._reading.get(path)
        if file is not None:
            self._reading.move_to_end(path)
            return file
        if len(self._reading) >= self._open_files_max:
            self._reading.popitem(last=False)
        file = self._reading[path] = self._files.open(path)
        return file

    def pin(self, path: str) -> None:
        """It has writes that a commit must sync."""
        self._pins[path] = self._pins.get(path, 0) + 1

    def unpin(self, path: str) -> None:
        self._pins[path] -= 1
        if not self._pins[path]:
            del self._pins[path]

    def forget(self, paths: Iterable[str]) -> None:
        """These files are about to be removed, or will not be written any more."""
        for path in paths:
            file = self._appending.pop(path, None)
            if file is not None:
                file.close()
            self._reading.pop(path, None)
            self._failed.pop(path, None)

    def close(self) -> None:
        self.forget(list(self._appending))
        self._reading.clear()
