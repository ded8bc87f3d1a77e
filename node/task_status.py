"""How the queues of a node stand, as plain values that JSON can carry."""

from heapq import nlargest
from itertools import islice
from typing import Any, Final

from busnode.node.task_home import TaskHome
from busnode.node.task_queue import OwnedQueue
from busnode.node.task_queues import TaskQueues

QUEUES_SHOWN_MAX: Final = 100
"""Queues with a row of their own in a status."""

QUEUES_EXAMINED_MAX: Final = 1000
"""Queues that are added up for it at once, those with a row included: 15 ms."""

SUMMED: Final = (
    "ready", "delayed", "retrying", "leased", "settling", "dead", "completed", "failed", "expired",
    "enqueued", "repeated",
)  # fmt: skip

Row = dict[str, Any]


def queue_row(queue: OwnedQueue) -> Row:
    """How one queue stands at this node."""
    found = queue.machine.statistics()
    return {
        "queue": queue.name,
        "ready": found.ready,
        "delayed": found.delayed,
        "retrying": found.retrying,
        "leased": found.leased,
        "settling": found.settling,
        "dead": found.dead,
        "completed": found.completed_total,
        "failed": found.failed_total,
        "expired": found.expired_total,
        "enqueued": found.enqueued_total,
        "repeated": found.repeated_total,
        "oldest_us": found.oldest_enqueued_us,
        "due_us": found.first_due_us,
    }


def task_status(queues: TaskQueues, home: TaskHome, rows_max: int) -> Row:
    """The largest queues, the others in one sum, and how many polls of workers there are here."""
    owned = queues.owned.values()
    shown = nlargest(min(rows_max, QUEUES_SHOWN_MAX), owned, key=reach)
    others: Row | None = None
    if rows_max and len(shown) < len(owned):
        known = {queue.name for queue in shown}
        rest = (queue for queue in owned if queue.name not in known)
        examined = list(islice(rest, QUEUES_EXAMINED_MAX - len(shown)))
        others = {"queues": len(examined), **added([queue_row(queue) for queue in examined])}
    return {
        "workers": home.workers,
        "queues_count": len(owned),
        "queues": [queue_row(queue) for queue in shown],
        "other_queues": others,
    }


def reach(queue: OwnedQueue) -> int:
    """From the first number that is not finished to the last: how large a queue is, roughly, and
    cheaply."""
    return queue.machine.extent + 1 - queue.machine.floor


def added(rows: list[Row]) -> Row:
    """Rows of queues in one."""
    oldest = [row["oldest_us"] for row in rows if row["oldest_us"] is not None]
    sums: Row = {name: sum(row[name] for row in rows) for name in SUMMED}
    return {**sums, "oldest_us": min(oldest, default=None)}
