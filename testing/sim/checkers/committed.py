"""Consumers see committed messages only: what they get is on some disk for sure."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Delivered


@checker("consumers see committed messages only")
def check(story: Story) -> Found:
    for event in story.history.of(Delivered):
        if not event.is_safe:
            text = f"{event.consumer} got {event.log_id} {event.msg_no}, which no disk has for sure"
            yield event.at, text, event.payload
