"""A GAP for what nobody can serve, and for nothing else: what can be read is never given up.

It names numbers that the consumer has not had, each once, and a reason; and it says that something
has expired only where retention has dropped it.
"""

from busnode.testing.sim.checkers.checker import Found, Story, checker
from busnode.testing.sim.history import Began, Delivered, GapTold, Gone, Lost
from busnode.wire.ids import LogId

Place = tuple[LogId, int]


@checker("a gap is told only where nobody can serve")
def check(story: Story) -> Found:
    for event in story.history.of(GapTold):
        if event.held:
            yield (
                event.at,
                f"{_told(event)}; {' '.join(map(str, event.held))} could be had, in reach",
                None,
            )


@checker("a gap names what is missing, once, and why")
def check_names(story: Story) -> Found:
    expired: set[Place] = set()
    lost: set[Place] = set()
    had: dict[tuple[str, int], set[Place]] = {}
    queues: set[tuple[str, int]] = set()
    for event in story.history.events:
        match event:
            case Gone() if event.reason and not event.is_kept:
                expired.update(_places(event))
            case Lost():
                lost.update(_places(event))
            case Began() if event.start == "queue":
                queues.add((event.consumer, event.session))  # a group may begin anew
            case Delivered() if event.log_id is not None:
                session = event.consumer, event.session
                had.setdefault(session, set()).add((event.log_id, event.msg_no))
            case GapTold():
                told = _places(event)
                mine = had.setdefault((event.consumer, event.session), set())
                again = told & mine
                if again and (event.consumer, event.session) not in queues:
                    numbers = sorted(number for _, number in again)
                    yield event.at, f"{_told(event)}; it knew of {numbers} or had it", None
                mine |= told
                if not event.reason:
                    yield event.at, f"{_told(event)}: no reason", None
                # Of what is damaged everywhere a copy may have had nothing: it begins behind it.
                if event.reason.startswith("expired") and told - expired - lost:
                    numbers = sorted(number for _, number in told - expired - lost)
                    yield event.at, f"{_told(event)}; {numbers} had not expired", None
            case _:
                pass


def _places(event: GapTold | Gone | Lost) -> set[Place]:
    return {(event.log_id, number) for number in range(event.first, event.last + 1)}


def _told(event: GapTold) -> str:
    return (
        f"{event.consumer} was told that {event.log_id} {event.first} to {event.last} cannot be "
        f"had ({event.reason})"
    )
