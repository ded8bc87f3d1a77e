"""A segment that somebody cuts while its log is open: looking at it again comes to an end."""

import pytest
import trio

from busnode.segments.file_store import FileStore
from busnode.segments.store import Range
from busnode.testing.sim import SimDisk

from .samples import BROKER, DIRECTORY, TEMPERATURE, StoppedClock, write_numbered


@pytest.mark.parametrize("missing_bytes", [1, 60, 150, 400])
def test_what_was_cut_off_is_named_as_missing(missing_bytes: int) -> None:
    disk = SimDisk()
    store = FileStore(disk, StoppedClock(), DIRECTORY)
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    write_numbered(log, *[1] * 10)
    trio.run(store.commit)
    found = log.reader(0).next_range(1 << 20)
    assert isinstance(found, Range)
    disk.truncate(found.file.path, found.offset + found.length - missing_bytes)
    holes = log.examine(found)
    assert holes
    assert holes[-1].last_no == 10
    assert holes[0].first_no > 1, "what is left is not given up"
    store.close()
