"""What was refused and what administrators did, kept: persistent messages of `/$sys/audit/<node>`.

They are events, too. A storm of refusals is folded into a few with a count, so that whoever is
refused cannot fill the disk; what administrators do is always written one by one.
"""

import json
import logging
import math
from typing import Final

import trio

from busnode.node.event import Event, make_event
from busnode.node.event_folding import Folding
from busnode.node.event_kinds import ADMIN_ACTED, Kind
from busnode.node.events import Tell
from busnode.node.own_messages import OwnMessages
from busnode.wire.batches import Columns
from busnode.wire.errors import BusnodeError
from busnode.wire.frames import Flags
from busnode.wire.ids import Topic
from busnode.world.clock import Clock

logger = logging.getLogger(__name__)

TOPIC: Final = "/$sys/audit"

DISTINCT_MAX: Final = 100
"""Different refusals of one kind that are written within ten seconds, one by one: some 300 bytes
each. All others of that time are counted together."""

FLAGS: Final = Flags.PERSISTENT | Flags.GLOBAL


class Audit:
    def __init__(self, clock: Clock, node: str, own: OwnMessages, tell: Tell) -> None:
        self._clock = clock
        self._node = node
        self._own = own
        self._tell = tell
        self._topic = Topic(f"{TOPIC}/{node}")
        self._folding = Folding(distinct_max=DISTINCT_MAX)
        self._woken = trio.Event()
        self.refusals = 0

    def refused(self, kind: Kind, **facts: object) -> None:
        """Somebody was not let in, or may not do something."""
        self.refusals += 1
        self._tell(kind, **facts)
        event = make_event(self._clock.utc_us(), self._node, kind, facts)
        self._write(self._folding.handle(event, self._clock.monotonic()))
        self._woken.set()

    def acted(self, **facts: object) -> None:
        """An administrator has done something."""
        self._tell(ADMIN_ACTED, **facts)
        self._write([make_event(self._clock.utc_us(), self._node, ADMIN_ACTED, facts)])

    async def run(self) -> None:
        """Write what was counted when it is time."""
        while True:
            due = self._folding.next_due()
            with trio.CancelScope(deadline=math.inf if due is None else due):
                await self._woken.wait()
            self._woken = trio.Event()
            self._write(self._folding.due(self._clock.monotonic()))

    def _write(self, events: list[Event]) -> None:
        if not events:
            return
        payloads = [json.dumps(event.told(), ensure_ascii=False).encode() for event in events]
        try:
            self._own.publish(self._topic, Columns(payloads), events[-1].utc_us, FLAGS)
            self._own.flush()
        except BusnodeError as error:  # a disk that fails: what happened is in the log all the same
            logger.error("audit: %d entries could not be kept: %s", len(events), error)
