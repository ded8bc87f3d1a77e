"""The fewest faults that still break the same promise: what a person looks at."""

from collections.abc import Callable

from busnode.testing.sim.run import Outcome, run_seed
from busnode.testing.sim.schedule import Entry


def shrink(failed: Outcome, tried: Callable[[int], None] | None = None) -> Outcome:
    """Drop faults, many at a time and then one by one, as long as the run fails in the same way.

    `tried` hears after each run how many faults are left.
    """
    wanted = failed.violations[0].checker
    best = failed
    size = max(1, len(best.schedule) // 2)
    while True:
        at = 0
        while at < len(best.schedule):
            fewer: list[Entry] = best.schedule[:at] + best.schedule[at + size :]
            outcome = run_seed(failed.seed, failed.profile, only=fewer)
            if any(violation.checker == wanted for violation in outcome.violations):
                best = outcome
            else:
                at += size
            if tried is not None:
                tried(len(best.schedule))
        if size == 1:
            return best
        size //= 2
