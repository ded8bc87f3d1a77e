"""Many seeds with faults of all kinds, also those that leave no good copy: no promise is broken."""

import pytest

from busnode.testing.sim.campaign import Totals, run_reported
from busnode.testing.sim.trouble import KINDS
from busnode.world.real_workers import call_in_processes, cores

pytestmark = pytest.mark.sim

SEEDS = 150


def test_a_hundred_and_fifty_seeds_break_no_promise() -> None:
    totals = Totals()
    for run in call_in_processes(run_reported, range(SEEDS), cores()):
        totals.add(run)
    told = [f"seed {run.seed}: {text}" for run in totals.failed for _, text in run.violations[:3]]
    assert not told, "\n".join(told)
    struck = sum(totals.faults.values())
    hours = totals.simulated_s / 3600
    print(f"{totals.seeds} seeds, {struck} faults of {len(totals.faults)} kinds, {hours:.2f} h")
    assert set(totals.faults) == set(KINDS), "every kind has struck"
    assert len(KINDS) >= 20
    assert struck >= 3000
    assert hours >= 1.5
