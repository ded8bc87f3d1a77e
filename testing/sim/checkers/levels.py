"""The level in a receipt was true: so many disks had the message when the ack came."""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Acked, Sent


@checker("the level in a receipt was true")
def check(story: Story) -> Found:
    demanded = {event.payload for event in story.history.of(Sent) if event.kind == "mirrored"}
    for event in story.history.of(Acked):
        least = 2 if event.level == "mirrored" else 1
        name = event.payload.decode().strip(". ")
        if len(event.safe_at) < least:
            where = " ".join(event.safe_at) or "no disk"
            text = f"{name} was acked as {event.log_id} {event.msg_no} {event.level}, and is safe"
            yield event.at, f"{text} at {where} alone", event.payload
        if event.payload in demanded and event.level != "mirrored":
            text = f"{name} was to be mirrored or refused, and was acked as {event.level}"
            yield event.at, text, event.payload
