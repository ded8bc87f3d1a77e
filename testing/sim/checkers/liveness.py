"""Liveness: within 30 s after the last heal every publish is answered, every consumer has caught
up, and everything works again. A receipt is one for each publish."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Unsettled


@checker("all is well 30 s after the last heal")
def check(story: Story) -> Found:
    for event in story.history.of(Unsettled):
        yield event.at, event.what, None
