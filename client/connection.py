"""One connection to a node: a reader, a writer and a heartbeat, and nothing that lives longer.

Frames go out inline where the socket takes them at once; only what it does not take is kept for
the writer. The reader never waits for anybody: what comes goes into inboxes that are bounded by
their credit.
"""

import logging
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from busnode.client.bell import Bell
from busnode.client.outgoing import STALL_S
from busnode.client.refusal import refusal_of
from busnode.wire.control import (
    Control,
    Damaged,
    Error,
    Hello,
    Ping,
    Pong,
    Welcome,
    encode_control,
)
from busnode.wire.errors import BadFrame, BusnodeError, Disconnected, ProtocolError, TlsFailed
from busnode.wire.frames import FrameType
from busnode.wire.limits import TEXT_BYTES_MAX
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import DELIVERED_KINDS
from busnode.wire.sessions import CLIENT_TABLE, Session, Side, State
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger("busnode.client")

MISSED_MAX: Final = 3
"""Heartbeats without a byte from the node before it is taken for dead."""

WRITES_BEFORE_YIELD: Final = 4
"""Each of a whole batch: the reader must have its turn."""

TLS_ALERT: Final = b"\x15\x03"
"""How the only answer begins that a node with TLS has for who comes without."""

DISCARD_S: Final = 1.0
DISCARD_BYTES: Final = 64 * 1024


class Guest(Protocol):
    """Whoever a connection serves: the bus."""

    def received(self, message: Control) -> None: ...

    def took(self, runs: Runs, view: memoryview) -> None:
        """Batches, in a view that is valid only now."""
        ...

    def taken(self) -> None:
        """The socket has taken all that there was."""
        ...

    def more(self) -> bytes:
        """What to write next."""
        ...

    def pause_s(self) -> float | None:
        """When to ask again after nothing; None: when `wanted` rings."""
        ...

    def stalled(self) -> None:
        """The socket takes nothing."""
        ...


class Connection:
    """`greet` it, then `serve` it until it ends; the owner closes it."""

    def __init__(self, stream: Stream, clock: Clock, wanted: Bell) -> None:
        """`wanted` rings when the guest has something to write."""
        self.ended_by: BusnodeError | None = None
        """Why it ended; None while it lives, and when it was ended from this side."""
        self._wanted = wanted
        self._stream = stream
        self._clock = clock
        self._reader = FrameReader(DELIVERED_KINDS)
        self._session = Session(CLIENT_TABLE, Side.DIALLER)
        self._unsent: deque[bytes] = deque()
        self._sent_of_first = 0
        self._was_filled = False
        self._heard = 0
        self._scope = anyio.CancelScope()
        self._token = 0

    @property
    def leaving(self) -> bool:
        """Whether either side has said GOODBYE: nothing new is begun here."""
        return self._session.state is not State.OPEN

    # Sending --------------------------------------------------------------------------------------

    def send(self, message: Control) -> None:
        """Send a control frame, now or as soon as the socket takes it.

        Raises for a message that nobody would accept, never for the state of the connection.
        """
        frame = encode_control(message)
        try:
            self._session.sent(message.TYPE)
        except ProtocolError:
            return  # it is closing: what is sent now would not be read
        self.write(frame)

    def write(self, frame: bytes) -> None:
        if not self._unsent and self.ended_by is None:
            try:
                sent = self._stream.send(frame)
            except OSError as error:
                self.end(error)
                return
            if sent == len(frame):
                return
            self._sent_of_first = sent
        self._unsent.append(frame)
        self._wanted.ring()

    # Greeting -------------------------------------------------------------------------------------

    async def greet(self, hello: Hello) -> Welcome:
        """Say who we are. Raises what the node refuses us with, or OSError."""
        self.send(hello)
        while True:
            for event in self._reader.events():
                if isinstance(event, Runs):
                    raise BadFrame("batch before the WELCOME")
                self._session.received(event.TYPE)
                if isinstance(event, Error):
                    raise refusal_of(event)
                assert isinstance(event, Welcome)  # the table lets nothing else by
                return event
            try:
                await self._receive()
            except ConnectionError:
                if bytes(self._reader.view[: len(TLS_ALERT)]) == TLS_ALERT:
                    peer = self._stream.peer
                    raise TlsFailed(f"{peer} speaks TLS: dial it with bus+tls://") from None
                raise

    async def _receive(self) -> bool:
        """Wait for bytes and take them in; whether more wait. Raises OSError at the end."""
        space = self._reader.space()
        # Where the last time left space there is nothing more yet, and asking would cost a call.
        count = self._stream.receive_into(space) if self._was_filled else None
        while count is None:
            await self._stream.wait_readable()
            count = self._stream.receive_into(space)
        if not count:
            raise ConnectionError("the node closed the connection")
        self._heard += 1
        self._reader.received(count)
        self._was_filled = count == len(space)
        return self._was_filled

    # Serving --------------------------------------------------------------------------------------

    async def serve(self, guest: Guest, heartbeat_s: float) -> None:
        """Carry frames both ways until the connection ends; `ended_by` says why."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, guest)
                tasks.start_soon(self._beat, heartbeat_s)
                await self._read(guest)

    def close(self) -> None:
        self._stream.close()

    def end(self, reason: OSError | BusnodeError | None = None) -> None:
        """Stop serving; the node is told nothing more."""
        if reason is not None and self.ended_by is None:
            text = f"{type(reason).__name__}: {reason}"
            self.ended_by = reason if isinstance(reason, BusnodeError) else Disconnected(text)
        self._scope.cancel()

    async def _read(self, guest: Guest) -> None:
        try:
            # Some may have come with the WELCOME.
            self._take(guest)
            while self._session.state is not State.CLOSED:
                if await self._receive():
                    await anyio.lowlevel.checkpoint()  # it does not wait while more is there
                self._take(guest)
            self._scope.cancel()
        except OSError as error:
            self.end(error)
        except ProtocolError as error:
            logger.warning("%s broke the protocol: %s", self._stream.peer, error)
            self._complain(error)
            if self._reader.suspected is not None:
                await self._discard()
            self.end(error)

    def _take(self, guest: Guest) -> None:
        session = self._session
        for event in self._reader.events():
            if isinstance(event, Runs):
                session.received(FrameType.BATCH)
                guest.took(event, self._reader.view)
                continue
            session.received(event.TYPE)
            if isinstance(event, Ping):
                self.send(Pong(event.token))
            else:
                guest.received(event)

    def _complain(self, error: ProtocolError) -> None:
        """Whoever runs the node should know why we hang up."""
        text = error.text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
        self.send(Error(error.code, text, None, None, None))
        chunk = self._reader.suspected
        if chunk is not None:
            # From its disk: it would send us the same again if it did not look at it.
            self.send(Damaged(chunk.broker_id, chunk.topic, chunk.first_no, chunk.last_no))

    async def _discard(self) -> None:
        """Read on for a moment without looking: closing with unread bytes would reset the
        connection, and the node might never hear why."""
        space = memoryview(bytearray(DISCARD_BYTES))
        with anyio.move_on_after(DISCARD_S), suppress(OSError):
            while (count := self._stream.receive_into(space)) != 0:
                if count is None:
                    await self._stream.wait_readable()
                else:
                    await anyio.lowlevel.checkpoint()

    async def _write(self, guest: Guest) -> None:
        try:
            writes = 0
            while True:
                if self._unsent:
                    await self._write_unsent(guest)
                    writes += 1
                guest.taken()
                data = b"" if self.leaving else guest.more()
                if data:
                    self._session.sent(FrameType.BATCH)
                    sent = self._stream.send(data)
                    if sent < len(data):
                        self._unsent.append(data)
                        self._sent_of_first = sent
                    writes += 1
                elif not self._unsent:
                    writes = 0
                    await self._wait(guest)
                if writes >= WRITES_BEFORE_YIELD:
                    writes = 0
                    await anyio.lowlevel.checkpoint()
        except OSError as error:
            self.end(error)

    async def _write_unsent(self, guest: Guest) -> None:
        while self._unsent:
            view = memoryview(self._unsent[0])[self._sent_of_first :]
            sent = self._stream.send(view)
            if sent == len(view):
                self._unsent.popleft()
                self._sent_of_first = 0
                continue
            self._sent_of_first += sent
            with anyio.move_on_after(STALL_S) as scope:
                await self._stream.wait_writable()
            if scope.cancelled_caught:
                guest.stalled()

    async def _wait(self, guest: Guest) -> None:
        pause_s = None if self.leaving else guest.pause_s()
        if pause_s is None:
            await self._wanted.wait()
            return
        with anyio.move_on_after(pause_s) as scope:
            await self._wanted.wait()
        if scope.cancelled_caught:
            guest.stalled()

    async def _beat(self, heartbeat_s: float) -> None:
        """Ask the node for a sign of life whenever none came by itself."""
        silent = heard = 0
        while True:
            await self._clock.sleep(heartbeat_s)
            silent = silent + 1 if heard == self._heard else 0
            heard = self._heard
            if silent >= MISSED_MAX:
                self.end(Disconnected(f"nothing came for {silent * heartbeat_s:g} s"))
            elif silent:
                self._token += 1
                self.send(Ping(self._token))
