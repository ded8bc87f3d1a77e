"""Bounded: nothing that nodes and clients keep in memory grows beyond its limit."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Measured


@checker("memory is bounded")
def check(story: Story) -> Found:
    for event in story.history.of(Measured):
        if event.amount > event.limit:
            yield event.at, f"{event.who}: {event.what} {event.amount}, limit {event.limit}", None
