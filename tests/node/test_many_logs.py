"""Mirrors of a node with very many logs: nothing is done for all of them in one step."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
import trio

from busnode.node.copies import ROWS_A_FRAME
from busnode.node.mirroring import LOOKS_BEFORE_YIELD
from busnode.node.repairing import STEPS_BEFORE_YIELD
from busnode.segments.store import Log, Store
from busnode.wire.ids import BrokerId, LogId, Topic

from ..segments.samples import record
from .raw_client import LoopWatch
from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored, publish

LOGS: Final = 2000
AT_ONCE_MAX: Final = max(LOOKS_BEFORE_YIELD, ROWS_A_FRAME, STEPS_BEFORE_YIELD)


class StepCounter(trio.abc.Instrument):
    """How many logs of a store were handed out in each step of the loop."""

    def __init__(self, store: Store) -> None:
        self.looked_at: Counter[int] = Counter()
        self._step = 0
        self._logs = store.logs

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step += 1

    def logs(self) -> Iterator[Log]:
        for log in self._logs():
            self.looked_at[self._step] += 1
            yield log


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> "Counted":
    return Counted(monkeypatch)


class Counted:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def watch(self, store: Store) -> StepCounter:
        counter = StepCounter(store)
        self._monkeypatch.setattr(store, "logs", counter.logs)
        trio.lowlevel.add_instrument(counter)
        return counter


def add_logs(store: Store, broker_id: BrokerId, count: int = LOGS) -> None:
    for number in range(count):
        store.create(LogId(broker_id, Topic(f"/many/{number}")))


def add_stored_logs(store: Store, broker_id: BrokerId, count: int) -> None:
    for number in range(count):
        log_id = LogId(broker_id, Topic(f"/many/{number}"))
        store.create(log_id).append(record(log_id, 1, [b"x"]), 1, 1)


def test_what_a_mirror_lacks_is_found_out_in_small_steps(counted: Counted) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        add_logs(node.store, node.broker_id)
        add_stored_logs(node.store, node.broker_id, 20)
        await node.committer.commit()
        counter = counted.watch(node.store)
        with LoopWatch.over(f"a mirror for {LOGS} logs"):
            await cluster.add("b")
            await mirrored(cluster, "a")
        assert counter.looked_at.total() >= LOGS
        assert max(counter.looked_at.values()) <= AT_ONCE_MAX
        other = cluster["b"].node.store
        copies = [log for log in other.logs() if log.log_id.broker_id == node.broker_id]
        assert sum(log.committed_no for log in copies if "/many/" in log.log_id.topic) == 20


def test_a_mirror_tells_what_it_has_in_small_steps_and_all_of_it(counted: Counted) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        node = cluster["a"].node
        add_stored_logs(node.store, node.broker_id, LOGS)
        await node.committer.commit()
        for log in list(node.store.logs()):
            node.mirroring.appended(log)
        node.mirroring.pump()
        (stream,) = node.mirroring.streams.values()
        at_b = cluster["b"].node.store
        await cluster.until(lambda: _copied(at_b, node.broker_id) >= LOGS, "copies")
        counter = counted.watch(at_b)
        stream.link.close()
        await cluster.until(lambda: not node.mirroring.streams, "the link is gone")
        await mirrored(cluster, "a")
        (again,) = node.mirroring.streams.values()
        assert again is not stream
        assert max(counter.looked_at.values()) <= AT_ONCE_MAX
        assert again.sent_bytes < 1000, "it has told that it has them all"


def _copied(store: Store, broker_id: BrokerId) -> int:
    return sum(log.committed_no for log in store.logs() if log.log_id.broker_id == broker_id)


def test_letting_a_mirror_go_looks_only_at_logs_that_somebody_waits_for(counted: Counted) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "a", "b")
        node = cluster["a"].node
        add_logs(node.store, node.broker_id)
        async with cluster.client("a") as bus, trio.open_nursery() as nursery:
            levels: set[str] = set()

            async def publishing() -> None:
                levels.update(await publish(bus, "/t", range(1)))

            cluster.network.partition("a", "b")
            nursery.start_soon(publishing)
            counter = counted.watch(node.store)
            await cluster.until(lambda: not node.mirroring.in_force, "it is let go")
            await cluster.until(lambda: bool(levels), "the ack")
        assert levels == {"local"}
        assert max(counter.looked_at.values(), default=0) <= AT_ONCE_MAX


def test_what_is_appended_while_a_mirror_is_compared_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        add_logs(node.store, node.broker_id)
        looked_at_and_new = [LogId(node.broker_id, Topic(t)) for t in ("/many/0", "/new")]
        logs = node.store.logs

        def interrupted() -> Iterator[Log]:
            for place, log in enumerate(logs()):
                yield log
                streams = node.mirroring.streams.values()
                if place == LOGS // 2 and any(stream.has_begun for stream in streams):
                    for log_id in looked_at_and_new:
                        more = node.store.create(log_id)
                        more.append(record(log_id, 1, [b"x"]), 1, 1)
                        node.mirroring.appended(more)
                    node.committer.wake()
                    monkeypatch.setattr(node.store, "logs", logs)

        monkeypatch.setattr(node.store, "logs", interrupted)
        await cluster.add("b")
        await mirrored(cluster, "a")
        at_b = cluster["b"].node.store
        for log_id in looked_at_and_new:
            await cluster.until(lambda log_id=log_id: _safe(at_b, log_id) == 1, f"copy of {log_id}")  # type: ignore[misc]


def _safe(store: Store, log_id: LogId) -> int:
    log = store.get(log_id)
    return 0 if log is None else log.committed_no
