"""Runs of the simulator: one seed, one history, and no promise broken."""

import os
import subprocess
import sys

import pytest

from busnode.testing.sim import history
from busnode.testing.sim.run import run_seed
from busnode.testing.sim.schedule import ALL, LOSSES, TASKS, Profile

GENTLE = Profile("gentle", {"kill": 1, "power_loss": 1, "partition": 1, "pause": 1}, faults=8)


@pytest.mark.parametrize("seed", range(2))
def test_nodes_that_die_pause_and_are_cut_apart_lose_nothing(seed: int) -> None:
    outcome = run_seed(seed, GENTLE)
    assert sum(outcome.faults.values()) >= 5
    assert not outcome.violations, "\n".join(map(str, outcome.violations))


def test_a_run_without_end_is_ended_and_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENTS_MAX", 200)
    outcome = run_seed(0, GENTLE)
    assert any("more and more happens" in str(violation) for violation in outcome.violations)
    assert len(outcome.history.events) < 300
    assert outcome.simulated_s < GENTLE.trouble_s


@pytest.mark.sim
@pytest.mark.parametrize("seed", [4, 6, 10, 26, 29, 30, 59, 249, 1012, 1024])
def test_tasks_are_kept_by_nodes_that_take_them_over_again_and_again(seed: int) -> None:
    outcome = run_seed(seed, TASKS)
    assert not outcome.violations, "\n".join(map(str, outcome.violations))


@pytest.mark.sim
def test_a_node_that_a_clone_of_it_mirrors_loses_power_with_another_one() -> None:
    outcome = run_seed(2090, ALL)
    assert outcome.faults["power_loss_of_pair"]
    assert not outcome.violations, "\n".join(map(str, outcome.violations))


@pytest.mark.sim
def test_live_messages_are_sent_in_fair_weather_when_those_who_want_them_are_back() -> None:
    outcome = run_seed(70603, LOSSES)
    assert outcome.faults["wiped_all_copies"]
    assert not outcome.violations, "\n".join(map(str, outcome.violations))


@pytest.mark.parametrize("seed", [3, 1])
def test_one_seed_gives_one_trace_in_all_processes(seed: int) -> None:
    code = (
        "from busnode.testing.sim.run import run_seed;"
        f"o = run_seed({seed}); print(o.history.digest, len(o.history.events))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )
        for hash_seed in (0, 1, 42)
    ]
    traces = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(traces) == 1, traces
