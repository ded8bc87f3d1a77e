"""One client's connection: what its frames make the node do."""

import logging
from collections.abc import Awaitable, Iterable
from typing import Final, Protocol

import trio

from busnode.node.access import NOBODY
from busnode.node.conversation import Conversation
from busnode.node.memory_budget import MemoryBudget
from busnode.node.receipts import Row, encode_acks, encode_refusal, encode_refusals
from busnode.security.quotas import Account
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
    Forbidden,
    Refused,
    Unavailable,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, ClientNo
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.producer_tag import tagged
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import Run
from busnode.wire.sessions import CLIENT_TABLE, Session, Side, State
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one connection may have appended and not committed before we stop reading from it."""

FINISH_S: Final = 5.0

NO_MEMORY_S: Final = 1.0
"""How long a publisher is not read from, for each buffer that it sends, while memory is short."""

_BEGINNINGS: Final = (Subscribe, Provide, Request, TaskPoll)
"""What would make a node that is leaving send more than answers."""


class Home(Protocol):
    """What a session asks of its node."""

    async def authenticate(self, session: "ClientSession", hello: Hello) -> None:
        """Give the session its identity and its rights. NotAuthenticated."""
        ...

    def welcome(self, session: "ClientSession", hello: Hello) -> bytes: ...

    def forbidden(self, session: "ClientSession", error: Forbidden) -> None:
        """The client wanted something that it may not do."""
        ...

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

    def damaged(self, session: "ClientSession", message: Damaged) -> None:
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
        budget: MemoryBudget | None = None,
    ) -> None:
        reader = FrameReader()
        reader.awaited = FrameType.HELLO
        session = Session(CLIENT_TABLE, Side.LISTENER)
        super().__init__(stream, clock, session, reader, heartbeat_s, hello_timeout_s, budget)
        self.client_no = client_no
        self.name = ""
        self.account: Account | None = None
        """What it shares with others of the same identity, when that is counted."""
        self.producer_id = 0
        self.received_messages = 0
        self.uncommitted_bytes = 0
        self.shown = NOBODY
        """By what it has shown who it is."""
        self.claimed = "somebody"
        """Who it says that it is, as long as it has not shown it."""
        self._home = home
        self._committed = trio.Event()
        self._charged_messages = 0
        self._charged_bytes = 0
        self._in_flight_bytes = 0
        """What its account knows of its uncommitted bytes."""

    @property
    def who(self) -> str:
        return f"client {self.client_no} ({self.name})"

    # Sending --------------------------------------------------------------------------------------

    def refuse(self, error: BusnodeError, refused: FrameType, about: int) -> None:
        """Say that one request is refused; the session goes on."""
        if isinstance(error, Forbidden):
            self._home.forbidden(self, error)
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

    @property
    def is_welcome(self) -> bool:
        """Whether it was let in."""
        return self._session.state not in (State.NEW, State.GREETED)

    def end_within(self, seconds: float) -> None:
        """End it then, if it has not ended by itself."""
        self._scope.deadline = min(self._scope.deadline, self._clock.monotonic() + seconds)

    def end(self, error: BusnodeError) -> None:
        """Say why, and end it at once."""
        self.outgoing.end_sources()
        self.send(encode_refusal(error, None, None))
        self.close()

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        self.send(encode_acks(broker_id, level, rows))

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        if isinstance(error, Forbidden):
            self._home.forbidden(self, error)
        self.send(encode_refusals(error, FrameType.BATCH, seqs))

    def committed(self, size_bytes: int) -> None:
        """Some of what it appended is durable now."""
        self.uncommitted_bytes -= size_bytes
        if self.account is not None:
            self._tell_in_flight(self.account)
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
        published = self.received_messages - self._charged_messages
        self._charged_messages = self.received_messages
        if self.account is not None:
            await self._keep_to_quotas(self.account, published)
        if published and self.budget.is_full:
            await self._pause(self.budget.wait_for_room(NO_MEMORY_S))
        while self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            self._committed = trio.Event()
            await self._committed.wait()
        return True

    async def _keep_to_quotas(self, account: Account, published: int) -> None:
        size_bytes = self.received_bytes - self._charged_bytes
        self._charged_bytes = self.received_bytes
        pause_s = account.charge(published, size_bytes, self._clock.monotonic())
        if pause_s:
            await self._pause(self._clock.sleep(pause_s))
        self._tell_in_flight(account)
        while account.is_full and self.uncommitted_bytes:  # who has nothing there waits for nobody
            self._committed = trio.Event()
            await self._pause(self._committed.wait())

    async def _pause(self, waiting: Awaitable[None]) -> None:
        self._is_paused = True
        try:
            await waiting
        finally:
            self._is_paused = False

    def _tell_in_flight(self, account: Account) -> None:
        account.in_flight_bytes += self.uncommitted_bytes - self._in_flight_bytes
        self._in_flight_bytes = self.uncommitted_bytes

    def close_account(self) -> None:
        """It is gone: what it had in flight is nobody's any more."""
        if self.account is not None:
            self.account.in_flight_bytes -= self._in_flight_bytes
            self.account = None

    def _is_holding(self) -> bool:
        return self._is_paused or self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX

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
            if isinstance(message, Hello):
                return self._hello(message)
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
            case Goodbye():
                self._goodbye()
            case Damaged():
                self._home.damaged(self, message)
                self.close()
            case Error():
                logger.info("%s says %s: %s", self.who, message.code, message.text)
            case _:
                assert isinstance(message, Pong), message  # the session's table lets no other by

    async def _hello(self, message: Hello) -> None:
        if message.protocol != PROTOCOL_VERSION:
            raise BadVersion(
                f"client speaks protocol {message.protocol}; this node speaks {PROTOCOL_VERSION}"
            )
        self.claimed = message.user or message.name
        try:
            await self._home.authenticate(self, message)
            self.name = message.name
            # Leases are the producer's: nobody has one under the name of another.
            self.producer_id = tagged(message.producer_id, self.identity)
            welcome = self._home.welcome(self, message)
        except (Refused, Unavailable) as error:
            self.end(error)
            return
        self._reader.awaited = None
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
