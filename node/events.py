"""Where facts become events: written to the log, kept for a while, and published.

Whoever has seen something calls `tell` with its kind and the facts. That never waits and never
fails, and nothing is sent from there: it may be called in the middle of a change. A task of its own
publishes, as messages that are not persistent, for clients of all nodes.
"""

import json
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Protocol

import trio

from busnode.node.access import check_right
from busnode.node.event import Event, make_event
from busnode.node.event_folding import Folding
from busnode.node.event_kinds import SEVERITIES, Kind
from busnode.node.logs import fields
from busnode.security.rules import Rights
from busnode.wire import limits
from busnode.wire.errors import Refused
from busnode.wire.ids import BrokerId, Topic
from busnode.world.clock import Clock

logger = logging.getLogger(__name__)

TOPIC: Final = "/$sys/events"
"""Where a node is asked for those that it has kept; below it, by name, each node publishes."""

KEPT_MAX: Final = 1000
"""Events that a node remembers, and that may wait to be published: some hundred kilobytes."""

ANSWER_BYTES_MAX: Final = limits.REQUEST_BYTES_MAX - 4 * limits.KIB

Publish = Callable[[Topic, bytes, int], None]


class Tell(Protocol):
    """Takes a fact: its kind, and what is known of it."""

    def __call__(self, kind: Kind, **facts: object) -> None: ...


def log_only(kind: Kind, **facts: object) -> None:
    """For parts that stand alone: it is logged, and that is all."""
    logger.log(_LEVELS[kind.severity], kind.title, extra=fields(**facts))


class Events:
    """What has happened to one node."""

    def __init__(self, clock: Clock, node: str, broker_id: BrokerId, publish: Publish) -> None:
        self._clock = clock
        self._node = node
        self._broker_id = broker_id.hex()
        self._publish = publish
        self._topic = Topic(f"{TOPIC}/{node}")
        self._folding = Folding()
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._unpublished: deque[Event] = deque(maxlen=KEPT_MAX)
        self._woken = trio.Event()
        self._wakes_at = math.inf
        """When what was counted is told, as far as the task that publishes knows."""
        self.counts: dict[str, int] = dict.fromkeys(SEVERITIES, 0)
        """How many there were of each severity, folded ones included."""

    def tell(self, kind: Kind, **facts: object) -> None:
        """Log it and make an event of it."""
        if not kind.is_cheap:
            log_only(kind, **facts)
        try:
            self.counts[kind.severity] += 1
            event = make_event(self._clock.utc_us(), self._node, kind, facts)
            told = self._folding.handle(event, self._clock.monotonic())
            if kind.is_cheap and told and told[-1] is event:
                log_only(kind, **facts)
            self._take(told)
            if told or (self._folding.next_due() or math.inf) < self._wakes_at:
                self._woken.set()  # not for each of thousands that are only counted
        except Exception:
            # It happened all the same: whoever tells of it must be able to go on.
            logger.exception("no event of %r", kind.name)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            number = self._kept[-1].number + 1 if self._kept else 1
            numbered = _numbered(event, self._broker_id, number)
            self._kept.append(numbered)
            self._unpublished.append(numbered)

    async def run(self) -> None:
        """Publish what was told."""
        while True:
            self._wakes_at = self._folding.next_due() or math.inf
            # The clock has the scale of deadlines.
            with trio.CancelScope(deadline=self._wakes_at):
                await self._woken.wait()
            self._woken = trio.Event()
            self.publish()

    def publish(self) -> None:
        """Send all that waits. Whoever is about to leave calls it, too."""
        self._take(self._folding.due(self._clock.monotonic()))
        while self._unpublished:
            event = self._unpublished.popleft()
            try:
                self._publish(self._topic, _encode(event), event.utc_us)
            except Exception:
                logger.exception("event %d was not published", event.number)

    def answer(self, payload: bytes, rights: Rights | None) -> dict[str, Any]:
        """Those that are kept, from one behind a number on; `next` is where to go on, or None. For
        administrators: they name clients and topics of others."""
        check_right(rights, "admin", Topic(TOPIC))
        after, limit = _paging(payload)
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        newer = [event for event in self._kept if event.number > after]
        for event in islice(newer, limit):
            size_bytes += len(_encode(event)) + 2
            if size_bytes > ANSWER_BYTES_MAX:
                break
            rows.append(event.told())
        more = len(rows) < len(newer)
        return {
            "node": self._node,
            "broker_id": self._broker_id,
            "events": rows,
            "next": rows[-1]["number"] if more and rows else None,
        }


_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _numbered(event: Event, broker_id: str, number: int) -> Event:
    return replace(event, broker_id=broker_id, number=number)


def _encode(event: Event) -> bytes:
    return json.dumps(event.told(), ensure_ascii=False).encode(errors="replace")


def _paging(payload: bytes) -> tuple[int, int]:
    shape = 'expected {"after": 0, "limit": 1000} or a part of it'
    try:
        given: Any = json.loads(payload or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(f"the payload is no JSON; {shape}") from error
    asked: dict[str, Any] = {"after": 0, "limit": KEPT_MAX}
    if isinstance(given, dict):
        asked |= given
        after, limit = asked["after"], asked["limit"]
        if len(asked) == 2 and isinstance(after, int) and isinstance(limit, int) and limit > 0:
            return after, limit
    raise Refused(f"the payload has something that makes no sense; {shape}")
