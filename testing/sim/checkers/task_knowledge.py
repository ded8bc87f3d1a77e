"""Who could know what became of an attempt at a task: no checker, but what some of them share."""

from typing import Final

from busnode.testing.sim.history import FaultBegun, History
from busnode.testing.sim.task_audit import Fates
from busnode.testing.sim.task_history import TaskAnswered, TaskGiven
from busnode.testing.sim.task_platters import Place

SPLITTING: Final = (
    "partition", "one_way", "isolation", "pause", "half_open", "link_", "slow_", "lossy", "forged",
    "mirror_change", "clone", "duplicate", "fsync", "folder_fsync", "append", "short_write", "full",
    "rename",
)  # fmt: skip
"""Faults after which two nodes may go on with the same tasks at the same time: nodes that cannot
reach each other, and nodes whose disks fail, which are another incarnation before all know of it.
What one does then the other cannot know; this is judged in runs without them."""

DESTROYING: Final = ("wiped", "flip", "fsync", "torn", "clone")
"""Faults after which a disk may not have any more what it had."""


def is_split(history: History) -> bool:
    return any(event.kind.startswith(SPLITTING) for event in history.of(FaultBegun))


class Knowledge:
    """About the owner of a lease, and about those who went on with its very tasks. Who gets a task
    by a longer way, from one who had taken it over before, may not know of what came after."""

    def __init__(self, history: History, fates: Fates | None) -> None:
        self._tasks = {} if fates is None else fates.tasks
        self.is_split = is_split(history)
        self._destroyed = [
            event for event in history.of(FaultBegun) if event.kind.startswith(DESTROYING)
        ]

    def knew(self, given: TaskGiven, before: TaskAnswered) -> bool:
        """Whether who gave a task out knew of what a worker was told before."""
        if given.log_id == before.log_id:
            # By the order of fences: what is slow on its way may arrive later.
            return given.fence > before.fence and given.at > before.at
        kept = self._tasks.get(Place(given.log_id, given.number))
        return (
            not self.is_split
            and kept is not None
            and kept.origin == Place(before.log_id, before.number)
            and given.at > before.at
            and given.node in before.known_at
            and given.node not in before.claimed_by
            and not self._is_destroyed(given.node, before.at, given.at)
        )

    def _is_destroyed(self, node: str, since: float, until: float) -> bool:
        return any(
            since <= event.at <= until and node in event.on.split() for event in self._destroyed
        )
