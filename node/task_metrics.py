"""Metrics of a node's queues: the largest by name, the others in one sum."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from busnode.node.task_queues import TaskQueues
from busnode.node.task_status import added, queue_row, reach

QUEUES_NAMED_MAX: Final = 50
"""Queues with metrics of their own, nine each: whoever keeps metrics keeps each name for long."""

OTHERS: Final = "$others"
"""All other queues; none can have this name."""

SLICE: Final = 100
"""Queues that are added up before others have their turn: 1 ms."""

STATES: Final = ("ready", "delayed", "retrying", "leased", "settling", "dead")
SECOND_US: Final = 1_000_000

Row = Mapping[str, Any]


@dataclass(slots=True)
class QueueSums:
    """All queues, as far as metrics tell of them."""

    count: int = 0
    named: list[Row] = field(default_factory=list[Row])
    others: Row | None = None
    total: Row = field(default_factory=lambda: added([]))


async def add_up_queues(queues: TaskQueues) -> QueueSums:
    """Of a moment, or of some milliseconds where there are thousands."""
    owned = list(queues.owned.values())
    named = {queue.name for queue in nlargest(QUEUES_NAMED_MAX, owned, key=reach)}
    shown: list[Row] = []
    others, total = added([]), added([])
    for at, queue in enumerate(owned, start=1):
        row = queue_row(queue)
        total = added([total, row])
        if queue.name in named:
            shown.append(row)
        else:
            others = added([others, row])
        if at % SLICE == 0:
            await trio.lowlevel.checkpoint()
    return QueueSums(len(owned), shown, others if len(shown) < len(owned) else None, total)


def task_metrics(sums: QueueSums, workers: int, now_us: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("busnode_queues", "Queues with tasks of this node.", sums.count)
    yield GaugeMetricFamily("busnode_task_workers", "Polls of workers here.", workers)
    tasks = GaugeMetricFamily("busnode_tasks", "Tasks of all queues.", labels=["state"])
    for state in STATES:
        tasks.add_metric([state], sums.total[state])
    yield tasks
    totals = {
        "enqueued": "Tasks accepted or taken over.",
        "completed": "Tasks completed.",
        "failed": "Attempts that failed, or whose lease ran out.",
        "expired": "Of these, leases that ran out.",
    }
    for name, help_ in totals.items():
        yield CounterMetricFamily(f"busnode_tasks_{name}", help_, sums.total[name])
    yield from _by_name(sums, now_us)


def _by_name(sums: QueueSums, now_us: int) -> Iterator[Metric]:
    """The others have no counters: queues come and go among them, and a counter must only grow."""
    states = GaugeMetricFamily("busnode_queue_tasks", "Tasks.", labels=["queue", "state"])
    oldest = GaugeMetricFamily(
        "busnode_queue_oldest_seconds", "Age of the oldest task that is not finished.",
        labels=["queue"],
    )  # fmt: skip
    completed = CounterMetricFamily("busnode_queue_completed", "Completed.", labels=["queue"])
    failed = CounterMetricFamily("busnode_queue_failed", "Failed attempts.", labels=["queue"])
    rows = {str(row["queue"]): row for row in sums.named}
    for name, row in rows.items():
        completed.add_metric([name], row["completed"])
        failed.add_metric([name], row["failed"])
    if sums.others is not None:
        rows[OTHERS] = sums.others
    for name, row in rows.items():
        for state in STATES:
            states.add_metric([name, state], row[state])
        oldest_us = row["oldest_us"]
        age_s = 0 if oldest_us is None else max(0, now_us - oldest_us) / SECOND_US
        oldest.add_metric([name], age_s)
    yield from (states, oldest, completed, failed)
