"""Files of a process that is killed: what it had written is there, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from busnode.testing.mortal_files import MortalFiles
from busnode.world.real_files import RealFiles


def test_what_was_written_is_there_and_the_dead_write_no_more(tmp_path: Path) -> None:
    files = MortalFiles()
    path = f"{tmp_path}/log"
    file = files.append_to(path)
    file.append(b"before")
    files.die()
    refused: list[Callable[[], object]] = [
        lambda: file.append(b"after"),
        file.sync,
        lambda: files.append_to(f"{tmp_path}/new"),
        lambda: files.make_directory(f"{tmp_path}/new"),
        lambda: files.rename(path, f"{tmp_path}/new"),
        lambda: files.remove(path),
        lambda: files.truncate(path, 0),
        lambda: files.sync_directory(str(tmp_path)),
    ]
    for each in refused:
        with pytest.raises(OSError, match="this process is dead"):
            each()
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log").read_bytes() == b"before"


def test_a_lock_of_the_dead_can_be_let_go(tmp_path: Path) -> None:
    files = MortalFiles()
    path = f"{tmp_path}/lock"
    lock = files.lock(path)
    assert lock is not None
    files.die()
    assert RealFiles().lock(path) is None
    lock.close()
    again = RealFiles().lock(path)
    assert again is not None
    again.close()


async def test_the_dead_do_not_hear_whether_a_sync_went_well(tmp_path: Path) -> None:
    files = MortalFiles()
    file = files.append_to(f"{tmp_path}/log")
    file.append(b"x")
    assert await files.sync_all([file], [str(tmp_path)]) == [None, None]
    files.die()
    with trio.move_on_after(0.05) as scope:
        await files.sync_all([file])
    assert scope.cancelled_caught
    file.close()
