"""A crowd with a task for each stream."""

from typing import cast

import trio
import trio.testing

from busnode.world.network import Stream
from busnode.world.task_crowd import TaskCrowd


class Talker:
    """There is always something to receive."""

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_one_of_them_waits_for_the_turn_and_not_all_before_everybody_else() -> None:
    crowd, turn, seen = TaskCrowd(), trio.Lock(), list[Stream]()
    talkers = [cast(Stream, Talker()) for _ in range(40)]
    for talker in talkers:
        crowd.add(talker)
    async with trio.open_nursery() as nursery:
        async with turn:
            nursery.start_soon(crowd.run, seen.append, turn)
            await trio.testing.wait_all_tasks_blocked()
            assert turn.statistics().tasks_waiting == 1
            assert seen == []
        for _ in range(10):
            before = len(seen)
            async with turn:
                assert len(seen) - before <= 1, "others have their turn after one of them"
        with trio.fail_after(5):
            while set(seen) != set(talkers):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
