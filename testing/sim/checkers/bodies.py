"""No number has two bodies: not on two disks, not for two consumers, not in a receipt."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Acked, Delivered
from busnode.wire.ids import LogId


@checker("no number has two bodies")
def check(story: Story) -> Found:
    for log_id, number, where in story.conflicts:
        yield 0.0, f"{log_id} {number} is not the same on all disks: {where}", None
    # First what is on disks: who has seen something comes after.
    seen: dict[tuple[LogId, int], bytes] = dict(story.bodies)
    for event in story.history.events:
        if isinstance(event, Acked | Delivered) and event.log_id is not None:
            place = event.log_id, event.msg_no
            known = seen.setdefault(place, event.payload)
            if known != event.payload:
                one, other = (each.decode().strip(". ") for each in (known, event.payload))
                yield event.at, f"{place[0]} {place[1]} is {one} and {other}", event.payload
