"""All clients of a run that is about tasks, and whether every task has been seen to."""

from collections.abc import Iterator
from typing import Final

import trio

from busnode.client import Bus
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_audit import Fates
from busnode.testing.sim.task_history import TaskAcked
from busnode.testing.sim.workload.enqueueing import QUEUES, Enqueuer, LetterKeeper
from busnode.testing.sim.workload.task_notes import TaskNotes
from busnode.testing.sim.workload.task_workers import TaskWorker

DUE_S: Final = 20.0
"""What is due later than this after the last heal is not waited for: where a clock was behind, what
should be far away may be due just when all must be well, or a little later."""

SNAPSHOT_S: Final = (0.5, 6.0)


class TaskClients:
    """They run in the nursery until it is cancelled; those who enqueue until `finish`."""

    def __init__(self, stage: Stage) -> None:
        self.is_over = False
        self._due_before = 0.0
        self.notes = TaskNotes(stage)
        self.buses: dict[str, Bus] = {}
        self.enqueuers = [
            Enqueuer(stage, "q0", (0.05, 0.5)),
            Enqueuer(stage, "q1", (0.05, 0.5)),
            Enqueuer(stage, "q2", (0.5, 2.5), burst=12),
        ]
        self._keeper = LetterKeeper(stage, "k0")
        self._workers = [
            *(TaskWorker(stage, self.notes, f"w{n}", QUEUES) for n in range(4)),
            TaskWorker(stage, self.notes, "w4", QUEUES, many=5),
        ]
        self._stage = stage
        self._finished: dict[str, None] = {}
        stage.clients = [each.name for each in (*self._talkers, *self._workers)]

    @property
    def _talkers(self) -> list[Enqueuer | LetterKeeper]:
        return [*self.enqueuers, self._keeper]

    async def begin(self, nursery: trio.Nursery) -> None:
        for place, each in enumerate(self._talkers):
            nursery.start_soon(self._run, each, place)
        for worker in self._workers:
            nursery.start_soon(worker.run)
        nursery.start_soon(self._snapshots)
        await trio.sleep(0)

    async def _run(self, each: Enqueuer | LetterKeeper, place: int) -> None:
        names = self._stage.names
        place %= len(names)
        homes = names[place:] + names[:place]
        async with self._stage.cluster.client(*homes, name=each.name, deadline_s=3600.0) as bus:
            self.buses[each.name] = bus
            await each.run(bus, lambda: self.is_over)
            self._finished[each.name] = None
            await trio.sleep_forever()

    async def _snapshots(self) -> None:
        """Journals of a run are far too short for a snapshot: nodes are told to make one."""
        entropy = SimEntropy(f"{self._stage.seed}/snapshots")
        while True:
            await trio.sleep(entropy.between(*SNAPSHOT_S))
            up = [node for node in self._stage.cluster.up if not node.is_paused]
            if up:
                queues = list(entropy.choose(up).node.task_queues.owned.values())
                if queues:
                    entropy.choose(queues).snapshot()

    def finish(self) -> None:
        """Nobody enqueues any more, and workers do what they should."""
        self.is_over = True
        self._due_before = self._stage.now + DUE_S
        for worker in self._workers:
            worker.is_diligent = True

    def lacking(self) -> Iterator[str]:
        """What is still to come, now that nobody enqueues any more."""
        for each in self._talkers:
            if each.name not in self._finished:
                waiting = next(iter(each.unanswered), b"nothing").decode().strip(". ")
                yield f"{each.name} has no answer for {waiting}"
        is_idle = True
        for node in self._stage.cluster.up:
            for name, queue in node.node.task_queues.owned.items():
                now = queue.machine.statistics()
                busy = now.ready + now.leased + now.settling
                # One that failed while its owner's clock was ahead is tried again when that is due.
                left_s = self._due_before - self._stage.now
                soon_us = node.clock.utc_us() + round(1e6 * left_s)
                if busy or (now.first_due_us or soon_us) < soon_us:
                    is_idle = False
                    yield f"{node.name} has work left in {name}: {now}"
        if is_idle:
            fates = self.fates()
            for event in self._stage.history.of(TaskAcked):
                if fates.is_lost(event.id):
                    yield f"{event.id} is nowhere: {fates.told(event.id)}"

    def fates(self) -> Fates:
        """What has become of all tasks so far."""
        return Fates(self._stage, self.notes.platters)
