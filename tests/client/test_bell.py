"""The bell: all who wait are woken, and who is cancelled is not waited for."""

import anyio
import anyio.lowlevel

from busnode.client.bell import Bell
from tests.client.scripted_node import eventually, on_both_loops


@on_both_loops
async def test_a_ring_wakes_all_who_wait_once() -> None:
    bell = Bell()
    woken: list[int] = []

    async def wait(number: int, times: int) -> None:
        for _ in range(times):
            await bell.wait()
            woken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(wait, number, 2)
        await eventually(lambda: len(bell._waiting) == 3)
        bell.ring()
        bell.ring()  # nobody waits any more
        await eventually(lambda: len(woken) == 3 and len(bell._waiting) == 3)
        assert sorted(woken) == [0, 1, 2]
        bell.ring()
    assert sorted(woken) == [0, 0, 1, 1, 2, 2]


@on_both_loops
async def test_who_is_cancelled_waits_no_more_and_the_others_do() -> None:
    bell = Bell()
    woken: list[str] = []

    async def wait() -> None:
        await bell.wait()
        woken.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await eventually(lambda: len(bell._waiting) == 1)
        with anyio.move_on_after(0.001) as scope:
            await bell.wait()
        assert scope.cancelled_caught
        assert len(bell._waiting) == 1
        bell.ring()
    assert woken == ["other"]


@on_both_loops
async def test_a_ring_and_a_cancellation_in_the_same_turn_end_the_waiting() -> None:
    for ring_first in (True, False):
        bell = Bell()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bell.wait)
            await eventually(lambda bell=bell: len(bell._waiting) == 1)  # type: ignore[misc]
            if ring_first:
                bell.ring()
            tasks.cancel_scope.cancel()
            if not ring_first:
                bell.ring()
        assert not bell._waiting
