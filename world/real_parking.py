"""Parking a task until somebody wakes it, on whatever event loop runs, trio or asyncio.

What an event does, without the event: to make, wait for and set one of anyio's takes twice as long,
and whoever waits for a reply or an ack does so for each.
"""

import asyncio

import trio

Parked = trio.lowlevel.Task | asyncio.Future[None]
"""A task that waits; it can be woken once."""


async def park(places: dict[Parked, None]) -> None:
    """Stand in `places` until woken. Whoever wakes takes it out first; cancelled, it goes by
    itself."""
    if trio.lowlevel.in_trio_task():
        task = trio.lowlevel.current_task()
        places[task] = None

        def give_up(_: object) -> trio.lowlevel.Abort:
            del places[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    places[future] = None
    try:
        await future
    finally:
        places.pop(future, None)


def wake(parked: Parked) -> None:
    """Let it run on. From the thread of its own event loop."""
    if isinstance(parked, trio.lowlevel.Task):
        trio.lowlevel.reschedule(parked)
    elif not parked.done():  # else it was cancelled in the same turn
        parked.set_result(None)
