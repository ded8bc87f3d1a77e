"""What nodes and clients keep in memory while they run, looked at once a second.

Limits are those of a run and not of the product: its few messages a second can fill none of the
product's limits unless something is never let go.
"""

from collections.abc import Iterator
from typing import Final

import trio

from busnode.node.node import RunningNode
from busnode.testing.sim.history import Measured
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.workload.clients import Clients
from busnode.testing.sim.workload.task_clients import TaskClients

EVERY_S: Final = 1.0

UNSENT_BYTES_MAX: Final = 32 * 1024 * 1024
"""On all connections of a node: what four fetches at once reserve for each reader of a run."""

UNCOMMITTED_BYTES_MAX: Final = 1024 * 1024
"""All that is published in a run is about as much."""

WAITING_MAX: Final = 2_000
"""Receipts: nothing is published faster, and each is settled within some seconds."""

SESSIONS_MAX: Final = 100
"""Clients and peers, each with connections that are gone and were not noticed yet."""

TASK_ROWS_MAX: Final = 2_000
"""In one queue: more tasks than a run has, also when some come twice."""

TASKS_MAX: Final = 1_500


async def measure(stage: Stage, clients: Clients | TaskClients) -> None:
    while True:
        await trio.sleep(EVERY_S)
        stage.note_incarnations()
        for node in stage.cluster.up:
            for what, amount, limit in _of_node(node.node):
                if amount > limit:
                    stage.history.add(Measured(stage.now, node.name, what, amount, limit))
        for name, bus in clients.buses.items():
            unacked = bus.statistics().unacked
            if unacked > WAITING_MAX:
                stage.history.add(Measured(stage.now, name, "unacked", unacked, WAITING_MAX))
        tasks = trio.lowlevel.current_statistics().tasks_living
        if tasks > TASKS_MAX:
            stage.history.add(Measured(stage.now, "all", "tasks", tasks, TASKS_MAX))


def _of_node(node: RunningNode) -> Iterator[tuple[str, int, int]]:
    conversations = [
        *node.sessions.values(), *node.peers.links.values(), *node.peers.sessions.values(),
    ]  # fmt: skip
    unsent = sum(each.outgoing.queued_bytes for each in conversations)
    yield "bytes that wait to be sent", unsent, UNSENT_BYTES_MAX
    yield "connections", len(conversations), SESSIONS_MAX
    yield "receipts that wait", node.receipts.waiting, WAITING_MAX
    uncommitted = sum(session.uncommitted_bytes for session in node.sessions.values())
    yield "uncommitted bytes", uncommitted, UNCOMMITTED_BYTES_MAX
    for queue in node.task_queues.owned.values():
        kept = queue.machine.statistics()
        touched = kept.leased + kept.settling + kept.retrying + kept.dead
        yield f"tasks with a row in {queue.name}", touched, TASK_ROWS_MAX
    yield "polls of workers", node.task_home.workers, SESSIONS_MAX
