"""Queues on a disk that cannot be read now and then."""

import pytest

from busnode.testing.sim.faults import DiskFault

from .raw_client import SimulatedMachine
from .test_task_queues import Worker, enqueue, numbered


@pytest.mark.parametrize("count", [1, 3])
def test_tasks_that_cannot_be_read_at_once_come_when_they_can_be(count: int) -> None:
    machine = SimulatedMachine()

    async def main() -> None:
        async with machine.bus() as bus, bus.client(7, "worker") as client:
            worker = Worker(client)
            await enqueue(client, *numbered(range(3)))
            assert (await worker.poll(3)).payloads == numbered(range(3))
            machine.disk.arm(DiskFault.READ_EIO, count=count)
            await enqueue(client, *numbered(range(3, 6)))
            assert (await worker.poll(3)).payloads == numbered(range(3, 6))

    machine.run(main)
