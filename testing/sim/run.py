"""One run: a cluster and its clients, from a seed and under faults, and the judgement of it."""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from busnode.testing.sim.audit import audit, bodies_on_disks
from busnode.testing.sim.calm import hand_over, try_everything
from busnode.testing.sim.checkers import Story, Violation, judge
from busnode.testing.sim.cluster import SimulatedCluster
from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.faults import DiskFaults
from busnode.testing.sim.freezer import HOST
from busnode.testing.sim.history import (
    Calm,
    FaultBegun,
    FaultSkipped,
    Healed,
    History,
    NodeCrashed,
    Unsettled,
)
from busnode.testing.sim.innermost import innermost
from busnode.testing.sim.measuring import measure
from busnode.testing.sim.schedule import Entry, Profile, draw_schedule, profile_of
from busnode.testing.sim.simulation import simulate
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.task_calm import try_tasks
from busnode.testing.sim.trouble import KINDS, strike
from busnode.testing.sim.workload.clients import Clients
from busnode.testing.sim.workload.task_clients import TaskClients

SETTLE_S: Final = 30.0
"""How long after the last heal everything must be well again."""

RUN_S: Final = 600.0
"""Of virtual time for a whole run: one that takes longer hangs."""

NODES: Final[tuple[str, ...]] = ("a", "b", "c", "d")


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    profile: Profile
    schedule: list[Entry]
    history: History
    violations: list[Violation] = field(default_factory=list[Violation])
    simulated_s: float = 0.0
    nodes: list[str] = field(default_factory=list[str])

    @property
    def faults(self) -> Counter[str]:
        """How often each kind has struck."""
        return Counter(event.kind for event in self.history.of(FaultBegun))

    @property
    def skipped(self) -> Counter[str]:
        return Counter(event.kind for event in self.history.of(FaultSkipped))


def run_seed(
    seed: int,
    profile: Profile | None = None,
    *,
    only: list[Entry] | None = None,
    told: Callable[[str], None] | None = None,
) -> Outcome:
    """Run a seed and judge it. With `only`, those faults of its schedule happen and no others."""
    profile = profile or profile_of(seed)
    entropy = SimEntropy(f"{seed}/run")
    count = profile.nodes or entropy.choose((2, 3, 3, 3, 4))
    names: list[str] = list(NODES[:count])
    settings = _settings(entropy, count)
    if profile.about == "tasks":
        settings["adopt_after_s"] = entropy.choose((1.0, 2.0, 5.0))
    drawn = draw_schedule(entropy.fork("schedule"), profile, list(KINDS), names)
    schedule = drawn if only is None else only
    history = History(told)
    outcome = Outcome(seed, profile, schedule, history, nodes=names)
    cluster = SimulatedCluster(seed)
    stage = Stage(seed, cluster, history, names)
    run = _Run(stage, schedule, profile, settings)
    with cluster.freezer.installed(), _errors_noted(history):
        try:
            story = simulate(seed, run.whole)
        except Exception as error:  # noqa: BLE001 - see below
            # What ends a run by an error is a violation, and its seed must be told.
            history.add(NodeCrashed(run.last_s, "the run", innermost(error)))
            story = Story(history)
    outcome.violations = judge(story)
    outcome.simulated_s = run.last_s
    return outcome


def _settings(entropy: SimEntropy, nodes: int) -> dict[str, Any]:
    """What nodes are told: small limits, so that they are reached."""
    return {
        "segment_bytes_max": entropy.choose((2_000, 8_000, 1_000_000)),
        "heartbeat_s": entropy.choose((2.0, 4.0)),
        "link_heartbeat_s": entropy.choose((0.5, 1.0)),
        "hello_timeout_s": 2.0,
        "repair_after_s": 2.0,
        "mirrors": 2 if nodes > 3 and entropy.chance(0.5) else 1,
        "catchup_rate": entropy.choose((None, None, 50_000)),
    }


class _Run:
    def __init__(
        self, stage: Stage, schedule: list[Entry], profile: Profile, settings: dict[str, Any]
    ) -> None:
        self.last_s = 0.0
        self._stage = stage
        self._schedule = schedule
        self._profile = profile
        self._settings = settings
        entropy = SimEntropy(f"{stage.seed}/retention")
        self._retain_s = {name: entropy.choose(profile.retain_s) for name in stage.names}

    async def whole(self) -> Story:
        stage = self._stage
        cluster = stage.cluster
        story = Story(stage.history)
        try:
            with trio.fail_after(RUN_S) as scope:
                stuck = "tasks go on and on, and time stands still"
                cluster.freezer.on_stuck = lambda: self._end(scope, stuck)
                stage.history.on_full = lambda: self._end(scope, "more and more happens")
                async with trio.open_nursery() as cluster.nursery:
                    await stage.begin(self._settings, self._retain_s)
                    async with trio.open_nursery() as nursery:
                        clients = self._clients()
                        await clients.begin(nursery)
                        nursery.start_soon(measure, stage, clients)
                        await self._trouble()
                        await self._heal()
                        await self._settle(clients)
                        clones = len(cluster.nodes) - len(stage.names)
                        stage.history.add(Calm(stage.now, clones))
                        if isinstance(clients, TaskClients):
                            await try_tasks(stage, clients)
                            story.tasks = clients.fates()
                        else:
                            await try_everything(stage, clients)
                        await audit(stage, story)
                        bodies_on_disks(stage, story)
                        await hand_over(stage)
                        nursery.cancel_scope.cancel()
                    cluster.nursery.cancel_scope.cancel()
        finally:
            cluster.freezer.thaw_all()
            self.last_s = trio.current_time()
        return story

    def _clients(self) -> Clients | TaskClients:
        is_about_tasks = self._profile.about == "tasks"
        return TaskClients(self._stage) if is_about_tasks else Clients(self._stage)

    def _end(self, scope: trio.CancelScope, why: str) -> None:
        """Of a run that would have none."""
        stage = self._stage
        stage.history.add(Unsettled(stage.now, why))
        stage.cluster.freezer.thaw_all()
        scope.cancel()

    async def _trouble(self) -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for entry in self._schedule:
                await trio.sleep_until(began + entry.at_s)
                nursery.start_soon(strike, self._stage, entry)
            await trio.sleep_until(began + self._profile.trouble_s)

    async def _heal(self) -> None:
        """All faults have ended by themselves; now also what was armed and has not struck."""
        stage = self._stage
        stage.cluster.freezer.thaw_all()
        for name in stage.names:
            node = stage.cluster[name]
            node.disk.odds = DiskFaults()
            node.disk.disarm()
            if not node.is_up:
                await stage.start(node)
        stage.cluster.network.heal_all()
        stage.history.add(Healed(stage.now))

    async def _settle(self, clients: Clients | TaskClients) -> None:
        stage = self._stage
        clients.finish()
        with trio.move_on_after(SETTLE_S):
            while any(self._lacking(clients)):
                await trio.sleep(0.25)
        for what in self._lacking(clients):
            stage.history.add(Unsettled(stage.now, what))

    def _lacking(self, clients: Clients | TaskClients) -> Iterator[str]:
        """What is not yet as it should be in fair weather."""
        cluster = self._stage.cluster
        if not cluster.is_meshed:
            links = {node.name: sorted(node.linked) for node in cluster.up}
            yield f"no full mesh: {links}"
        for node in cluster.up:
            if not node.node.mirroring.in_force:
                yield f"{node.name} has no mirror"
            if node.node.receipts.waiting or any(
                session.uncommitted_bytes for session in node.node.sessions.values()
            ):
                yield f"{node.name} still waits for something to be committed"
        yield from clients.lacking()
        yield from self._stage.lonely()


@contextmanager
def _errors_noted(history: History) -> Generator[None]:
    """Errors that somebody logged with a traceback are errors that nobody has expected."""
    logger = logging.getLogger("busnode")
    handler = _Noting(history)
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.handlers = [handler]
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers = handlers


class _Noting(logging.Handler):
    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, OSError):
            told = f"{record.getMessage()}: {innermost(error)}"
            self._history.add(NodeCrashed(self._history.now(), HOST.get("a client"), told))
