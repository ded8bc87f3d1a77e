"""Where positions are kept."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from busnode.client import FileCursorStore, MemoryCursorStore, Position
from busnode.testing.sim import DiskFaults, SimDisk, simulate
from busnode.wire.errors import Refused, StorageFailed
from busnode.wire.ids import MsgNo, Topic
from busnode.world.real_anyio import AnyioFiles
from tests.client.scripted_node import BROKER, on_both_loops


def position(msg_no: int) -> Position:
    return Position({(BROKER, Topic("/t")): MsgNo(msg_no)})


@on_both_loops
async def test_a_file_gives_back_what_was_saved_last(tmp_path: Path) -> None:
    store = FileCursorStore(tmp_path / "cursors", AnyioFiles())
    assert await store.load() is None
    for number in range(3):
        await store.save(position(number))
        assert await store.load() == position(number)
    (tmp_path / "cursors.new").write_text("left behind by a crash")
    await store.save(position(9))
    assert await FileCursorStore(str(tmp_path / "cursors"), AnyioFiles()).load() == position(9)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cursors"]


def test_a_position_keeps_what_was_done_on_the_way_to_it_until_it_is_moved_by_hand() -> None:
    seen = ((2**64 - 1, 3, 2**63 + 1), (5, 0, 1))
    reached = position(4).having_seen(seen)
    again = Position.decode(reached.encode())
    assert (again, again.seen) == (reached, seen)
    assert Position.decode(position(4).encode()).seen == ()
    again[BROKER, Topic("/t")] = MsgNo(3)
    assert again.seen == (), "who goes back wants to have it again"
    assert "seen" not in again.encode()
    with pytest.raises(Refused):
        Position.decode(reached.encode().replace("5 0 1", "5 0 2"))


@on_both_loops
async def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = FileCursorStore("cursors", AnyioFiles())
    await store.save(position(1))
    assert await store.load() == position(1)


@on_both_loops
async def test_a_file_that_is_damaged_or_out_of_reach_is_an_error_never_a_new_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cursors"
    path.write_text(position(12).encode().replace("12", "13"))
    with pytest.raises(StorageFailed, match="hash does not fit"):
        await FileCursorStore(path, AnyioFiles()).load()
    with pytest.raises(StorageFailed, match="cannot be read"):
        await FileCursorStore(tmp_path, AnyioFiles()).load()
    with pytest.raises(StorageFailed, match="cannot be kept"):
        await FileCursorStore(tmp_path / "missing" / "cursors", AnyioFiles()).save(position(1))


def test_after_a_power_loss_it_is_the_old_position_or_the_new_one() -> None:
    found: set[int] = set()
    for seed in range(60):

        async def main(seed: int = seed) -> None:
            disk = SimDisk(seed)
            store = FileCursorStore("/cursors", disk)
            await store.save(position(1))
            disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.0)

            async def save_until_it_crashes() -> None:
                with suppress(StorageFailed):
                    await store.save(position(2))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(save_until_it_crashes)
                await trio.sleep(0.03 * seed)
                disk.power_loss()
            kept = await FileCursorStore("/cursors", disk).load()
            assert kept is not None
            assert kept in (position(1), position(2))
            found.update(kept.values())

        simulate(seed, main)
    assert found == {1, 2}


def test_what_was_saved_survives_a_power_loss() -> None:
    async def main() -> None:
        disk = SimDisk(3)
        await FileCursorStore("/cursors", disk).save(position(7))
        disk.power_loss()
        assert await FileCursorStore("/cursors", disk).load() == position(7)

    simulate(3, main)


def test_memory_is_a_store() -> None:
    async def main() -> None:
        store = MemoryCursorStore()
        assert await store.load() is None
        await store.save(position(1))
        assert await store.load() == position(1)

    trio.run(main)


def test_a_disk_that_refuses_to_sync_is_an_error() -> None:
    async def main() -> None:
        disk = SimDisk(1, DiskFaults(sync_eio=1.0))
        with pytest.raises(StorageFailed):
            await FileCursorStore("/cursors", disk).save(position(7))

    simulate(1, main)
