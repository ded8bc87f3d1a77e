"""A position names only what its consumer has had: who comes back to it misses nothing.

All that lies up to a position with which a session begins came in an earlier session of the same
consumer, or was told as a gap, or is a repeat of something that came. What had expired when a
consumer without a position first heard of a log is not missed: it begins with what is there.

A durable position is the same at the next home.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Began, Delivered, GapTold, Gone, HandedOver
from busnode.wire.ids import LogId

Place = tuple[LogId, int]


@dataclass(slots=True)
class _Consumer:
    had: set[Place] = field(default_factory=set[Place])
    got: set[bytes] = field(default_factory=set[bytes])
    logs: set[LogId] = field(default_factory=set[LogId])
    """Those that it has heard of."""
    is_fresh: bool = True

    def hears_of(self, log_id: LogId, before_no: int, expired: set[Place]) -> None:
        """Where it stands in a log. The first time it may stand behind what has expired."""
        if self.is_fresh and log_id not in self.logs:
            self.had.update(place for place in _up_to(log_id, before_no - 1) if place in expired)
        self.logs.add(log_id)


@checker("a position is never ahead of its consumer")
def check(story: Story) -> Found:
    consumers: dict[str, _Consumer] = {}
    expired: set[Place] = set()
    for event in story.history.events:
        match event:
            case Delivered() if event.log_id is not None:
                consumer = consumers.setdefault(event.consumer, _Consumer())
                consumer.hears_of(event.log_id, event.msg_no, expired)
                consumer.had.add((event.log_id, event.msg_no))
                consumer.got.add(event.payload)
            case GapTold():
                consumer = consumers.setdefault(event.consumer, _Consumer())
                numbers = range(event.first, event.last + 1)
                consumer.had.update((event.log_id, number) for number in numbers)
                consumer.logs.add(event.log_id)
            case Gone() if event.reason and not event.is_kept:
                numbers = range(event.first, event.last + 1)
                expired.update((event.log_id, number) for number in numbers)
            case Began() if event.start in ("memory", "away", "file", "durable", "earliest"):
                consumer = consumers.setdefault(event.consumer, _Consumer())
                yield from _begins(story, consumer, event, expired)
            case HandedOver():
                found = dict(event.found)
                for log_id, msg_no in event.saved:
                    if found.get(log_id, 0) < msg_no:
                        text = f"a durable position of {log_id} {msg_no} was {found.get(log_id)}"
                        yield event.at, f"{text} when its home had died", None
            case _:
                pass


def _begins(
    story: Story, consumer: _Consumer, event: Began, expired: set[Place]
) -> Iterator[tuple[float, str, bytes | None]]:
    if event.is_fresh:
        consumer.is_fresh = True
        consumer.logs.clear()
    for log_id, msg_no in event.position:
        # Also one that came up in the last session, and of which nothing was delivered there.
        consumer.hears_of(log_id, msg_no + 1, expired)
        for place in _up_to(log_id, msg_no):
            body = story.bodies.get(place)
            if place not in consumer.had and (body is None or body not in consumer.got):
                text = f"{event.consumer} begins behind {log_id} {msg_no}, and never got {place[1]}"
                yield event.at, text, body
                break
    consumer.is_fresh = event.is_fresh


def _up_to(log_id: LogId, last_no: int) -> list[Place]:
    return [(log_id, number) for number in range(1, last_no + 1)]
