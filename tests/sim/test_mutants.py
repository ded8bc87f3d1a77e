"""Planted bugs are found: else a run without violations would prove little."""

import pytest

from busnode.testing.sim.mutants import MUTANTS
from busnode.testing.sim.mutants.hunt import hunt
from busnode.testing.sim.mutants.mutant import Patch
from busnode.world.real_workers import call_in_processes, cores

pytestmark = pytest.mark.sim


def test_each_planted_bug_is_found_within_fifty_seeds() -> None:
    hunts = list(call_in_processes(hunt, MUTANTS, cores()))
    for each in sorted(hunts):
        print(f"{each.mutant:32} {each.seeds or '-':>3}  {each.bug}: {each.found[:120]}")
    assert len(hunts) >= 25
    assert [each.mutant for each in hunts if each.seeds is None] == []


def test_a_mutant_leaves_nothing_behind() -> None:
    for mutant in MUTANTS.values():
        patch = Patch()
        mutant.plant(patch)
        before = [(owner, name, value) for owner, name, value in patch.planted]
        patch.undo()
        for owner, name, value in before:
            assert owner.__dict__[name] is value, mutant.name
