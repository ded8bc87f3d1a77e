"""Queues on a disk that cannot be read now and then."""

import pytest

from busnode.node.task_queue import JOURNAL
from busnode.testing.sim.faults import DiskFault
from busnode.wire.ids import BrokerId, LogId, Topic

from .raw_client import SimulatedMachine
from .test_task_queues import QUEUE, Worker, enqueue, numbered


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


def test_what_a_queue_still_has_to_say_is_not_said_in_the_log_of_a_later_incarnation() -> None:
    machine = SimulatedMachine()

    async def main() -> None:
        async with machine.bus() as bus, bus.client(7, "worker") as client:
            await enqueue(client, *numbered(range(3)))
            queue = bus.node.task_queues.owned[QUEUE]
            later = BrokerId(b"l" * 16)
            bus.node.publishing.begin(later)  # a moment later the queues hear of it
            queue.snapshot()
            await bus.settled(lambda: queue.lost)
            logs = {log.log_id for log in bus.node.store.logs()}
            assert LogId(later, Topic(JOURNAL + QUEUE)) not in logs

    machine.run(main)
