"""Going on after the disk has failed: a new incarnation in the same process.

A log whose write or sync failed takes no more, for good, and its numbers are never given again. The
other logs of that incarnation may be next. So the node begins a new brokerId and writes to
new logs; all that was committed stays readable where it is. If the disk fails again soon, the node
waits longer each time and refuses persistent messages meanwhile; all else goes on.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from busnode.node.event_kinds import INCARNATION, NO_INCARNATION
from busnode.node.events import Tell, log_only
from busnode.node.logs import fields
from busnode.node.publishing import Publishing
from busnode.node.router import Router
from busnode.segments.store import Log, Store
from busnode.wire.errors import BusnodeError, StorageError
from busnode.wire.ids import BrokerId
from busnode.world.world import World

logger = logging.getLogger(__name__)

PAUSE_S_FIRST: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""A full disk is emptied by retention or by a person: looking once a minute is soon enough."""


class Incarnations:
    """The brokerIds under which a node writes, one after the other."""

    def __init__(
        self,
        world: World,
        store: Store,
        router: Router,
        publishing: Publishing,
        keep: Callable[[BrokerId], None],
        begun: Callable[[], None],
        tell: Tell = log_only,
    ) -> None:
        """The first one has begun everywhere. Of each that follows `keep` makes durable that it is
        ours, or raises StorageError; `begun` is called when it has begun."""
        self._tell = tell
        self.count = 1
        self.failure: str | None = None
        """Why persistent messages are refused now, or None."""
        self._store = store
        self._entropy = world.entropy
        self._clock = world.clock
        self._router = router
        self._publishing = publishing
        self._keep = keep
        self._begun = begun
        self._pause_s = 0.0
        self._not_before = world.clock.monotonic()
        self._failed = trio.Event()

    @property
    def current(self) -> BrokerId:
        return self._publishing.broker_id

    def lost(self, log: Log) -> None:
        """A log takes no more. Begins a new incarnation at once, unless that was just done."""
        if log.log_id.broker_id == self.current and self.failure is None:
            self._fail(f"log {log.log_id} takes no more: {log.poisoned}")
            if self._clock.monotonic() >= self._not_before:
                self._begin()

    async def run(self) -> None:
        """Try again, as long as it takes."""
        while True:
            await self._failed.wait()
            self._failed = trio.Event()
            while self.failure is not None:
                await self._clock.sleep(max(0.0, self._not_before - self._clock.monotonic()))
                self._begin()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._publishing.stop(reason)
        self._failed.set()

    def _begin(self) -> None:
        self._wait_longer()
        broker_id = self._entropy.broker_id()
        try:
            self._store.begin(broker_id)  # durable before anything can be acked under it
            self._keep(broker_id)
        except (StorageError, OSError) as error:
            self._tell(NO_INCARNATION, error=error, retry_after_s=self._pause_s)
            self._fail(str(error))
            return
        self.count += 1
        why, self.failure = self.failure, None
        self._router.begin(broker_id)
        self._publishing.begin(broker_id)
        self._tell(INCARNATION, broker_id=broker_id.hex(), why=why)
        try:
            self._begun()
        except BusnodeError as error:
            # The disk again: its log is lost, and we shall hear of it.
            logger.error("positions were not taken over", extra=fields(error=error))

    def _wait_longer(self) -> None:
        """The next one must wait; the longer, the sooner the one before has failed."""
        now = self._clock.monotonic()
        calm = now - self._not_before > PAUSE_S_MAX
        self._pause_s = PAUSE_S_FIRST if calm or not self._pause_s else 2 * self._pause_s
        self._pause_s = min(self._pause_s, PAUSE_S_MAX)
        self._not_before = now + self._pause_s
