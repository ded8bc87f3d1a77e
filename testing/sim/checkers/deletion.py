"""A deleted byte had a reason: it is kept in another file of the same disk, or is older than its
origin keeps messages."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Gone


@checker("a deleted byte had a reason")
def check(story: Story) -> Found:
    for event in story.history.of(Gone):
        if not event.reason:
            text = f"{event.node} did away with {event.log_id} {event.first} to {event.last}"
            yield event.at, f"{text} in {event.path}", None
