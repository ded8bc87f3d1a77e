"""Tasks outlive their node: its next incarnation goes on with them, or the node that mirrors it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from busnode.node.task_takeover import Takeover
from busnode.tasks.ranges import Numbers
from busnode.wire.control import Tasks

from .raw_client import Bus, SimulatedMachine
from .test_task_queues import EXPIRED, QUEUE, Worker, enqueue, numbered


@asynccontextmanager
async def bus_that_dies(machine: SimulatedMachine, power_loss: bool) -> AsyncIterator[Bus]:
    """A node whose process, or machine, dies where the block ends."""
    with trio.CancelScope() as scope:
        async with machine.bus() as bus:
            yield bus
            machine.crash(power_loss=power_loss)
            scope.cancel()


async def drained(worker: Worker, count: int) -> dict[bytes, tuple[str, int]]:
    """So many tasks, completed: id and attempt by payload."""
    found: dict[bytes, tuple[str, int]] = {}
    await worker.want(count)
    while len(found) < count:
        tasks = await worker.take()
        rows = zip(tasks.payloads, zip(tasks.ids, tasks.attempts, strict=True), strict=True)
        found |= dict(rows)
        assert (await worker.complete(tasks)).refused == []
    return found


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_comes_back_goes_on_with_its_tasks(seed: int, power_loss: bool) -> None:
    machine = SimulatedMachine(seed)

    async def first_life() -> Tasks:
        async with bus_that_dies(machine, power_loss) as bus, bus.client(7) as client:
            worker = Worker(client)
            await enqueue(client, *numbered(range(10)))
            await enqueue(client, b"later", delay_ms="20000")
            await enqueue(client, b"bad", priority="9", retry="0,3600")
            bad = await worker.poll(1)
            assert bad.payloads == [b"bad"]
            await worker.fail(bad, "boom")
            done = await worker.poll(3)
            assert done.payloads == numbered(range(3))
            await worker.complete(done)
            return await worker.poll(1)

    async def main() -> None:
        late = await first_life()
        first = late.owner
        async with machine.bus() as bus, bus.client(7) as client:
            worker = Worker(client)
            await trio.sleep(4)
            assert (await worker.complete(late)).refused == [(0, EXPIRED)]
            found = await drained(worker, 7)
            assert found == {b"%d" % n: (f"{first.hex()}-{n + 1}", 1) for n in range(3, 10)}
            queue = bus.node.task_queues.owned[QUEUE].machine
            statistics = queue.statistics()
            assert (statistics.delayed, statistics.retrying, statistics.ready) == (1, 1, 0)
            (retrying,) = queue.rows("retrying", 0, 10)
            assert [each.error for each in retrying.row.history] == ["boom"]
            await trio.sleep(12)
            later = await worker.poll(1)
            assert (later.payloads, later.attempts) == ([b"later"], [1])

    machine.run(main)


def test_a_restart_in_the_middle_of_a_restart_loses_nothing_and_doubles_nothing() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with bus_that_dies(machine, True) as bus, bus.client(7) as client:
            for at in range(0, 3000, 500):
                await enqueue(client, *numbered(range(at, at + 500)))
        for seconds in (1.0, 2.0001, 2.0005, 2.001, 2.002, 2.01, 4.0):
            async with bus_that_dies(machine, True):
                await trio.sleep(seconds)
        async with machine.bus() as bus, bus.client(7) as client:
            worker = Worker(client)
            await trio.sleep(4)
            found = await drained(worker, 3000)
            assert sorted(found, key=int) == numbered(range(3000))
            await trio.sleep(1)
            statistics = bus.node.task_queues.owned[QUEUE].machine.statistics()
            assert (statistics.ready, statistics.leased, statistics.completed_total) == (0, 0, 3000)

    machine.run(main)


def test_a_log_that_grows_after_it_was_taken_over_is_taken_over_again_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the end of it, which this disk has lost, comes back from a mirror."""
    machine = SimulatedMachine(1)
    taken: list[int] = []
    run = Takeover.run

    async def noted(self: Takeover, but: Mapping[str, Numbers]) -> None:
        await run(self, but)
        taken.append(self.count)

    async def main() -> None:
        async with bus_that_dies(machine, True) as bus, bus.client(7) as client:
            origin = bus.broker_id
            await enqueue(client, *numbered(range(10)))
        monkeypatch.setattr(Takeover, "run", noted)
        async with machine.bus() as bus, bus.client(7) as client:
            claims = bus.node.task_claims
            await bus.settled(lambda: claims._reached.get(origin) == 10)
            await trio.sleep(5)
            assert taken == [10], "once, while nothing comes"
            claims._reached[origin] = 9  # as if the last one had come now
            await bus.settled(lambda: claims._reached.get(origin) == 10)
            assert taken == [10, 0]
            found = await drained(Worker(client), 10)
            assert sorted(found, key=int) == numbered(range(10))

    machine.run(main)
