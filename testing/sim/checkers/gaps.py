"""A GAP for every hole, and none where there is no hole: what can be read is never given up."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import GapTold


@checker("a gap is told only where nobody can serve")
def check(story: Story) -> Found:
    for event in story.history.of(GapTold):
        if event.last and event.reachable:
            yield (
                event.at,
                f"{event.consumer} was told that {event.log_id} {event.first} to {event.last} "
                f"cannot be had ({event.reason}); {' '.join(event.reachable)} had it, in reach",
                None,
            )
