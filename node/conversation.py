"""One connection of a node, whoever is at the other end: its frames in, its heartbeat, its end.

The reader is the hot path: it receives into one buffer, verifies and hands on whole runs, and waits
only when the socket is empty. No task, scope or channel is made for a frame.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Final

import trio

from busnode.node.memory_budget import MemoryBudget
from busnode.node.outgoing import Outgoing
from busnode.node.receipts import encode_refusal
from busnode.security.rules import Rights
from busnode.wire.control import Control, Damaged, Ping, encode_trusted
from busnode.wire.errors import (
    BusnodeError,
    ProtocolError,
    TimedOut,
    TlsFailed,
    UnexpectedFrame,
)
from busnode.wire.frames import FrameType
from busnode.wire.reader import SPACE_BYTES_MAX, FrameReader, Runs
from busnode.wire.sessions import Session, State
from busnode.world.clock import Clock
from busnode.world.network import Stream
from busnode.world.tls import TlsError

logger = logging.getLogger(__name__)

READS_BEFORE_YIELD: Final = 8
"""Full buffers that one busy connection may bring before others have their turn."""

STEPS_BEFORE_YIELD: Final = 32
"""Messages and runs that one buffer may bring before others have their turn: a buffer holds ten
thousand, and each may make a subscription or a file."""

STEP_S_MAX: Final = 0.01
"""How long they may take together, however few they are: what one of them costs differs a
thousandfold, and nobody else has his turn meanwhile."""

MISSED_MAX: Final = 3
"""Heartbeats without a byte before the other side is taken for dead."""

DISCARD_S: Final = 1.0

_DISCARDED: Final = memoryview(bytearray(64 * 1024))
"""Where all write to and nobody reads from: a thousand who err at once need no memory."""

_GREETING: Final = (State.NEW, State.GREETED, State.CHALLENGED, State.PROVEN)


class Conversation(ABC):
    """Runs one connection until either side ends it; what frames mean is for those who derive."""

    def __init__(
        self,
        stream: Stream,
        clock: Clock,
        session: Session,
        reader: FrameReader,
        heartbeat_s: float,
        hello_timeout_s: float,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.peer = stream.peer
        self.identity = ""
        """Who it has shown to be; "" where nobody is asked, and before it is welcome."""
        self.rights: Rights | None = None
        """What it may do; None: everything."""
        self.budget = budget or MemoryBudget()
        self.outgoing = Outgoing(stream, self.budget)
        self.received_bytes = 0
        self.connected_at = clock.monotonic()
        self._stream = stream
        self._clock = clock
        self._session = session
        self._reader = reader
        self._heartbeat_s = heartbeat_s
        self._hello_timeout_s = hello_timeout_s
        self._heard_at = clock.monotonic()
        self._scope = trio.CancelScope()
        self._steps = 0
        self._step_began = 0.0
        self._is_paused = False
        """Whether it is not read from because it has used more than it may."""
        self._space_bytes = 0
        """What the budget knows of the reader's buffer."""

    @property
    def unfinished_bytes(self) -> int:
        """The buffer for a frame that is larger than ordinary ones and not complete."""
        return self._space_bytes if self._space_bytes > SPACE_BYTES_MAX else 0

    @property
    @abstractmethod
    def who(self) -> str:
        """Whom a line in the log is about."""

    @abstractmethod
    async def _take_run(self, runs: Runs, place: int) -> None:
        """Take one run of those that came; its bytes are valid only until this returns."""

    @abstractmethod
    def _take(self, message: Control) -> Awaitable[None] | None:
        """Take a control message that the session's table allows. Nearly all are worked off when
        this returns; for the others there is something to wait for before the next is taken."""

    @abstractmethod
    def _after_reading(self) -> None:
        """A buffer was worked off: what it brought for others can go out now."""

    async def _go_on(self) -> bool:
        """Before more is read: wait here until there is room to work it off. False ends it."""
        return True

    def has_received(self, data: bytes) -> None:
        """Take what came before it was made."""
        self.received_bytes += len(data)
        while data:
            space = self._reader.space()
            part, data = data[: len(space)], data[len(space) :]
            space[: len(part)] = part
            self._reader.received(len(part))

    @property
    def certificate(self) -> str | None:
        """The common name in a certificate that it has shown and that was verified."""
        shown = self._stream.certificate
        return None if shown is None else shown.common_name

    # Sending --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self.outgoing.send(frame)

    def close(self) -> None:
        """End it at once."""
        self._scope.cancel()

    def let_go(self, error: BusnodeError) -> None:
        """End it at once, and say why."""
        self._complain(error)
        self.close()

    # Running --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until either side ends it. Never raises for what the other side does."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_until_broken)
                    nursery.start_soon(self._watch)
                    await self._serve()
                    nursery.cancel_scope.cancel()
        finally:
            self._stream.close()
            self.outgoing.release()
            self.budget.add(-self._space_bytes)

    async def _send_until_broken(self) -> None:
        await self.outgoing.run()
        logger.info("%s: cannot send: %s", self.who, self.outgoing.failure)
        self._scope.cancel()

    async def _serve(self) -> None:
        try:
            await self._read()
        except ProtocolError as error:
            self._broke_off(error)
            self._complain(error)
            if not isinstance(error, UnexpectedFrame):  # which no damaged record looks like
                self._tell_of_damage()
            await self._discard()
        except TlsError as error:
            self._broke_off(TlsFailed(str(error)))
        except OSError as error:
            logger.info("%s at %s: %s", self.who, self.peer, error)

    def _broke_off(self, error: BusnodeError) -> None:
        """It ends because of what the other side has sent."""
        logger.warning("%s at %s: %s", self.who, self.peer, error)

    def _complain(self, error: BusnodeError) -> None:
        """The last thing that is said."""
        self.send(encode_refusal(error, None, None))

    def _tell_of_damage(self) -> None:
        """Records from the other side's disk that are not what was written: it must look at them,
        or it would send the same when we come again. Which error it is says nothing: a bit may
        have flipped in any field."""
        chunk = self._reader.suspected
        if chunk is not None and self._session.state is State.OPEN:
            numbers = chunk.first_no, chunk.last_no
            self.send(encode_trusted(Damaged, chunk.broker_id, chunk.topic, *numbers))

    async def _discard(self) -> None:
        """Read on for a moment without looking: closing with unread bytes would reset the
        connection, and the other side might never see why."""
        with trio.move_on_after(DISCARD_S):
            try:
                while (count := self._stream.receive_into(_DISCARDED)) != 0:
                    if count is None:
                        await self._stream.wait_readable()
                    else:
                        await trio.lowlevel.checkpoint()
            except OSError:
                pass

    async def _read(self) -> None:
        await self._work_off()  # what came with the greeting
        reads = 0
        was_filled = False
        while True:
            if not was_filled:  # then there is nothing more yet, and asking would cost a call
                reads = 0
                await self._stream.wait_readable()
                self._step_began = self._clock.monotonic()
            space = self._reader.space()
            if self._reader.space_bytes != self._space_bytes:
                self._count_space()
            count = self._stream.receive_into(space)
            if count is None:
                was_filled = False
                continue
            if not count:
                return
            was_filled = count == len(space)
            self.received_bytes += count
            self._heard_at = self._clock.monotonic()
            self._reader.received(count)
            await self._work_off()
            if not await self._go_on():
                return
            reads += 1
            if reads == READS_BEFORE_YIELD:
                reads = 0
                await trio.lowlevel.checkpoint()

    def _count_space(self) -> None:
        size_bytes = self._reader.space_bytes
        self.budget.add(size_bytes - self._space_bytes)
        self._space_bytes = size_bytes

    async def _work_off(self) -> None:
        try:
            for event in self._reader.events():
                if isinstance(event, Runs):
                    self._session.received(FrameType.BATCH)
                    for place in range(len(event.runs)):
                        await self._take_run(event, place)
                        await self._step()
                    continue
                self._session.received(event.TYPE)
                waiting = self._take(event)
                if waiting is not None:
                    await waiting
                await self._step()
        finally:  # also what came before a frame that ends the session
            self._after_reading()

    async def _step(self) -> None:
        self._steps += 1
        if (
            self._steps >= STEPS_BEFORE_YIELD
            or self._clock.monotonic() - self._step_began > STEP_S_MAX
        ):
            self._steps = 0
            await trio.lowlevel.checkpoint()
            self._step_began = self._clock.monotonic()

    # Liveness -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Greet in time, and answer pings: a connection that does neither is let go."""
        greet_by = self._clock.monotonic() + self._hello_timeout_s
        while self._session.state in _GREETING:
            left_s = greet_by - self._clock.monotonic()
            if left_s <= 0:
                logger.info("%s at %s did not greet in time", self.who, self.peer)
                self._complain(TimedOut(f"no greeting within {self._hello_timeout_s} s"))
                self._scope.cancel()
                break
            # No longer than a heartbeat: who falls silent right after greeting is gone as well.
            await self._clock.sleep(min(left_s, self._heartbeat_s))
        while True:
            if self._is_holding():
                self._heard_at = self._clock.monotonic()  # it is we who do not listen
            silent_s = self._clock.monotonic() - self._heard_at
            if silent_s >= MISSED_MAX * self._heartbeat_s:
                logger.warning("%s is gone: silent for %.0f s", self.who, silent_s)
                self._scope.cancel()
            elif self._is_paused and self._session.state is State.OPEN:
                self.send(encode_trusted(Ping, 0))  # or it takes us for dead
            elif silent_s >= self._heartbeat_s and self._session.state is State.OPEN:
                self.send(encode_trusted(Ping, 0))
            await self._clock.sleep(self._heartbeat_s)

    def _is_holding(self) -> bool:
        """Whether it does not read for reasons of its own."""
        return False
