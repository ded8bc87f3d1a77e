"""One client's connection: its frames in, and what the node does about them.

The reader is the hot path: it receives into one buffer, verifies and hands on whole runs, and waits
only when the socket is empty. No task, scope or channel is made for a frame.
"""

import logging
from typing import Final, Protocol

import trio

from busnode.node.outgoing import Outgoing
from busnode.node.receipts import encode_refusal, encode_refusals
from busnode.wire.control import (
    Bid,
    Control,
    Credit,
    Error,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Provide,
    Reply,
    Request,
    SavePosition,
    Subscribe,
    Unprovide,
    Unsubscribe,
    encode_control,
    encode_trusted,
)
from busnode.wire.errors import (
    BadVersion,
    BusnodeError,
    Draining,
    ProtocolError,
    Refused,
    TimedOut,
    Unavailable,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import ClientNo
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import Run
from busnode.wire.sessions import CLIENT_TABLE, Session, Side, State
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

READS_BEFORE_YIELD: Final = 8
"""Full buffers that one busy connection may bring before others have their turn."""

STEPS_BEFORE_YIELD: Final = 32
"""Messages and runs that one buffer may bring before others have their turn: a buffer holds ten
thousand, and each may make a subscription or a file."""

UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one connection may have appended and not committed before we stop reading from it."""

MISSED_MAX: Final = 3

FINISH_S: Final = 5.0
DISCARD_S: Final = 1.0

_BEGINNINGS: Final = (Subscribe, Provide, Request)
"""What would make a node that is leaving send more than answers."""

_DISCARDED: Final = memoryview(bytearray(64 * 1024))
"""Where all write to and nobody reads from: a thousand who err at once need no memory."""


class Home(Protocol):
    """What a session asks of its node."""

    def welcome(self, session: "ClientSession", hello: Hello) -> bytes: ...

    def publish(self, session: "ClientSession", view: memoryview, run: Run) -> None: ...

    def after_reading(self, session: "ClientSession") -> None:
        """A buffer was worked off: what it brought for others can go out now."""
        ...

    async def subscribe(self, session: "ClientSession", message: Subscribe) -> None: ...

    def unsubscribe(self, session: "ClientSession", number: int) -> None: ...

    def add_credit(self, session: "ClientSession", message: Credit) -> None: ...

    def save_position(self, session: "ClientSession", message: SavePosition) -> None: ...

    def provide(self, session: "ClientSession", message: Provide) -> None: ...

    def unprovide(self, session: "ClientSession", number: int) -> None: ...

    def bid(self, session: "ClientSession", message: Bid) -> None: ...

    def request(self, session: "ClientSession", message: Request) -> None: ...

    def reply(self, session: "ClientSession", message: Reply) -> None: ...


class ClientSession:
    """The node's side of one client connection. The node runs it and closes it."""

    def __init__(
        self,
        stream: Stream,
        clock: Clock,
        home: Home,
        client_no: ClientNo,
        heartbeat_s: float,
        hello_timeout_s: float,
    ) -> None:
        self.client_no = client_no
        self.name = ""
        self.producer_id = 0
        self.peer = stream.peer
        self.outgoing = Outgoing(stream)
        self.received_bytes = 0
        self.received_messages = 0
        self.uncommitted_bytes = 0
        self.connected_at = clock.monotonic()
        self._stream = stream
        self._clock = clock
        self._home = home
        self._heartbeat_s = heartbeat_s
        self._hello_timeout_s = hello_timeout_s
        self._reader = FrameReader()
        self._session = Session(CLIENT_TABLE, Side.LISTENER)
        self._heard_at = clock.monotonic()
        self._committed = trio.Event()
        self._scope = trio.CancelScope()
        self._steps = 0

    # Sending --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self.outgoing.send(frame)

    def refuse(self, error: BusnodeError, refused: FrameType, about: int) -> None:
        """Say that one request is refused; the session goes on."""
        self.send(encode_refusal(error, refused, about))

    def leave(self, reason: str, nodes: list[str]) -> None:
        """Tell the client that this node is leaving. Nothing but answers follows."""
        if self._session.state is State.OPEN:
            self._session.sent(FrameType.GOODBYE)
            self.outgoing.end_sources()
            self.send(encode_control(Goodbye(reason, nodes)))
        elif self._session.state is State.NEW:
            self.send(encode_refusal(Draining(reason), None, None))
            self.close()

    def close(self) -> None:
        """End it at once."""
        self._scope.cancel()

    def committed(self, size_bytes: int) -> None:
        """Some of what it appended is durable now."""
        self.uncommitted_bytes -= size_bytes
        self._committed.set()

    # Running --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until either side ends it. Never raises for what a client does."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_until_broken)
                    nursery.start_soon(self._watch)
                    await self._serve()
                    nursery.cancel_scope.cancel()
        finally:
            self._stream.close()

    async def _send_until_broken(self) -> None:
        await self.outgoing.run()
        logger.info("client %d: cannot send: %s", self.client_no, self.outgoing.failure)
        self._scope.cancel()

    async def _serve(self) -> None:
        try:
            await self._read()
        except ProtocolError as error:
            logger.warning("client %d at %s: %s", self.client_no, self.peer, error)
            self.send(encode_refusal(error, None, None))
            await self._discard()
        except OSError as error:
            logger.info("client %d at %s: %s", self.client_no, self.peer, error)

    async def _finish(self) -> None:
        """Both have said goodbye: ack what is still being committed, then end."""
        with trio.move_on_after(FINISH_S):
            while self.uncommitted_bytes:
                self._committed = trio.Event()
                await self._committed.wait()
            await self.outgoing.wait_idle()

    async def _discard(self) -> None:
        """Read on for a moment without looking: closing with unread bytes would reset the
        connection, and the client might never see why."""
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
        self._reader.awaited = FrameType.HELLO
        reads = 0
        while True:
            count = self._stream.receive_into(self._reader.space())
            if count is None:
                reads = 0
                await self._stream.wait_readable()
                continue
            if not count:
                return
            self.received_bytes += count
            self._heard_at = self._clock.monotonic()
            self._reader.received(count)
            try:
                for event in self._reader.events():
                    if isinstance(event, Runs):
                        await self._take_runs(event)
                    else:
                        await self._take(event)
            finally:  # also what came before a frame that ends the session
                self._home.after_reading(self)
            if self._session.state is State.BOTH_LEFT:
                await self._finish()
                return
            while self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
                self._committed = trio.Event()
                await self._committed.wait()
            reads += 1
            if reads == READS_BEFORE_YIELD:
                reads = 0
                await trio.lowlevel.checkpoint()

    async def _take_runs(self, event: Runs) -> None:
        self._session.received(FrameType.BATCH)
        view = self._reader.view
        for run in event.runs:
            self.received_messages += run.count
            try:
                self._home.publish(self, view, run)
            except (Refused, Unavailable) as error:
                seqs = [batch.producer_seq for batch in run]
                self.send(encode_refusals(error, FrameType.BATCH, seqs))
            self._steps += 1
            if self._steps >= STEPS_BEFORE_YIELD:
                await self._let_others()

    async def _take(self, message: Control) -> None:
        self._session.received(message.TYPE)
        try:
            if self._session.state is State.LISTENER_LEFT and isinstance(message, _BEGINNINGS):
                raise Draining("this node is leaving: connect to another one")
            await self._act(message)
        except (Refused, Unavailable) as error:
            self.refuse(error, message.TYPE, _number(message))
        self._steps += 1
        if self._steps >= STEPS_BEFORE_YIELD:
            await self._let_others()

    async def _let_others(self) -> None:
        self._steps = 0
        await trio.lowlevel.checkpoint()

    async def _act(self, message: Control) -> None:
        home = self._home
        match message:
            case Credit():
                home.add_credit(self, message)
            case Request():
                home.request(self, message)
            case Bid():
                home.bid(self, message)
            case Reply():
                home.reply(self, message)
            case SavePosition():
                home.save_position(self, message)
            case Ping():
                self.send(encode_trusted(Pong, message.token))
            case Subscribe():
                await home.subscribe(self, message)
            case Unsubscribe():
                home.unsubscribe(self, message.subscription)
            case Provide():
                home.provide(self, message)
            case Unprovide():
                home.unprovide(self, message.provider)
            case Hello():
                self._hello(message)
            case Goodbye():
                self._goodbye()
            case Error():
                logger.info("client %d says %s: %s", self.client_no, message.code, message.text)
            case _:
                assert isinstance(message, Pong), message  # the session's table lets no other by

    def _hello(self, message: Hello) -> None:
        if message.protocol != PROTOCOL_VERSION:
            raise BadVersion(
                f"client speaks protocol {message.protocol}; this node speaks {PROTOCOL_VERSION}"
            )
        self.name = message.name
        self.producer_id = message.producer_id
        self._reader.awaited = None
        welcome = self._home.welcome(self, message)
        self._session.sent(FrameType.WELCOME)
        self.send(welcome)

    def _goodbye(self) -> None:
        if self._session.state is State.DIALLER_LEFT:
            self._session.sent(FrameType.GOODBYE)
            self.outgoing.end_sources()
            self.send(encode_control(Goodbye("bye", [])))

    # Liveness -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Greet in time, and answer pings: a connection that does neither is let go."""
        await self._clock.sleep(self._hello_timeout_s)
        if self._session.state is State.NEW:
            logger.info("client %d at %s never said HELLO", self.client_no, self.peer)
            late = TimedOut(f"no HELLO within {self._hello_timeout_s} s")
            self.send(encode_refusal(late, None, None))
            self._scope.cancel()
        while True:
            if self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
                self._heard_at = self._clock.monotonic()  # it is we who do not listen
            silent_s = self._clock.monotonic() - self._heard_at
            if silent_s >= MISSED_MAX * self._heartbeat_s:
                logger.warning("client %d (%s) is gone: silent for %.0f s", self.client_no,
                               self.name, silent_s)  # fmt: skip
                self._scope.cancel()
            elif silent_s >= self._heartbeat_s and self._session.state is State.OPEN:
                self.send(encode_trusted(Ping, 0))
            await self._clock.sleep(self._heartbeat_s)


def _number(message: Control) -> int:
    """The number by which a refusal names a message."""
    for name in ("subscription", "request", "provider"):
        number = getattr(message, name, None)
        if isinstance(number, int):
            return number
    return 0
