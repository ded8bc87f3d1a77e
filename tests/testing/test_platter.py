"""What is on a disk for sure: what was found out once and kept is what a fresh look would find."""

import pytest

from busnode.testing.sim import SimDisk
from busnode.testing.sim.platter import LOGS, RECORDS_AT, Platter

from ..segments.samples import BROKER, PRESSURE, TEMPERATURE, record

FOLDER = f"{LOGS}/{BROKER.hex()}"
FIRST = f"{FOLDER}/00000001-00000000000000000001.seg"
SECOND = f"{FOLDER}/00000001-00000000000000000002.seg"
OTHER = f"{FOLDER}/00000002-00000000000000000001.seg"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_directory(FOLDER)
    parts = FOLDER.split("/")
    for depth in range(1, len(parts)):
        made.sync_directory("/".join(parts[:depth]) or "/")
    return made


def write(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.append_to(path)
    file.append(data)
    file.sync()
    file.close()


def held(platter: Platter) -> list[int]:
    """Numbers of one log, and those of the other with a minus."""
    known = [number for number in (1, 2) if platter.holds(TEMPERATURE, number)]
    return known + [-number for number in (1, 2) if platter.holds(PRESSURE, number)]


def test_a_platter_that_was_looked_at_sees_all_that_changes(disk: SimDisk) -> None:
    platter = Platter(disk)
    found: list[list[int]] = []

    def look() -> None:
        found.append(held(platter))
        assert found[-1] == held(Platter(disk))

    look()
    write(disk, FIRST, bytes(RECORDS_AT) + record(TEMPERATURE, 1, [b"one"]))
    look()  # it has no name for sure
    disk.sync_directory(FOLDER)
    look()
    write(disk, OTHER, bytes(RECORDS_AT))
    write(disk, SECOND, bytes(RECORDS_AT) + record(TEMPERATURE, 2, [b"two"]))
    disk.sync_directory(FOLDER)
    look()  # of one file it is not known yet what is in it
    write(disk, OTHER, record(PRESSURE, 1, [b"other"]))
    look()
    disk.flip_bit(FIRST, RECORDS_AT + 100, 3)
    look()
    disk.remove(SECOND)
    look()  # it may be gone
    disk.power_loss()
    look()
    assert found[:7] == [[], [], [1], [1, 2], [1, 2, -1], [2, -1], [-1]]


def test_a_later_message_is_found_in_another_file(disk: SimDisk) -> None:
    platter = Platter(disk)
    write(disk, FIRST, bytes(RECORDS_AT) + record(TEMPERATURE, 1, [b"one"]))
    write(disk, OTHER, bytes(RECORDS_AT) + record(PRESSURE, 1, [b"other"]))
    disk.sync_directory(FOLDER)
    assert not platter.has_beyond(TEMPERATURE, 1)
    write(disk, SECOND, bytes(RECORDS_AT) + record(TEMPERATURE, 2, [b"two"]))
    disk.sync_directory(FOLDER)
    assert platter.has_beyond(TEMPERATURE, 1)
    assert not platter.has_beyond(PRESSURE, 1)
