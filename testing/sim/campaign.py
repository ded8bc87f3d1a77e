"""Many seeds: what each came to in a few words, and all of them together."""

from collections import Counter
from dataclasses import dataclass, field

from busnode.testing.sim.history import Acked, Delivered
from busnode.testing.sim.run import Outcome, run_seed


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to, small enough to be sent between processes."""

    seed: int
    digest: str
    nodes: int
    simulated_s: float
    faults: Counter[str]
    skipped: Counter[str]
    acked: int
    delivered: int
    violations: list[tuple[str, str]]
    """The promise, and what broke it."""


def report(outcome: Outcome) -> Report:
    history = outcome.history
    return Report(
        outcome.seed,
        history.digest,
        len(outcome.nodes),
        outcome.simulated_s,
        outcome.faults,
        outcome.skipped,
        sum(1 for _ in history.of(Acked)),
        sum(1 for _ in history.of(Delivered)),
        [(violation.checker, str(violation)) for violation in outcome.violations],
    )


def run_reported(seed: int) -> Report:
    """An ordinary run of a seed: a function that another process can be given."""
    return report(run_seed(seed))


@dataclass(slots=True)
class Totals:
    """All runs together."""

    seeds: int = 0
    simulated_s: float = 0.0
    node_s: float = 0.0
    acked: int = 0
    delivered: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    failed: list[Report] = field(default_factory=list[Report])

    def add(self, run: Report) -> None:
        self.seeds += 1
        self.simulated_s += run.simulated_s
        self.node_s += run.simulated_s * run.nodes
        self.acked += run.acked
        self.delivered += run.delivered
        self.faults += run.faults
        self.skipped += run.skipped
        if run.violations:
            self.failed.append(run)
