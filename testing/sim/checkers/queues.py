"""A message to a queue group goes to exactly one member.

That is judged where all is calm. Under faults it is at least once: a publisher that connects again
may have published twice, and what a lost member had may be handed out again; a member that dies
takes along what it had been sent.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Calm, Delivered, Sent


@checker("a message to a queue goes to one member")
def check(story: Story) -> Found:
    # A clone takes for its own what its original wrote and writes: both read it for the group.
    calm = (event.at for event in story.history.of(Calm) if not event.clones)
    calm_at = next(calm, float("inf"))
    sent = {
        event.payload
        for event in story.history.of(Sent)
        if event.kind == "queue" and event.at >= calm_at
    }
    first: dict[bytes, Delivered] = {}
    for event in story.history.of(Delivered):
        if event.payload in sent:
            before = first.setdefault(event.payload, event)
            if before is not event:
                name = event.payload.decode().strip(". ")
                text = f"{name} went to {before.consumer} and to {event.consumer}"
                yield event.at, text, event.payload
