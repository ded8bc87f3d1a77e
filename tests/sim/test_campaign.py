"""Many seeds with faults of all kinds: no promise is broken."""

import pytest

from busnode.testing.sim.campaign import Totals, reporting
from busnode.testing.sim.schedule import ALL
from busnode.testing.sim.trouble import KINDS
from busnode.world.real_workers import call_in_processes, cores

pytestmark = pytest.mark.sim

SEEDS = 150


def test_a_hundred_and_fifty_seeds_break_no_promise() -> None:
    totals = Totals()
    for run in call_in_processes(reporting(ALL), range(SEEDS), cores()):
        totals.add(run)
    told = [f"seed {run.seed}: {text}" for run in totals.failed for _, text in run.violations[:3]]
    assert not told, "\n".join(told)
    struck = sum(totals.faults.values())
    hours = totals.simulated_s / 3600
    print(f"{totals.seeds} seeds, {struck} faults of {len(totals.faults)} kinds, {hours:.2f} h")
    drawn = {kind for kind in KINDS if ALL.weights.get(kind, 1.0)}
    assert set(totals.faults) == drawn, "every kind has struck"
    assert len(drawn) >= 20
    assert struck >= 3000
    assert hours >= 1.5
