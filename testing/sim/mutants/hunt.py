"""How many seeds it takes until a planted bug is found."""

from typing import NamedTuple

from busnode.testing.sim.mutants import MUTANTS, SEEDS_MAX
from busnode.testing.sim.run import run_seed


class Hunt(NamedTuple):
    mutant: str
    bug: str
    seeds: int | None
    """None: it was not found."""
    found: str
    """What broke first."""


def hunt(name: str, seeds_max: int = SEEDS_MAX) -> Hunt:
    """Plant a bug and run seed after seed until a checker complains."""
    mutant = MUTANTS[name]
    for seed in range(seeds_max):
        with mutant.applied():
            outcome = run_seed(seed, mutant.profile)
        if outcome.violations:
            # What fails without the planted bug, too, says nothing about it.
            without = {each.checker for each in run_seed(seed, mutant.profile).violations}
            found = [
                each
                for each in outcome.violations
                if each.checker not in without and mutant.by in (None, each.checker)
            ]
            if found:
                return Hunt(name, mutant.bug, seed + 1, str(found[0]))
    return Hunt(name, mutant.bug, None, "")
