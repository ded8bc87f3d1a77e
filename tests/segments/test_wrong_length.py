"""A record whose length has rotted, which no hash covers: nobody is led behind the end of a log."""

import pytest
import trio

from busnode.segments.file_store import FileStore
from busnode.segments.store import Range
from busnode.testing.sim import SimDisk

from .samples import BROKER, DIRECTORY, TEMPERATURE, StoppedClock, read_log, write_numbered


@pytest.mark.parametrize("byte", [1, 2])
def test_what_lies_behind_a_record_with_a_wrong_length_is_still_found(byte: int) -> None:
    disk = SimDisk()
    store = FileStore(disk, StoppedClock(), DIRECTORY)
    store.begin(BROKER)
    log = store.create(TEMPERATURE)
    lengths = [len(record) for record in write_numbered(log, *[1] * 10)]
    trio.run(store.commit)
    (segment,) = log.segments
    fifth_at = segment.size_bytes - sum(lengths[4:])
    disk.flip_bit(segment.path, fifth_at + byte, 6)
    found = log.reader(9).next_range(1 << 20)
    assert isinstance(found, Range)
    assert (found.first_no, found.last_no, found.length) == (10, 10, lengths[9])
    reading = read_log(log)
    assert set(reading.records) | set(range(5, 6)) == set(range(1, 11))
    store.close()
