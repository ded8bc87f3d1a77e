"""Order: in one log a consumer gets number after number, with no hole and none twice.

A number may be passed over where a GAP told so, and where its message has come before from another
log, in this session or an earlier one: a publisher that got no ack sends again, perhaps elsewhere,
and the library drops the repeat.
"""

from collections.abc import Iterator

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Began, Delivered, GapTold
from busnode.wire.ids import LogId


class _Session:
    def __init__(self, began: Began, got: set[bytes]) -> None:
        self.next: dict[LogId, int] = {log_id: msg_no + 1 for log_id, msg_no in began.position}
        self.told: set[tuple[LogId, int]] = set()
        self.got = got
        self.is_fresh = began.is_fresh


@checker("each log comes in order and without a hole")
def check(story: Story) -> Found:
    sessions: dict[tuple[str, int], _Session] = {}
    got: dict[str, set[bytes]] = {}
    for event in story.history.events:
        match event:
            case Began() if event.start != "queue":
                sessions[event.consumer, event.session] = _Session(
                    event, got.setdefault(event.consumer, set())
                )
            case GapTold():
                session = sessions.get((event.consumer, event.session))
                if session is not None:
                    numbers = range(event.first, event.last + 1)
                    session.told.update((event.log_id, number) for number in numbers)
            case Delivered() if event.log_id is not None:
                session = sessions.get((event.consumer, event.session))
                if session is not None:
                    yield from _take(story, session, event, event.log_id)
            case _:
                pass


def _take(
    story: Story, session: _Session, event: Delivered, log_id: LogId
) -> Iterator[tuple[float, str, bytes | None]]:
    expected = session.next.get(log_id)
    if expected is None:
        # A log that its position did not name is read from 1. Without a position one that nobody
        # had heard of may begin late: after `latest`, or with `earliest` behind what has expired.
        expected = event.msg_no if session.is_fresh else 1
    if event.msg_no < expected:
        text = f"{event.consumer} got {log_id} {event.msg_no} after {expected - 1}"
        yield event.at, text, event.payload
    for number in range(expected, event.msg_no):
        if (log_id, number) in session.told:
            continue
        if story.bodies.get((log_id, number)) in session.got:
            continue
        text = f"{event.consumer} got {log_id} {event.msg_no}, and never {number}, nor a gap"
        yield event.at, text, story.bodies.get((log_id, number))
    session.next[log_id] = max(event.msg_no + 1, expected)
    session.got.add(event.payload)
