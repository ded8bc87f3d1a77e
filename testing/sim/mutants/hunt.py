"""How many seeds it takes until a planted bug is found."""

from typing import Final, NamedTuple

from busnode.testing.sim.mutants import MUTANTS, SEEDS_MAX
from busnode.testing.sim.run import run_seed

SHOWS_AT: Final = {
    "consumer_sees_uncommitted": 1,
    "fence_not_checked": 2,
    "filled_segment_not_synced": 2,
    "lost_fetch_is_forgotten": 1,
    "lost_mirror_is_kept": 1,
    "no_deduplication": 5,
    "node_watermark_deduplication": 1,
    "queue_to_two": 1,
    "reading_begins_too_late": 2,
    "repeats_stored": 3,
    "unacked_not_resent": 3,
    "unread_tasks_passed_over": 2,
}
"""The first seed at which a mutant is found, where that is not 0: it is tried first."""


class Hunt(NamedTuple):
    mutant: str
    bug: str
    seeds: int | None
    """None: it was not found."""
    found: str
    """What broke first."""


def packs() -> list[list[str]]:
    """All mutants, together those that show under the same faults; the largest packs first."""
    found: dict[str, list[str]] = {}
    for name, mutant in MUTANTS.items():
        found.setdefault(repr(mutant.profile), []).append(name)
    return sorted(found.values(), key=len, reverse=True)


def hunt(pack: list[str], seeds_max: int = SEEDS_MAX) -> list[Hunt]:
    """Plant one bug after the other, and run seed after seed until a checker complains."""
    broken: dict[int, set[str]] = {}
    return [_hunt(name, seeds_max, broken) for name in pack]


def _hunt(name: str, seeds_max: int, broken: dict[int, set[str]]) -> Hunt:
    """`broken` are the promises that are broken without a planted bug, by seed, as far as known."""
    mutant = MUTANTS[name]
    for seed in dict.fromkeys((SHOWS_AT.get(name, 0), *range(seeds_max))):
        with mutant.applied() as patch:
            violations = run_seed(seed, mutant.profile).violations
            own = [str(each) for each in violations if patch.is_named_in(each.text)]
        if own:
            return Hunt(name, mutant.bug, None, f"it does not fit the code any more: {own[0]}")
        if violations and seed not in broken:
            # What fails without the planted bug, too, says nothing about it.
            outcome = run_seed(seed, mutant.profile)
            broken[seed] = {each.checker for each in outcome.violations}
        found = [
            each
            for each in violations
            if each.checker not in broken[seed] and mutant.by in (None, each.checker)
        ]
        if found:
            return Hunt(name, mutant.bug, seed + 1, str(found[0]))
    return Hunt(name, mutant.bug, None, "")
