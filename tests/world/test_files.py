"""The contract of `Files`, for the real file system and for the simulated disk alike."""

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from busnode.testing.sim import SimDisk
from busnode.world.files import Files, read_whole, replace_whole
from busnode.world.real_files import RealFiles


@dataclass(frozen=True)
class Place:
    """A file system, an empty directory in it, and a way to make space short for a while."""

    files: Files
    root: str
    quota: Callable[[int], AbstractContextManager[None]]

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> str:
        file = self.files.append_to(self.path(name))
        file.append(data)
        file.close()
        return self.path(name)

    def read(self, name: str) -> bytes:
        return read_whole(self.files, self.path(name), 1 << 20)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """The kernel cuts a write short there. Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "real":
        return Place(RealFiles(), str(tmp_path), file_size_limit)
    disk = SimDisk(seed=1)
    disk.make_directory("/data")

    @contextmanager
    def full(size_bytes: int) -> Iterator[None]:
        disk.capacity_bytes = size_bytes
        yield
        disk.capacity_bytes = None

    return Place(disk, "/data", full)


def test_what_is_appended_is_read_back(place: Place) -> None:
    file = place.files.append_to(place.path("x"))
    file.append(b"one")
    file.append(bytearray(b"two"))
    file.append(memoryview(b"three")[1:])
    assert file.path == place.path("x")
    assert file.size_bytes == 10
    assert place.read("x") == b"onetwohree"
    file.close()


def test_appending_goes_on_at_the_end_of_a_reopened_file(place: Place) -> None:
    place.write("x", b"before")
    file = place.files.append_to(place.path("x"))
    assert file.size_bytes == 6
    file.append(b" after")
    file.sync()
    file.close()
    assert place.read("x") == b"before after"


def test_a_reader_sees_what_is_appended_after_it_opened(place: Place) -> None:
    file = place.files.append_to(place.path("x"))
    reader = place.files.open(place.path("x"))
    assert reader.size_bytes() == 0
    file.append(b"later")
    assert reader.size_bytes() == 5
    view = memoryview(bytearray(5))
    assert reader.read_into(view, 0) == 5
    assert bytes(view) == b"later"
    reader.close()
    file.close()


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, b"0123"), (3, b"3456"), (8, b"89"), (10, b"")]
)
def test_a_read_is_short_at_the_end_only(place: Place, offset: int, expected: bytes) -> None:
    place.write("x", b"0123456789")
    reader = place.files.open(place.path("x"))
    view = memoryview(bytearray(4))
    assert reader.read_into(view, offset) == len(expected)
    assert view[: len(expected)] == expected
    reader.close()


def test_closing_twice_is_harmless_and_a_closed_file_does_nothing(place: Place) -> None:
    file = place.files.append_to(place.path("x"))
    reader = place.files.open(place.path("x"))
    for handle in (file, reader, file, reader):
        handle.close()
    for operation in (
        lambda: file.append(b"x"),
        file.sync,
        reader.size_bytes,
        lambda: reader.read_into(memoryview(bytearray(1)), 0),
    ):
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            operation()


def test_an_append_that_does_not_fit_raises_and_leaves_a_part(place: Place) -> None:
    file = place.files.append_to(place.path("x"))
    with place.quota(1000):
        file.append(b"a" * 600)
        with pytest.raises(OSError, match=f"Errno ({errno.ENOSPC}|{errno.EIO})"):
            file.append(b"b" * 600)
        assert file.size_bytes == 1000
        with pytest.raises(OSError, match=f"Errno ({errno.ENOSPC}|{errno.EFBIG})"):
            file.append(b"c")
    assert file.size_bytes == 1000
    file.close()
    assert place.read("x") == b"a" * 600 + b"b" * 400


def test_names_are_sorted_and_include_directories(place: Place) -> None:
    for name in ("b", "c", "a"):
        place.write(name, b"")
    place.files.make_directory(place.path("aa"))
    assert place.files.names(place.root) == ["a", "aa", "b", "c"]


def test_a_directory_is_made_with_its_parents_and_again_without_error(place: Place) -> None:
    for _ in range(2):
        place.files.make_directory(place.path("one/two/three"))
    assert place.files.names(place.path("one/two")) == ["three"]
    for name in ("one/two", "one", "."):
        place.files.sync_directory(place.path(name) if name != "." else place.root)


def test_a_directory_cannot_be_made_where_a_file_is(place: Place) -> None:
    place.write("x", b"")
    with pytest.raises(FileExistsError):
        place.files.make_directory(place.path("x"))
    with pytest.raises(NotADirectoryError):
        place.files.make_directory(place.path("x/y"))


def test_a_rename_takes_the_place_of_what_was_there(place: Place) -> None:
    place.write("old", b"new contents")
    place.write("new", b"old contents")
    before = place.files.open(place.path("new"))
    place.files.rename(place.path("old"), place.path("new"))
    assert place.files.names(place.root) == ["new"]
    assert place.read("new") == b"new contents"
    view = memoryview(bytearray(12))
    assert before.read_into(view, 0) == 12
    assert bytes(view) == b"old contents"
    before.close()


def test_a_directory_is_renamed_with_all_that_is_in_it(place: Place) -> None:
    place.files.make_directory(place.path("one/two"))
    place.write("one/two/x", b"x")
    place.files.make_directory(place.path("three"))
    place.files.rename(place.path("one"), place.path("three/one"))
    assert place.read("three/one/two/x") == b"x"
    assert not place.files.exists(place.path("one"))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("missing", "x", FileNotFoundError),
        ("file", "missing/x", FileNotFoundError),
        ("file", "full", IsADirectoryError),
        ("full", "file", NotADirectoryError),
        ("empty", "full", OSError),
        ("full", "full/below", OSError),
    ],
)
def test_a_rename_that_cannot_be_changes_nothing(
    place: Place, old: str, new: str, error: type[OSError]
) -> None:
    place.files.make_directory(place.path("empty"))
    place.files.make_directory(place.path("full"))
    place.write("full/x", b"x")
    place.write("file", b"f")
    with pytest.raises(error):
        place.files.rename(place.path(old), place.path(new))
    assert place.files.names(place.root) == ["empty", "file", "full"]
    assert place.read("full/x") == b"x"
    assert place.read("file") == b"f"


def test_a_file_renamed_to_itself_stays(place: Place) -> None:
    place.write("x", b"x")
    place.files.rename(place.path("x"), place.path("x"))
    assert place.read("x") == b"x"


def test_a_removed_file_is_gone_but_not_for_those_who_have_it_open(place: Place) -> None:
    place.write("x", b"kept")
    reader = place.files.open(place.path("x"))
    place.files.remove(place.path("x"))
    assert not place.files.exists(place.path("x"))
    assert reader.size_bytes() == 4
    reader.close()
    place.write("x", b"another")
    assert place.read("x") == b"another"


def test_only_an_empty_directory_can_be_removed(place: Place) -> None:
    place.files.make_directory(place.path("one"))
    place.write("one/x", b"")
    with pytest.raises(OSError, match=f"Errno {errno.ENOTEMPTY}"):
        place.files.remove(place.path("one"))
    place.files.remove(place.path("one/x"))
    place.files.remove(place.path("one"))
    assert place.files.names(place.root) == []


def test_what_is_missing_is_said_to_be_missing(place: Place) -> None:
    missing = place.path("missing")
    for operation in (
        lambda: place.files.open(missing),
        lambda: place.files.names(missing),
        lambda: place.files.remove(missing),
        lambda: place.files.truncate(missing, 0),
        lambda: place.files.modified_us(missing),
        lambda: place.files.sync_directory(missing),
        lambda: place.files.append_to(missing + "/x"),
        lambda: place.files.lock(missing + "/x"),
    ):
        with pytest.raises(FileNotFoundError):
            operation()
    assert not place.files.exists(missing)
    assert not place.files.exists(missing + "/x")


def test_a_file_is_no_directory_and_a_directory_no_file(place: Place) -> None:
    place.write("file", b"")
    place.files.make_directory(place.path("directory"))
    for operation in (
        lambda: place.files.names(place.path("file")),
        lambda: place.files.sync_directory(place.path("file")),
        lambda: place.files.append_to(place.path("file/x")),
    ):
        with pytest.raises(NotADirectoryError):
            operation()
    with pytest.raises(IsADirectoryError):
        place.files.append_to(place.path("directory"))
    assert not place.files.exists(place.path("file/x"))


def test_a_truncated_file_keeps_its_beginning_and_grows_from_there(place: Place) -> None:
    place.write("x", b"0123456789")
    place.files.truncate(place.path("x"), 4)
    assert place.read("x") == b"0123"
    place.write("x", b"abc")
    assert place.read("x") == b"0123abc"


def test_a_file_is_never_made_longer_by_a_truncate(place: Place) -> None:
    place.write("x", b"0123")
    with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
        place.files.truncate(place.path("x"), 5)
    assert place.read("x") == b"0123"


def test_the_time_of_a_write_does_not_go_back(place: Place) -> None:
    place.write("x", b"0")
    first = place.files.modified_us(place.path("x"))
    place.write("x", b"1")
    assert 1_600_000_000_000_000 < first <= place.files.modified_us(place.path("x"))


def test_a_lock_is_held_by_one_until_it_is_closed(place: Place) -> None:
    lock = place.files.lock(place.path("lock"))
    assert lock is not None
    assert place.files.lock(place.path("lock")) is None
    other = place.files.lock(place.path("other lock"))
    assert other is not None
    lock.close()
    second = place.files.lock(place.path("lock"))
    assert second is not None
    lock.close()
    assert place.files.lock(place.path("lock")) is None
    second.close()
    other.close()


def test_a_file_is_replaced_as_a_whole(place: Place) -> None:
    for contents in (b"first", b"second"):
        replace_whole(place.files, place.path("x"), contents)
        assert place.read("x") == contents
    assert place.files.names(place.root) == ["x"]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
async def test_all_files_are_synced(place: Place, count: int) -> None:
    files = [place.files.append_to(place.path(str(number))) for number in range(count)]
    for _ in range(2):
        for file in files:
            file.append(b"x")
        assert await place.files.sync_all(files) == [None] * count
    for file in files:
        file.close()


async def test_each_file_and_directory_has_its_own_outcome(place: Place) -> None:
    files = [place.files.append_to(place.path(str(number))) for number in range(40)]
    place.files.make_directory(place.path("below"))
    for number in (0, 17, 39):
        files[number].close()
    directories = [place.root, place.path("missing"), place.path("below")]
    outcomes = await place.files.sync_all(files, directories)
    assert len(outcomes) == 43
    assert {number: error.errno for number, error in enumerate(outcomes) if error} == {
        0: errno.EBADF,
        17: errno.EBADF,
        39: errno.EBADF,
        41: errno.ENOENT,
    }
    for file in files:
        file.close()


async def test_a_sync_that_was_begun_is_ended_also_when_cancelled(place: Place) -> None:
    file = place.files.append_to(place.path("x"))
    file.append(b"x")
    outcomes: list[OSError | None] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        outcomes = await place.files.sync_all([file])
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert outcomes == [None]
    file.close()


async def test_many_tasks_may_sync_at_once(place: Place) -> None:
    done: list[int] = []

    async def sync(number: int) -> None:
        file = place.files.append_to(place.path(str(number)))
        file.append(b"x")
        assert await place.files.sync_all([file]) == [None]
        file.close()
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(sync, number)
    assert sorted(done) == list(range(50))


# What is in memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 4096, 300_001, 5_000_000])
async def test_what_was_just_written_is_in_memory(place: Place, size_bytes: int) -> None:
    contents = bytes(range(251)) * (size_bytes // 251 + 1)
    place.write("x", contents[:size_bytes])
    file = place.files.open(place.path("x"))
    await file.fetch(0, size_bytes)
    for offset in {0, size_bytes // 2, size_bytes - 1}:
        length = size_bytes - offset
        assert file.read_in_memory(offset, length) == contents[offset:size_bytes]
        assert file.is_in_memory(offset, length)
        await file.fetch(offset, length)
    file.close()


async def test_what_is_behind_the_end_is_not_in_memory_and_cannot_be_fetched(place: Place) -> None:
    place.write("x", bytes(10_000))
    file = place.files.open(place.path("x"))
    for offset, length in ((9_999, 2), (0, 10_001), (10_000, 1), (50_000, 300_000)):
        assert file.read_in_memory(offset, length) is None
        assert not file.is_in_memory(offset, length)
        with pytest.raises(OSError, match="the file ends at byte ") as raised:
            await file.fetch(offset, length)
        assert raised.value.errno == errno.ENODATA
        assert raised.value.filename == place.path("x")
    file.close()


async def test_of_a_closed_file_nothing_is_fetched(place: Place) -> None:
    place.write("x", b"x")
    file = place.files.open(place.path("x"))
    file.close()
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        file.read_in_memory(0, 1)
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        file.is_in_memory(0, 1)
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        await file.fetch(0, 1)


async def test_many_tasks_may_fetch_at_once(place: Place) -> None:
    place.write("x", bytes(1_000_000))
    file = place.files.open(place.path("x"))
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(file.fetch, number * 10_000, 10_000)
    file.close()
