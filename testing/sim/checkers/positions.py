"""A position names only what its consumer has had: who comes back to it misses nothing.

All that lies up to a position with which a session begins came in an earlier session of the same
consumer, or was told as a gap, or is a repeat of something that came.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Began, Delivered, GapTold
from busnode.wire.ids import LogId


@checker("a position is never ahead of its consumer")
def check(story: Story) -> Found:
    had: dict[str, set[tuple[LogId, int]]] = {}
    got: dict[str, set[bytes]] = {}
    for event in story.history.events:
        match event:
            case Delivered() if event.log_id is not None:
                had.setdefault(event.consumer, set()).add((event.log_id, event.msg_no))
                got.setdefault(event.consumer, set()).add(event.payload)
            case GapTold():
                numbers = range(event.first, event.last + 1)
                told = ((event.log_id, number) for number in numbers)
                had.setdefault(event.consumer, set()).update(told)
            case Began() if event.start in ("memory", "file", "durable", "earliest"):
                mine = had.get(event.consumer, set())
                for log_id, msg_no in event.position:
                    for number in range(1, msg_no + 1):
                        if (log_id, number) in mine:
                            continue
                        body = story.bodies.get((log_id, number))
                        if body is None or body not in got.get(event.consumer, set()):
                            text = f"{event.consumer} begins behind {log_id} {msg_no}, and never"
                            yield event.at, f"{text} got {number}", body
                            break
            case _:
                pass
