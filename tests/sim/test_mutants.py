"""Planted bugs are found: else a run without violations would prove little."""

from typing import Any

import pytest

from busnode.node.receipts import Receipts
from busnode.testing.sim.mutants import MUTANTS
from busnode.testing.sim.mutants.hunt import hunt, packs
from busnode.testing.sim.mutants.mutant import CALM, Mutant, Patch
from busnode.world.real_workers import call_in_processes, cores

pytestmark = pytest.mark.sim


def test_each_planted_bug_is_found_within_fifty_seeds() -> None:
    hunts = [each for pack in call_in_processes(hunt, packs(), cores()) for each in pack]
    for each in sorted(hunts):
        print(f"{each.mutant:32} {each.seeds or '-':>3}  {each.bug}: {each.found[:120]}")
    assert sorted(each.mutant for each in hunts) == sorted(MUTANTS)
    assert len(hunts) >= 25
    assert [(each.mutant, each.found) for each in hunts if each.seeds is None] == []


def test_a_mutant_leaves_nothing_behind() -> None:
    for mutant in MUTANTS.values():
        patch = Patch(mutant.name)
        mutant.plant(patch)
        before = [(owner, name, value) for owner, name, value in patch.planted]
        patch.undo()
        for owner, name, value in before:
            assert owner.__dict__[name] is value, mutant.name


def test_a_mutant_that_breaks_by_itself_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def rotten(patch: Patch) -> None:
        def settle(self: Any, logs: Any) -> None:
            self.no_such_thing(logs)

        patch.set(Receipts, "settle", settle)

    monkeypatch.setitem(MUTANTS, "rotten", Mutant("rotten", "a bug", CALM, rotten, None))
    (found,) = hunt(["rotten"], seeds_max=2)
    assert found.seeds is None
    assert "no_such_thing" in found.found
