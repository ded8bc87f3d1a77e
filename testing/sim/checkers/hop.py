"""One hop: a message that came from another node goes to clients only. Who would send it on would
let somebody get it twice, and messages that are not persistent come at most once.

On one connection, that is: who connects to another node may find one there that took longer.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Delivered


@checker("one hop: what is not persistent comes at most once")
def check(story: Story) -> Found:
    seen: set[tuple[str, int, bytes]] = set()
    for event in story.history.of(Delivered):
        if event.log_id is None:
            delivery = event.consumer, event.connections, event.payload
            if delivery in seen:
                name = event.payload.decode().strip(". ")
                yield event.at, f"{event.consumer} got {name} twice", event.payload
            seen.add(delivery)
