"""One client's connection: what its frames make the node do."""

import logging
from collections.abc import Awaitable, Iterable
from typing import Final, Protocol

import trio

from busnode.node.conversation import Conversation
from busnode.node.receipts import Row, encode_acks, encode_refusal, encode_refusals
from busnode.wire.control import (
    Bid,
    Control,
    Credit,
    Damaged,
    Error,
    Goodbye,
    Hello,
    Nodes,
    Ping,
    Pong,
    Provide,
    Reply,
    Request,
    SavePosition,
    Subscribe,
    TaskDone,
    TaskPoll,
    Unprovide,
    Unsubscribe,
    encode_control,
    encode_trusted,
)
from busnode.wire.errors import (
    BadVersion,
    BusnodeError,
    Draining,
    Refused,
    Unavailable,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, ClientNo
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import Run
from busnode.wire.sessions import CLIENT_TABLE, Session, Side, State
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one connection may have appended and not committed before we stop reading from it."""

FINISH_S: Final = 5.0

_BEGINNINGS: Final = (Subscribe, Provide, Request, TaskPoll)
"""What would make a node that is leaving send more than answers."""


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

    def task_poll(self, session: "ClientSession", message: TaskPoll) -> None: ...

    def task_done(self, session: "ClientSession", message: TaskDone) -> None: ...

    def broke_off(self, session: "ClientSession", error: BusnodeError) -> None:
        """The session ends because of what the client has sent."""
        ...

    def damaged(self, message: Damaged) -> None:
        """It was sent records that are not what was written."""
        ...


class ClientSession(Conversation):
    """The node's side of one client connection. The node runs it and closes it."""

    is_peer = False
    is_client = True

    def __init__(
        self,
        stream: Stream,
        clock: Clock,
        home: Home,
        client_no: ClientNo,
        heartbeat_s: float,
        hello_timeout_s: float,
    ) -> None:
        reader = FrameReader()
        reader.awaited = FrameType.HELLO
        session = Session(CLIENT_TABLE, Side.LISTENER)
        super().__init__(stream, clock, session, reader, heartbeat_s, hello_timeout_s)
        self.client_no = client_no
        self.name = ""
        self.producer_id = 0
        self.received_messages = 0
        self.uncommitted_bytes = 0
        self._home = home
        self._committed = trio.Event()

    @property
    def who(self) -> str:
        return f"client {self.client_no} ({self.name})"

    # Sending --------------------------------------------------------------------------------------

    def refuse(self, error: BusnodeError, refused: FrameType, about: int) -> None:
        """Say that one request is refused; the session goes on."""
        self.send(encode_refusal(error, refused, about))

    def _broke_off(self, error: BusnodeError) -> None:
        self._home.broke_off(self, error)

    def tell_nodes(self, nodes: list[str]) -> None:
        """Tell the client where else it could go."""
        if self._session.state is State.OPEN:
            self.send(encode_control(Nodes(nodes)))

    def leave(self, reason: str, nodes: list[str]) -> None:
        """Tell the client that this node is leaving. Nothing but answers follows."""
        if self._session.state is State.OPEN:
            self._session.sent(FrameType.GOODBYE)
            self.outgoing.end_sources()
            self.send(encode_control(Goodbye(reason, nodes)))
        elif self._session.state is State.NEW:
            self.send(encode_refusal(Draining(reason), None, None))
            self.close()

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        self.send(encode_acks(broker_id, level, rows))

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        self.send(encode_refusals(error, FrameType.BATCH, seqs))

    def committed(self, size_bytes: int) -> None:
        """Some of what it appended is durable now."""
        self.uncommitted_bytes -= size_bytes
        self._committed.set()

    # What comes in --------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Both have said goodbye: ack what is still being committed, then end."""
        with trio.move_on_after(FINISH_S):
            while self.uncommitted_bytes:
                self._committed = trio.Event()
                await self._committed.wait()
            await self.outgoing.wait_idle()

    async def _go_on(self) -> bool:
        if self._session.state is State.BOTH_LEFT:
            await self._finish()
            return False
        while self._is_holding():
            self._committed = trio.Event()
            await self._committed.wait()
        return True

    def _is_holding(self) -> bool:
        return self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX

    def _after_reading(self) -> None:
        self._home.after_reading(self)

    async def _take_run(self, runs: Runs, place: int) -> None:
        run = runs.runs[place]
        self.received_messages += run.count
        try:
            self._home.publish(self, self._reader.view, run)
        except (Refused, Unavailable) as error:
            self.refused(error, [batch.producer_seq for batch in run])

    def _take(self, message: Control) -> Awaitable[None] | None:
        try:
            if self._session.state is State.LISTENER_LEFT and isinstance(message, _BEGINNINGS):
                raise Draining("this node is leaving: connect to another one")
            if isinstance(message, Subscribe):
                return self._subscribe(message)
            self._act(message)
        except (Refused, Unavailable) as error:
            self.refuse(error, message.TYPE, _number(message))
        return None

    async def _subscribe(self, message: Subscribe) -> None:
        try:
            await self._home.subscribe(self, message)
        except (Refused, Unavailable) as error:
            self.refuse(error, message.TYPE, message.subscription)

    def _act(self, message: Control) -> None:
        home = self._home
        match message:
            case Credit():
                home.add_credit(self, message)
            case Request():
                home.request(self, message)
            case Reply():
                home.reply(self, message)
            case Bid():
                home.bid(self, message)
            case SavePosition():
                home.save_position(self, message)
            case Ping():
                self.send(encode_trusted(Pong, message.token))
            case TaskDone():
                home.task_done(self, message)
            case TaskPoll():
                home.task_poll(self, message)
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
            case Damaged():
                self._home.damaged(message)
                self.close()
            case Error():
                logger.info("%s says %s: %s", self.who, message.code, message.text)
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


def _number(message: Control) -> int:
    """The number by which a refusal names a message."""
    for name in ("subscription", "request", "provider", "poll", "done"):
        number = getattr(message, name, None)
        if isinstance(number, int):
            return number
    return 0
