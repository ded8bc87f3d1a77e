"""Everything that a client publishes, on its way from `publish` to the ack."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import anyio.lowlevel

from busnode.client.batch import Batch, Lane, Owner
from busnode.client.batching import BATCH_CHARGE_MAX, MESSAGE_CHARGE, Batching
from busnode.client.bell import Bell
from busnode.client.patience import Patience
from busnode.client.payloads import Payload, checked
from busnode.client.refusal import again
from busnode.client.room import Room
from busnode.client.window import BATCHES_MAX, Window
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import Ack
from busnode.wire.errors import BusnodeError
from busnode.wire.limits import KIB, MIB
from busnode.world.clock import Clock

logger = logging.getLogger("busnode.client")

WINDOW_BYTES: Final = 16 * MIB
"""Un-acked persistent messages. At 1 GB/s that is 16 ms of a node's time to sync and answer."""

BUFFER_BYTES: Final = 8 * MIB
"""Messages that are not persistent and not written yet."""

WRITE_BYTES: Final = 256 * KIB
"""What is given to the socket at once: about what it takes."""

YIELD_CHARGE: Final = BATCH_CHARGE_MAX
"""Publishing lets other tasks run after this much: a batch, at most 4096 messages."""

STALL_S: Final = 0.01
"""While nothing can be written, grants end so often: the error of a message's time."""


class Outgoing:
    """Takes messages in, hands out bytes, settles batches. The connection's writer asks for `more`.

    `wanted` rings when it should.
    """

    def __init__(
        self,
        producer_id: int,
        clock: Clock,
        patience: Patience,
        wanted: Bell,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_batches: int = BATCHES_MAX,
        buffer_bytes: int = BUFFER_BYTES,
        linger_s: float = 0.0,
    ) -> None:
        self.batching = Batching(Room(window_bytes), Room(buffer_bytes))
        self.window = Window(window_batches)
        self.progress = Bell()
        """Rings when something was settled."""
        self.acked_messages = 0
        self.sent_messages = 0
        """Not persistent, and taken by the socket."""
        self.lost_messages = 0
        """Not persistent, and lost with a connection."""
        self.refused_messages = 0
        self._producer_id = producer_id
        self._wanted = wanted
        self._clock = clock
        self._patience = patience
        self._linger_s = linger_s
        self._linger_until: float | None = None
        self._hurry = False
        self._since_yield = 0
        self._in_socket: list[Batch] = []

    # Messages in ----------------------------------------------------------------------------------

    async def admit(
        self,
        lane: Lane,
        owner: Owner,
        payload: Payload,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> Batch:
        """Take a message that its owner has no grant for; waits while there is no room.

        When it is cancelled the message was not taken.
        """
        payload = checked(payload)
        charge = len(payload) + MESSAGE_CHARGE
        if headers is not None or message_id is not None:
            headers = None if headers is None else dict(headers)
            # The same check that packing makes, now: nobody else's messages must suffer for it.
            charge += len(encode_columns(Columns([b""], None, [message_id], [headers])))
        await self._make_room(lane, charge)
        batch = self.batching.place(
            lane, owner, payload, headers, message_id, charge, self._clock.utc_us()
        )
        self._since_yield += charge + owner.room
        self._wake()
        return batch

    async def admit_many(
        self,
        lane: Lane,
        owner: Owner,
        payloads: list[bytes],
        note: Callable[[Batch], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take messages that were checked, all with the same headers. `note` is told each batch
        that they go into; those that were taken stay when it is cancelled."""
        each = MESSAGE_CHARGE
        if headers is not None:
            each += len(encode_columns(Columns([b""], None, None, [headers])))
        charge = sum(map(len, payloads)) + each * len(payloads)
        if len(payloads) == 1:
            note(await self.admit(lane, owner, payloads[0], headers))
        elif charge > BATCH_CHARGE_MAX:
            half = len(payloads) // 2
            await self.admit_many(lane, owner, payloads[:half], note, headers)
            await self.admit_many(lane, owner, payloads[half:], note, headers)
        else:
            await self._make_room(lane, charge)
            utc_us = self._clock.utc_us()
            note(self.batching.place_many(lane, owner, payloads, charge, utc_us, headers))
            self._since_yield += charge
            self._wake()

    async def admit_numbered(self, lane: Lane, owner: Owner, columns: Columns, seq: int) -> Batch:
        """Take a batch as it is, under a number that its publisher gives it."""
        charge = len(encode_columns(columns)) + MESSAGE_CHARGE * len(columns.payloads)
        await self._make_room(lane, charge)
        batch = self.batching.place_alone(lane, owner, columns, charge, self._clock.utc_us())
        batch.seq = seq
        self._since_yield += charge
        self._wake()
        return batch

    async def _make_room(self, lane: Lane, charge: int) -> None:
        self._patience.check()
        if self._since_yield >= YIELD_CHARGE:
            self._since_yield = 0
            await anyio.lowlevel.checkpoint()
        room = self.batching.room(lane)
        if room.take(charge):
            return
        self.batching.end_grants()  # what owners were granted and may not need
        if room.take(charge):
            return
        claim = room.claim(charge)
        try:
            await self._patience.wait(claim.bell, lambda: claim.granted)
        except BaseException:
            room.withdraw(claim)
            raise

    def _wake(self) -> None:
        if self._linger_s and self._linger_until is None:
            self._linger_until = self._clock.monotonic() + self._linger_s
        self._wanted.ring()

    async def wait(self, batch: Batch) -> None:
        """Until a batch is settled; raises what it was refused with."""
        if not batch.settled:
            self.hurry()
            await self._patience.wait(batch.bell, lambda: batch.settled)
        if batch.error is not None:
            raise again(batch.error)

    def hurry(self) -> None:
        """Somebody waits: do not linger."""
        if self._linger_s and not self._hurry:
            self._hurry = True
            self._wanted.ring()

    # Bytes out ------------------------------------------------------------------------------------

    def more(self) -> bytes:
        """What to write next; nothing when there is nothing or it must wait."""
        if self._lingers():
            return b""
        frames: list[bytes] = []
        size = 0
        while size < WRITE_BYTES:
            batch = self.batching.next_batch(persistent=not self.window.full)
            if batch is None:
                break
            if self._pack(batch):
                frames.append(batch.frame)
                size += len(batch.frame)
        if not self._waits():
            self._linger_until, self._hurry = None, False
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def pause_s(self) -> float | None:
        """How long after an empty `more` to ask again; None: when the bell rings."""
        if not self._waits():
            return None
        if self._linger_until is not None and not self._hurry:
            return max(0.0, self._linger_until - self._clock.monotonic())
        return STALL_S

    def stalled(self) -> None:
        """Nothing could be written for a while."""
        self.batching.end_grants()

    def _waits(self) -> bool:
        return bool(self.batching.waiting(True) or self.batching.waiting(False))

    def _lingers(self) -> bool:
        if self._linger_until is None or self._hurry:
            return False
        one = len(self.batching.waiting(True)) + len(self.batching.waiting(False)) <= 1
        return one and self._clock.monotonic() < self._linger_until

    def _pack(self, batch: Batch) -> bool:
        persistent = batch.lane.persistent
        try:
            seq = batch.seq or self.window.next_seq
            batch.pack(self._producer_id, seq if persistent else 0)
        except BusnodeError as error:  # `admit` has checked it, so this is a bug: never a hang
            batch.error = error
            self._settle(batch)
            return False
        if persistent:
            self.window.add(batch)
        else:
            self._in_socket.append(batch)
        return True

    def taken(self) -> None:
        """The socket has taken all that there was."""
        for batch in self._in_socket:
            self.sent_messages += batch.count
            self._settle(batch)
        self._in_socket.clear()

    # What becomes of it ---------------------------------------------------------------------------

    def acked(self, message: Ack) -> None:
        for batch in self.window.acked(message.broker_id, message.level, message.receipts):
            self.acked_messages += batch.count
            self._settle(batch)
        if self._waits():  # for room in the window
            self._wanted.ring()

    def refused(self, seq: int, error: BusnodeError) -> None:
        """A batch was refused. One that is not persistent has no number and nobody who waits."""
        batch = self.window.refused(seq, error)
        if batch is None:
            logger.warning("the node refused messages that are not persistent: %s", error)
            return
        self.refused_messages += batch.count
        self._settle(batch)
        self._wanted.ring()

    def _settle(self, batch: Batch) -> None:
        self.batching.room(batch.lane).give_back(batch.charge)
        batch.settle()
        self.progress.ring()

    @property
    def drained(self) -> bool:
        """Whether nothing is left to write or to be acked."""
        return not (self._waits() or self._in_socket or self.window)

    # Connections ----------------------------------------------------------------------------------

    def arrived(self) -> list[bytes]:
        """There is a home: what is to be sent again first."""
        self.batching.grants = True
        return [batch.frame for batch in self.window.unacked()]

    def left(self) -> None:
        """The home is gone, and with it what was in the socket and not persistent."""
        self.batching.grants = False
        self.batching.end_grants()
        for batch in self._in_socket:
            self.lost_messages += batch.count
            self._settle(batch)
        self._in_socket.clear()

    def ring(self) -> None:
        """Let all who wait look at how things stand."""
        for batch in self.window.unacked():
            batch.bell.ring()
        for persistent in (True, False):
            for batch in self.batching.waiting(persistent):
                batch.bell.ring()
            self.batching.rooms[persistent].ring()
        self.progress.ring()
