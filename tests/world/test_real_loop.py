"""A trio loop in a thread, called from code without async and from other loops."""

import asyncio
import threading

import pytest
import trio

from busnode.world.real_loop import TrioLoop


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


async def fail() -> None:
    raise LookupError("as it should")


def test_a_call_returns_what_the_work_does_and_raises_what_it_raises() -> None:
    with TrioLoop("loop") as loop:
        assert loop.call(double, 21) == 42
        with pytest.raises(LookupError, match="as it should"):
            loop.call(fail)
        assert loop.call(double, 4) == 8
    assert "loop" not in [thread.name for thread in threading.enumerate()]


async def test_a_task_of_another_trio_loop_may_call() -> None:
    with TrioLoop("loop") as loop:
        assert loop.call(double, 21) == 42


def test_a_task_of_asyncio_may_call() -> None:
    async def main() -> int:
        with TrioLoop("loop") as loop:
            return loop.call(double, 21)

    assert asyncio.run(main()) == 42


def test_leaving_cancels_what_still_runs() -> None:
    ended: list[str] = []

    async def live() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    async def begin() -> None:
        loop.nursery.start_soon(live)
        await trio.testing.wait_all_tasks_blocked()

    with TrioLoop("loop") as loop:
        loop.call(begin)
        assert ended == []
    assert ended == ["cancelled"]


def test_a_task_that_fails_ends_the_loop_and_all_who_wait_hear_of_it() -> None:
    async def begin_what_fails() -> None:
        loop.nursery.start_soon(fail)
        await trio.sleep_forever()

    def use() -> None:
        with pytest.raises(RuntimeError, match="the loop has ended"):
            loop.call(begin_what_fails)
        with pytest.raises(trio.RunFinishedError):
            loop.call(double, 21)

    loop = TrioLoop("loop")
    with pytest.raises(ExceptionGroup) as raised, loop:
        use()
    assert raised.group_contains(LookupError, match="as it should")
