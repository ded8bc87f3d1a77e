"""Keeps a subscription's position as it moves: in its cursor store, or on the cluster."""

from typing import Final, Protocol

import anyio

from busnode.client.bell import Bell
from busnode.client.cursor_store import CursorStore
from busnode.client.inbox import Log
from busnode.client.positions import Position
from busnode.client.refusal import again
from busnode.wire.control import Control, SavePosition
from busnode.wire.errors import BusnodeError, StorageFailed
from busnode.world.clock import Clock

SAVE_EVERY_S: Final = 0.2
"""How often a position that has moved is kept: what may come again after a crash."""

CLOSE_S: Final = 5.0
"""How long the last save may take when a subscription ends, cancelled or not."""


class Mover(Protocol):
    """What moves: a subscription."""

    number: int

    @property
    def position(self) -> Position: ...

    def take_moved(self) -> set[Log]: ...

    def ring(self) -> None: ...


class Messenger(Protocol):
    clock: Clock

    def send(self, message: Control) -> bool: ...


class Keeper:
    """Saves on a schedule, and at the end. A failure stops it and reaches the consumer."""

    def __init__(
        self, messenger: Messenger, mover: Mover, store: CursorStore | None, *, durable: bool
    ) -> None:
        self._messenger = messenger
        self._mover = mover
        self._store = store
        self._durable = durable
        self._unsaved: set[Log] = set()
        self._saving = False
        self._saved = Bell()
        self._scope = anyio.CancelScope()
        self._error: BusnodeError | None = None

    async def run(self) -> None:
        with self._scope:
            while True:
                await self._messenger.clock.sleep(SAVE_EVERY_S)
                try:
                    await self.save()
                except BusnodeError as error:
                    self._error = error
                    self._mover.ring()
                    return

    def check(self) -> None:
        """Raise what went wrong, if something did."""
        if self._error is not None:
            raise again(self._error)

    async def close(self) -> None:
        """Save for the last time. Raises StorageFailed."""
        self._scope.cancel()
        with anyio.move_on_after(CLOSE_S, shield=True):
            while self._saving:  # a disk that is at work cannot be cancelled, and two must not be
                await self._saved.wait()
            await self.save()

    async def save(self) -> None:
        position = self._mover.position
        self._unsaved |= self._mover.take_moved()
        moved, self._unsaved = self._unsaved, set()
        if not moved:
            return
        self._saving = True
        try:
            if self._durable:
                cursors = Position({log: position[log] for log in moved})
                if not self._messenger.send(SavePosition(self._mover.number, cursors.nested())):
                    self._unsaved |= moved  # when there is a home again
            if self._store is not None:
                await self._store.save(position)
        except BaseException as error:
            self._unsaved |= moved
            if isinstance(error, BusnodeError) or not isinstance(error, Exception):
                raise
            raise StorageFailed(f"the cursor store failed: {error!r:.200}") from error
        finally:
            self._saving = False
            self._saved.ring()
