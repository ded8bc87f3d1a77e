"""`busnode sim`: one seed, many seeds, and what is left of a failure."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from busnode.node.cli_sim import sim
from busnode.testing.sim.mutants import MUTANTS
from busnode.testing.sim.schedule import Profile


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Profile("short", {"kill": 1, "partition": 1}, faults=2, trouble_s=3.0)
    monkeypatch.setattr("busnode.testing.sim.run.profile_of", lambda seed: short)


def test_a_seed_that_keeps_all_promises_is_told_with_its_faults(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace", tmp_path / "sim.svg"
    result = CliRunner().invoke(
        sim, ["--seed", "1", "--trace", str(trace), "--picture", str(picture)]
    )
    assert result.exit_code == 0, result.output
    assert "no promise was broken" in result.output
    assert "1 seed, 2 faults" in result.output
    assert "FaultBegun" in trace.read_text()
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_a_broken_promise_is_named_with_the_command_that_shows_it_again() -> None:
    with MUTANTS["ack_before_mirror"].applied():
        result = CliRunner().invoke(sim, ["--seed", "1"])
    assert result.exit_code == 1
    assert "the level in a receipt was true" in result.output
    assert "busnode sim --seed 1 --shrink" in result.output


def test_several_seeds_are_summed_up_as_json() -> None:
    result = CliRunner().invoke(sim, ["--seeds", "2", "--processes", "1", "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (told["seeds"], told["failed"]) == (2, [])
    assert sum(told["faults"].values()) >= 3


def test_a_trace_of_many_seeds_is_refused() -> None:
    result = CliRunner().invoke(sim, ["--seeds", "2", "--trace", "x"])
    assert result.exit_code == 2
    assert "single seed" in result.output
