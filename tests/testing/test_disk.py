"""What a simulated disk keeps and what it may lose."""

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.testing.sim import DiskFault, DiskFaults, SimClock, SimDisk
from busnode.world.files import AppendFile, read_whole, replace_whole

SEEDS = range(200)


def write(disk: SimDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    file = disk.append_to(path)
    file.append(data)
    if sync:
        file.sync()
    file.close()


def read(disk: SimDisk, path: str) -> bytes | None:
    return read_whole(disk, path, 1 << 20) if disk.exists(path) else None


def pattern(count: int) -> bytes:
    """Bytes without a zero, and without two equal sectors."""
    return bytes(1 + (number * 7 + number // 512) % 255 for number in range(count))


def outcomes(story: Callable[[SimDisk], None], result: Callable[[SimDisk], object]) -> set[object]:
    """All that a power loss after a story can leave, over many seeds."""
    found: set[object] = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        disk.make_directory("/d")
        disk.sync_directory("/")
        story(disk)
        disk.power_loss()
        found.add(result(disk))
    return found


def test_a_kill_keeps_what_was_written_and_takes_handles_and_locks() -> None:
    disk = SimDisk()
    disk.make_directory("/d")
    file = disk.append_to("/d/x")
    file.append(b"never synced")
    reader = disk.open("/d/x")
    lock = disk.lock("/d/lock")
    assert lock is not None
    disk.kill()
    assert read(disk, "/d/x") == b"never synced"
    for operation in (
        lambda: file.append(b"x"),
        file.sync,
        reader.size_bytes,
        lambda: reader.read_into(memoryview(bytearray(1)), 0),
    ):
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            operation()
    again = disk.lock("/d/lock")
    assert again is not None
    lock.close()
    assert disk.lock("/d/lock") is None
    assert disk.faults[DiskFault.KILL] == 1


def test_what_a_killed_process_had_not_synced_is_still_at_risk() -> None:
    def story(disk: SimDisk) -> None:
        write(disk, "/d/x", b"", sync=True)
        disk.sync_directory("/d")
        write(disk, "/d/x", b"written")
        disk.kill()

    found = outcomes(story, lambda disk: read(disk, "/d/x"))
    assert {b"", b"written"} < found


def test_unsynced_bytes_survive_as_a_prefix_with_damage_and_zeros() -> None:
    data = pattern(5000)
    kinds: set[str] = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        write(disk, "/x", b"", sync=True)
        disk.sync_directory("/")
        write(disk, "/x", data)
        disk.power_loss()
        found = read(disk, "/x")
        assert found is not None
        assert len(found) <= len(data)
        kept = len(found.rstrip(b"\0"))
        if found == data:
            kinds.add("all")
        elif not found:
            kinds.add("nothing")
        elif data.startswith(found):
            kinds.add("prefix")
        elif data.startswith(found[:kept]):
            kinds.add("prefix and zeros")
        else:
            kinds.add("damage")
        damaged = [at for at in range(0, kept, 512) if found[at : at + 512] != data[at : at + 512]]
        if disk.faults[DiskFault.DAMAGED_SECTOR] == 0:
            assert len(damaged) <= 1, "without damage it is a prefix and then zeros"
    assert kinds == {"all", "nothing", "prefix", "prefix and zeros", "damage"}


def test_synced_bytes_stay_in_a_sector_that_is_damaged_behind_them() -> None:
    damaged = 0
    for seed in SEEDS:
        disk = SimDisk(seed)
        write(disk, "/x", pattern(700), sync=True)
        disk.sync_directory("/")
        write(disk, "/x", pattern(200))
        disk.power_loss()
        found = read(disk, "/x")
        assert found is not None
        assert found[:700] == pattern(700)
        damaged += disk.faults[DiskFault.DAMAGED_SECTOR]
    assert damaged


def test_after_a_failed_sync_a_later_success_saves_only_what_came_later() -> None:
    """As in Linux: the pages are clean after the failure, so the next sync has nothing to do."""
    lost = 0
    for seed in SEEDS:
        disk = SimDisk(seed)
        write(disk, "/x", b"a" * 1000, sync=True)
        disk.sync_directory("/")
        file = disk.append_to("/x")
        file.append(b"b" * 1000)
        disk.arm(DiskFault.SYNC_EIO)
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            file.sync()
        file.sync()
        file.append(b"c" * 1000)
        file.sync()
        assert read(disk, "/x") == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
        disk.power_loss()
        found = read(disk, "/x")
        assert found is not None
        assert found[:1000] == b"a" * 1000
        assert found[2000:] == b"c" * 1000
        lost += found[1000:2000] != b"b" * 1000
    assert len(SEEDS) // 2 < lost < len(SEEDS)


def test_after_a_failed_sync_of_a_directory_a_later_success_saves_no_name() -> None:
    def story(disk: SimDisk) -> None:
        write(disk, "/d/x", b"x", sync=True)
        disk.arm(DiskFault.SYNC_EIO, lambda path: path == "/d")
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            disk.sync_directory("/d")
        write(disk, "/d/y", b"y", sync=True)
        disk.sync_directory("/d")

    found = outcomes(story, lambda disk: tuple(disk.names("/d")))
    assert found == {("y",), ("x", "y")}


def test_what_was_removed_after_a_failed_sync_stays_removed_once_that_is_synced() -> None:
    def story(disk: SimDisk) -> None:
        write(disk, "/d/x", b"x", sync=True)
        disk.arm(DiskFault.SYNC_EIO, lambda path: path == "/d")
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            disk.sync_directory("/d")
        disk.remove("/d/x")
        disk.sync_directory("/d")

    assert outcomes(story, lambda disk: tuple(disk.names("/d"))) == {()}


def test_a_new_name_needs_a_sync_of_its_directory_and_of_no_other() -> None:
    def unsynced(disk: SimDisk) -> None:
        write(disk, "/d/x", b"x", sync=True)
        disk.sync_directory("/")

    def synced(disk: SimDisk) -> None:
        unsynced(disk)
        disk.sync_directory("/d")

    assert outcomes(unsynced, lambda disk: read(disk, "/d/x")) == {None, b"x"}
    assert outcomes(synced, lambda disk: read(disk, "/d/x")) == {b"x"}


def test_a_new_directory_needs_a_sync_of_its_parent_whatever_is_in_it() -> None:
    def unsynced(disk: SimDisk) -> None:
        disk.make_directory("/d/one/two")
        write(disk, "/d/one/two/x", b"x", sync=True)
        disk.sync_directory("/d/one/two")
        disk.sync_directory("/d/one")

    def synced(disk: SimDisk) -> None:
        unsynced(disk)
        disk.sync_directory("/d")

    assert outcomes(unsynced, lambda disk: read(disk, "/d/one/two/x")) == {None, b"x"}
    assert outcomes(synced, lambda disk: read(disk, "/d/one/two/x")) == {b"x"}


def test_a_removed_name_may_come_back_until_its_directory_is_synced() -> None:
    def unsynced(disk: SimDisk) -> None:
        write(disk, "/d/x", b"x", sync=True)
        disk.sync_directory("/d")
        disk.remove("/d/x")

    def synced(disk: SimDisk) -> None:
        unsynced(disk)
        disk.sync_directory("/d")

    assert outcomes(unsynced, lambda disk: read(disk, "/d/x")) == {None, b"x"}
    assert outcomes(synced, lambda disk: read(disk, "/d/x")) == {None}


def test_a_rename_is_undone_or_done_or_half_done_but_loses_no_file() -> None:
    def unsynced(disk: SimDisk) -> None:
        write(disk, "/d/old", b"x", sync=True)
        disk.sync_directory("/d")
        disk.rename("/d/old", "/d/new")

    def synced(disk: SimDisk) -> None:
        unsynced(disk)
        disk.sync_directory("/d")

    found = outcomes(unsynced, lambda disk: tuple(disk.names("/d")))
    assert found == {("old",), ("new",), ("new", "old")}
    assert outcomes(synced, lambda disk: tuple(disk.names("/d"))) == {("new",)}


def test_a_rename_to_another_directory_needs_both_synced_and_the_new_one_first() -> None:
    def move(disk: SimDisk, *synced: str) -> None:
        disk.make_directory("/e")
        disk.sync_directory("/")
        write(disk, "/d/x", b"x", sync=True)
        disk.sync_directory("/d")
        disk.rename("/d/x", "/e/x")
        for directory in synced:
            disk.sync_directory(directory)

    def names(disk: SimDisk) -> object:
        return tuple(disk.names("/d")), tuple(disk.names("/e"))

    undone, done, both, neither = (("x",), ()), ((), ("x",)), (("x",), ("x",)), ((), ())
    assert outcomes(move, names) == {undone, done, both}
    assert outcomes(lambda disk: move(disk, "/e"), names) == {done, both}
    assert outcomes(lambda disk: move(disk, "/d"), names) == {done, neither}
    assert outcomes(lambda disk: move(disk, "/e", "/d"), names) == {done}


def test_a_directory_that_is_renamed_has_one_name() -> None:
    def story(disk: SimDisk) -> None:
        disk.make_directory("/d/old")
        write(disk, "/d/old/x", b"x", sync=True)
        disk.sync_directory("/d/old")
        disk.sync_directory("/d")
        disk.rename("/d/old", "/d/new")

    assert outcomes(story, lambda disk: tuple(disk.names("/d"))) == {("old",), ("new",)}


def test_a_file_with_two_names_after_a_crash_is_one_file() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        write(disk, "/old", b"x", sync=True)
        disk.sync_directory("/")
        disk.rename("/old", "/new")
        write(disk, "/new", b"y" * 3000)
        disk.power_loss()
        if disk.names("/") == ["new", "old"]:
            assert read(disk, "/new") == read(disk, "/old")
            disk.remove("/old")
            write(disk, "/old", b"another")
            assert read(disk, "/new") != read(disk, "/old")
            return
    pytest.fail("no seed has kept a rename by half")


def test_names_that_survive_may_be_those_made_last() -> None:
    """Harsher than a journal, which keeps a prefix of what was done."""

    def story(disk: SimDisk) -> None:
        for name in "abc":
            write(disk, f"/d/{name}", b"", sync=True)

    found = outcomes(story, lambda disk: "".join(disk.names("/d")))
    assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


@pytest.mark.parametrize(
    ("step", "possible"),
    [
        (DiskFault.ENTRY_EIO, {b"old"}),
        (DiskFault.APPEND_EIO, {b"old"}),
        (DiskFault.SYNC_EIO, {b"old"}),
        (None, {b"old", b"new"}),
    ],
)
def test_a_file_is_replaced_as_a_whole_wherever_it_is_interrupted(
    step: DiskFault | None, possible: set[bytes]
) -> None:
    """By a power loss, after each of its steps; the last is the sync of the directory."""

    def story(disk: SimDisk) -> None:
        replace_whole(disk, "/d/x", b"old")
        disk.arm(step or DiskFault.SYNC_EIO, lambda path: path == ("/d/x.new" if step else "/d"))
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            replace_whole(disk, "/d/x", b"new")

    assert outcomes(story, lambda disk: read(disk, "/d/x")) == possible


def test_a_rename_over_unsynced_contents_does_not_save_them() -> None:
    def story(disk: SimDisk) -> None:
        replace_whole(disk, "/d/x", b"old")
        write(disk, "/d/x.new", b"new")
        disk.rename("/d/x.new", "/d/x")
        disk.sync_directory("/d")

    found = outcomes(story, lambda disk: read(disk, "/d/x"))
    assert b"" in found
    assert b"old" not in found


def test_a_truncate_is_durable_when_it_returns_and_may_come_undone_when_it_fails() -> None:
    def good(disk: SimDisk) -> None:
        write(disk, "/d/x", b"abcdef", sync=True)
        disk.sync_directory("/d")
        disk.truncate("/d/x", 3)

    def bad(disk: SimDisk) -> None:
        write(disk, "/d/x", b"abcdef", sync=True)
        disk.sync_directory("/d")
        disk.arm(DiskFault.SYNC_EIO)
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            disk.truncate("/d/x", 3)

    assert outcomes(good, lambda disk: read(disk, "/d/x")) == {b"abc"}
    found = outcomes(bad, lambda disk: read(disk, "/d/x"))
    assert {b"abc", b"abcdef"} <= found
    assert all(isinstance(each, bytes) and each.startswith(b"abc") for each in found)


def test_what_survived_a_power_loss_survives_the_next() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        write(disk, "/x", pattern(3000))
        disk.power_loss()
        first = read(disk, "/x")
        disk.power_loss()
        assert read(disk, "/x") == first


def test_a_file_without_a_kernel_has_no_descriptor() -> None:
    disk = SimDisk()
    write(disk, "/x", b"x")
    reader = disk.open("/x")
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        reader.fileno()


def test_a_path_must_be_absolute_and_plain() -> None:
    disk = SimDisk()
    for path in ("x", "", "/x/", "//x", "/x/../y", "/./x"):
        with pytest.raises(ValueError, match="absolute"):
            disk.append_to(path)


def test_the_time_of_a_write_is_the_machines_time() -> None:
    clock = SimClock(1_000)
    disk = SimDisk(clock=clock)
    write(disk, "/x", b"x")
    clock.jump(5)
    write(disk, "/y", b"y")
    assert (disk.modified_us("/x"), disk.modified_us("/y")) == (1_000, 5_001_000)


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), NAMES, st.integers(0, 3000)),
        st.tuples(st.just("sync"), NAMES, st.booleans()),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("remove"), NAMES, st.none()),
        st.tuples(st.just("cut"), NAMES, st.integers(0, 3000)),
        st.tuples(st.just("sync directory"), NAMES, st.none()),
        st.tuples(st.just("kill"), NAMES, st.none()),
    ),
    max_size=30,
)


class Written:
    """What the oracle knows about one file."""

    def __init__(self) -> None:
        self.contents = b""
        self.promised_bytes = 0
        self.in_doubt = False


@given(seed=st.integers(0, 1 << 32), steps=STEPS)
def test_what_was_promised_survives_any_story(
    seed: int, steps: list[tuple[str, str, int | bool | str | None]]
) -> None:
    """The oracle promises as little as POSIX does: synced prefixes, under names that were synced
    and not touched since.
    """
    disk = SimDisk(seed)
    current: dict[str, Written] = {}
    promised: dict[str, Written] = {}
    for step, name, argument in steps:
        path = f"/{name}"
        match step, argument:
            case "append", int(count):
                data = disk_bytes(seed, count)
                written = current.setdefault(name, Written())
                written.contents += data
                write(disk, path, data)
            case "sync", bool(fails) if name in current:
                file = disk.append_to(path)
                sync_perhaps(disk, file, current[name], fails)
                file.close()
            case "rename", str(new) if name in current and name != new:
                disk.rename(path, f"/{new}")
                current[new] = current.pop(name)
                promised.pop(name, None)
                promised.pop(new, None)
            case "remove", _ if name in current:
                disk.remove(path)
                del current[name]
                promised.pop(name, None)
            case "cut", int(size) if name in current and size <= len(current[name].contents):
                disk.truncate(path, size)
                written = current[name]
                written.contents = written.contents[:size]
                written.promised_bytes = (
                    min(size, written.promised_bytes) if written.in_doubt else size
                )
            case "sync directory", _:
                disk.sync_directory("/")
                promised = dict(current)
            case "kill", _:
                disk.kill()
            case _:
                pass
    for name, written in current.items():
        assert read(disk, f"/{name}") == written.contents

    disk.power_loss()
    for name, written in promised.items():
        found = read(disk, f"/{name}")
        assert found is not None, f"{name} was promised"
        kept = written.promised_bytes
        assert found[:kept] == written.contents[:kept]


def disk_bytes(seed: int, count: int) -> bytes:
    return bytes([1 + seed % 255]) * count


def sync_perhaps(disk: SimDisk, file: AppendFile, written: Written, fails: bool) -> None:
    if fails:
        disk.arm(DiskFault.SYNC_EIO)
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            file.sync()
        written.in_doubt = written.in_doubt or written.promised_bytes < len(written.contents)
    else:
        file.sync()
        if not written.in_doubt:
            written.promised_bytes = len(written.contents)


def test_a_disk_without_faults_has_none() -> None:
    disk = SimDisk(3, DiskFaults())
    for number in range(50):
        write(disk, f"/{number}", b"x" * 100, sync=True)
        disk.sync_directory("/")
    disk.power_loss()
    assert len(disk.names("/")) == 50
    assert dict(disk.faults) == {DiskFault.POWER_LOSS: 1}
