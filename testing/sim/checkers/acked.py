"""No acked message is lost: whoever comes in the end and asks for everything gets it."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Acked


@checker("no acked message is lost")
def check(story: Story) -> Found:
    for event in story.history.of(Acked):
        lacking = [home for home, got in story.audits.items() if event.payload not in got]
        if lacking:
            name = event.payload.decode().strip(". ")
            yield (
                event.at,
                f"{name} was acked as {event.log_id} {event.msg_no} ({event.level}), and a "
                f"consumer that came in the end did not get it at {' '.join(lacking)}",
                event.payload,
            )
