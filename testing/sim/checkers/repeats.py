"""Effectively once: a log has no message twice, and one subscription gets none twice.

A publisher that got no ack sends again. The node that has it drops the repeat; one that does not
stores it in its own log, and the consumer's library drops it there.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Began, Delivered
from busnode.wire.ids import LogId


@checker("no message is stored or delivered twice")
def check(story: Story) -> Found:
    stored: dict[tuple[LogId, bytes], int] = {}
    for (log_id, number), payload in sorted(story.bodies.items(), key=lambda each: each[0]):
        if log_id.topic.startswith("/$"):
            continue
        first = stored.setdefault((log_id, payload), number)
        if first != number:
            name = payload.decode().strip(". ")
            yield 0.0, f"{name} is {log_id} {first} and {number}", payload
    queues: set[tuple[str, int]] = set()
    got: set[tuple[str, int, bytes]] = set()
    for event in story.history.events:
        if isinstance(event, Began) and event.start == "queue":
            queues.add((event.consumer, event.session))
        elif isinstance(event, Delivered) and event.log_id is not None:
            session = event.consumer, event.session
            if (*session, event.payload) in got and session not in queues:
                name = event.payload.decode().strip(". ")
                yield event.at, f"{event.consumer} got {name} twice", event.payload
            got.add((*session, event.payload))
