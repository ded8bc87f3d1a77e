"""The checkers, one promise each."""

from busnode.testing.sim.checkers import (
    acked,
    bodies,
    committed,
    crashes,
    deletion,
    gaps,
    hop,
    levels,
    liveness,
    memory,
    order,
    positions,
    queues,
    repeats,
    requests,
    tasks_attempts,
    tasks_due,
    tasks_fences,
    tasks_kept,
    tasks_leases,
    tasks_levels,
    tasks_once,
    tasks_order,
    tasks_over,
)
from busnode.testing.sim.checkers.checker import CHECKERS, Story, Violation, judge

__all__ = [
    "CHECKERS", "Story", "Violation", "acked", "bodies", "committed", "crashes", "deletion",
    "gaps", "hop", "judge", "levels", "liveness", "memory", "order", "positions", "queues",
    "repeats", "requests", "tasks_attempts", "tasks_due", "tasks_fences", "tasks_kept",
    "tasks_leases", "tasks_levels", "tasks_once", "tasks_order", "tasks_over",
]  # fmt: skip
