"""Those who enqueue tasks and those who do them, in a benchmark."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Final

import trio

from busnode.client import Queue, connect
from busnode.node.bench_orders import Order, orders, sample_payloads, say
from busnode.world.world import World

AT_ONCE: Final = 100
"""Tasks in a list of a worker that takes many."""

LEASE_S: Final = 300.0


async def producer(world: World, role: Order) -> None:
    """Enqueues so many tasks: in one go, or by some coroutines that each await one after the other.
    Says from when to when, by the calendar, which processes share."""
    samples = sample_payloads(world)
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench producer") as bus:
        queue = bus.queue(role["queue"])
        async for order in orders():
            payloads = list(islice(cycle(samples), order["tasks"]))
            since_us = world.clock.utc_us()
            if order["way"] == "many":
                await queue.enqueue_many(payloads, delay=order.get("delay_s"))
            else:
                async with trio.open_nursery() as nursery:
                    for number in range(order["coroutines"]):
                        part = payloads[number :: order["coroutines"]]
                        nursery.start_soon(_enqueue_each, queue, part)
            waiting = order.get("until_waiting", 0)
            while waiting and (await queue.status()).delayed < waiting:
                await world.clock.sleep(0.1)
            say({"since_us": since_us})


async def _enqueue_each(queue: Queue, payloads: list[bytes]) -> None:
    for payload in payloads:
        await queue.enqueue(payload)


async def workers(world: World, role: Order) -> None:
    """Some workers with a connection each, which complete so many tasks each."""
    async with AsyncExitStack() as stack:
        queues: list[Queue] = []
        for number in range(role["workers"]):
            name = f"bench worker {number}"
            bus = await stack.enter_async_context(
                connect(role["url"], tls_ca=role["tls_ca"], name=name)
            )
            queues.append(bus.queue(role["queue"]))
        async for order in orders():
            async with trio.open_nursery() as nursery:
                for queue in queues:
                    nursery.start_soon(WAYS[order["way"]], queue, order["tasks"])
                say({"begun": True})
            say({"at_us": world.clock.utc_us()})


async def _do_many(queue: Queue, count: int) -> None:
    done = 0
    async for tasks in queue.poll_many(AT_ONCE, lease=LEASE_S, prefetch=2 * AT_ONCE):
        mine, others = tasks[: count - done], tasks[count - done :]
        await queue.complete(mine)
        done += len(mine)
        if done == count:
            await queue.release(others)
            break


async def _do_each(queue: Queue, count: int) -> None:
    done = 0
    async for task in queue.poll(lease=LEASE_S):
        await task.complete()
        done += 1
        if done == count:
            break


WAYS: Final[dict[str, Callable[[Queue, int], Awaitable[None]]]] = {
    "many": _do_many,
    "each": _do_each,
}
