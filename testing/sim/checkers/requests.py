"""A request has one answer, and it is the answer to that request."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Answered


@checker("a request gets the answer to it")
def check(story: Story) -> Found:
    for event in story.history.of(Answered):
        if not event.code and event.answer != b"echo " + event.payload:
            text = f"{event.client} asked {event.payload!r} and was answered {event.answer!r}"
            yield event.at, text, None
