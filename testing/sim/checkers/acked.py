"""No acked message is lost: whoever comes in the end and asks for everything gets it.

What has expired, and what faults took from all disks that had it, cannot be got: then who comes is
told that it is missing, unless nothing is left by which anybody could know.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Untold


@checker("no acked message is lost")
def check(story: Story) -> Found:
    homes: dict[bytes, list[str]] = {}
    for home, event in story.lacking:
        homes.setdefault(event.payload, []).append(home)
    for _, event in story.lacking:
        lacking = homes.pop(event.payload, None)
        if lacking:
            name = event.payload.decode().strip(". ")
            yield (
                event.at,
                f"{name} was acked as {event.log_id} {event.msg_no} ({event.level}), and a "
                f"consumer that came in the end did not get it at {' '.join(lacking)}, nor a gap",
                event.payload,
            )


@checker("a cursor that nobody knows is a gap")
def check_unknown(story: Story) -> Found:
    for event in story.history.of(Untold):
        text = f"nothing is left of {event.log_id}, and who came with a cursor in it at"
        yield event.at, f"{text} {event.home} was told nothing", None
