"""A subscription: asked for at the home, again at every new one, and fed by it."""

import logging
from dataclasses import dataclass
from typing import Final, Protocol

import anyio.abc

from busnode.client.consumer import Consumer
from busnode.client.cursor_store import CursorStore
from busnode.client.gaps import Gap, OnDropped, OnGap
from busnode.client.inbox import Hole, Inbox
from busnode.client.keeper import Keeper
from busnode.client.patience import Patience
from busnode.client.positions import Position
from busnode.client.refusal import again
from busnode.wire.control import Chunk, Control, Credit, Subscribe
from busnode.wire.errors import BusnodeError, UnexpectedFrame
from busnode.wire.ids import Pattern
from busnode.wire.runs import Run
from busnode.world.clock import Clock

logger = logging.getLogger("busnode.client")

RETURN_EVERY_S: Final = 0.1
"""How often a busy member of a queue group says what it is done with."""


class Host(Protocol):
    """What a subscription asks of its bus."""

    clock: Clock
    patience: Patience
    tasks: anyio.abc.TaskGroup

    def send(self, message: Control) -> bool:
        """Send it to the home; False when there is none."""
        ...

    def subscribe(self, subscription: "Subscription") -> None:
        """Ask the home for it under a new number, now or as soon as there is one."""
        ...

    def unsubscribe(self, subscription: "Subscription") -> None: ...

    def leave_home(self, why: str) -> None:
        """The home does not keep the protocol: try another."""
        ...


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    received: int
    """Messages, without repeats."""
    repeats: int
    """Messages that came again and were passed over."""
    gaps: int
    dropped: int
    """Not persistent, dropped by the node because we were too slow."""
    holes: int
    """How often something was missing and was asked for again."""
    inbox_bytes: int


class Subscription(Consumer):
    """`async with bus.subscribe(…) as messages: async for message in messages: …`"""

    def __init__(
        self,
        host: Host,
        pattern: Pattern,
        start: str | int | Position,
        store: CursorStore | None,
        durable: str | None,
        queue: str | None,
        credit_bytes: int,
        on_gap: OnGap,
        on_dropped: OnDropped,
    ) -> None:
        super().__init__(pattern, Inbox(credit_bytes, cursors=queue is None), on_gap, on_dropped)
        self.number = 0
        """Under which the home knows it now; the bus gives it."""
        self._host = host
        self._start = start
        self._store = store
        self._durable = durable
        self._queue = queue
        self._begun = False
        self._error: BusnodeError | None = None
        self._keeper: Keeper | None = None
        if store is not None or durable is not None:
            self._keeper = Keeper(host, self, store, durable=durable is not None)
        self._last_hole = ""
        self._holes = 0
        self._returned_at = 0.0

    # Beginning and end ----------------------------------------------------------------------------

    async def __aenter__(self) -> "Subscription":
        kept = None if self._store is None else await self._store.load()
        if kept is not None:
            self._start = kept
        if isinstance(self._start, Position):
            self._inbox.remember(self._start.seen)
        self._host.subscribe(self)
        try:
            await self._host.patience.wait(self._bell, lambda: self._begun or bool(self._error))
            self._check(waiting=True)
            if self._keeper is not None:
                # At once: who crashes before the first message must come back to the same place.
                await self._keeper.save()
                self._host.tasks.start_soon(self._keeper.run)
        except BaseException:
            self._host.unsubscribe(self)
            raise
        return self

    async def __aexit__(self, *args: object) -> None:
        if self._queue is not None:
            self._finish_current()
            self._return_credit(soon=True)  # or others would get again what is done
        try:
            if self._keeper is not None:
                await self._keeper.close()
        finally:
            self._host.unsubscribe(self)

    def request(self) -> Subscribe:
        """What to ask the home for: the beginning, or from where it broke off."""
        start: str | int | None = None
        position = self._inbox.received
        if not self._begun:
            if isinstance(self._start, Position):
                position = self._start
            else:
                start, position = self._start, Position()
        return Subscribe(
            self.number,
            self.pattern,
            start,
            position.nested(),
            self._durable,
            self._queue,
            self._inbox.credit_to_begin(),
        )

    # What the bus brings --------------------------------------------------------------------------

    def subscribed(self, position: Position) -> None:
        if not self._begun or self._durable is not None:
            self._inbox.begin(position, again=self._begun)
        self._begun = True
        self._bell.ring()

    def failed(self, error: BusnodeError) -> None:
        """It was refused: whoever reads learns it when the inbox is empty."""
        self._error = error
        self._bell.ring()

    def ring(self) -> None:
        self._bell.ring()

    def take(self, view: memoryview, runs: list[Run], chunk: Chunk) -> None:
        if not self._begun:
            raise UnexpectedFrame(f"batches of {self.pattern} before its position")
        try:
            for run in runs:
                self._inbox.take(view, run, chunk)
        except Hole as hole:
            self._mend(str(hole))
        self._return_credit()
        self._bell.ring()

    def take_place(self, chunk: Chunk) -> None:
        """A log came up later than the position that the subscription began with."""
        self._inbox.take_place(chunk)

    def take_gap(self, gap: Gap) -> None:
        try:
            self._inbox.take_gap(gap)
        except Hole as hole:
            self._mend(str(hole))
        self._bell.ring()

    def take_dropped(self, count: int) -> None:
        self._inbox.dropped += count
        self._bell.ring()

    def _mend(self, hole: str) -> None:
        """Ask again from where we are. If the same is missing then, this home cannot serve us."""
        self._holes += 1
        logger.warning("%s: something is missing, asking for it again: %s", self.pattern, hole)
        if hole == self._last_hole:
            self._last_hole = ""
            self._host.leave_home(f"it leaves out messages: {hole}")
        else:
            self._last_hole = hole
            self._host.subscribe(self)

    def _return_credit(self, *, soon: bool = False) -> None:
        credit_bytes = self._inbox.credit_to_return(soon=soon or self._is_due())
        if credit_bytes and self._begun:
            self._host.send(Credit(self.number, credit_bytes))

    def _is_due(self) -> bool:
        """In a queue group credit also says what is done: others get what is not, should we die. So
        it is given back at once by who has nothing more to do, and now and then by who is busy."""
        if self._queue is None:
            return False
        now = self._host.clock.monotonic()
        if self._inbox.entries and now - self._returned_at < RETURN_EVERY_S:
            return False
        self._returned_at = now
        return True

    def _check(self, *, waiting: bool) -> None:
        if self._keeper is not None:
            self._keeper.check()
        if waiting:
            self._host.patience.check()
            if self._error is not None:
                raise again(self._error)

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            received=self._inbox.received_messages,
            repeats=self._inbox.repeats,
            gaps=self._gaps,
            dropped=self._dropped + self._inbox.dropped,
            holes=self._holes,
            inbox_bytes=self._inbox.held_bytes,
        )
