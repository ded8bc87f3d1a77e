"""No fault of the world ends a node, or a part of it, by an error that nobody has handled."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import NodeCrashed


@checker("nodes handle what happens to them")
def check(story: Story) -> Found:
    for event in story.history.of(NodeCrashed):
        yield event.at, f"{event.node}: {event.error}", None
