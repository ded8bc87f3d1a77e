"""The bus: what a user holds."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, overload

import anyio

from busnode.client.batching import MESSAGE_CHARGE
from busnode.client.bell import Bell
from busnode.client.correspondence import Correspondence
from busnode.client.credentials import (
    CERTIFICATE_BYTES_MAX,
    Credentials,
    make_credentials,
    name_in,
)
from busnode.client.cursor_store import CursorStore, FileCursorStore
from busnode.client.directory import SCHEME, TLS_SCHEME, Directory, parse_url, speaks_tls
from busnode.client.everyone import Everyone
from busnode.client.gaps import OnDropped, OnGap
from busnode.client.home import Home
from busnode.client.inbox import CREDIT_BYTES
from busnode.client.log_records import LogRecords
from busnode.client.messages import EPOCH, NO_HEADERS
from busnode.client.new_task import Retry
from busnode.client.outgoing import BUFFER_BYTES, WINDOW_BYTES, Outgoing
from busnode.client.patience import Patience
from busnode.client.payloads import Payload
from busnode.client.positions import Position
from busnode.client.providers import CONCURRENCY, Accepts, Handler, Provider
from busnode.client.publisher import Publisher
from busnode.client.queue import Queue
from busnode.client.receipts import Receipt
from busnode.client.reply import Reply
from busnode.client.requests import Replies
from busnode.client.service import CONCURRENCY as SERVICE_CONCURRENCY
from busnode.client.service import Service
from busnode.client.service_letters import (
    OnReply,
    Pending,
    ServiceHandler,
    ServiceReply,
    service_queue,
)
from busnode.client.subscription import Subscription
from busnode.client.switchboard import DRAIN_S, Switchboard
from busnode.client.task import LEASE_S
from busnode.client.tls import TlsOptions, client_tls
from busnode.client.window import BATCHES_MAX
from busnode.client.world import ClientWorld
from busnode.wire.control import Hello, encode_control
from busnode.wire.errors import Refused
from busnode.wire.ids import MsgNo
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.topics import check_pattern, check_topic
from busnode.world.files import read_whole
from busnode.world.real_anyio import AnyioWorld
from busnode.world.real_process import environment

Scope = Literal["global", "local", "remote"]
Require = Literal["mirrored"] | None
Start = Literal["latest", "earliest"] | datetime | Position

DEFAULT_URL: Final = "bus://127.0.0.1:4250"

DEADLINE_S: Final = 30.0
"""How long calls wait while no node can be reached."""

REQUEST_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BusStatistics:
    """How things stand; messages are counted since `connect`."""

    home: str | None
    """Where we are connected, or None."""
    connections: int
    """How many there were."""
    sent: int
    """Messages that are not persistent and were taken by the socket."""
    lost: int
    """Messages that are not persistent and were in the socket when a connection broke."""
    acked: int
    unacked: int
    """Written and not acked yet."""
    refused: int
    subscriptions: int
    requests: int
    polls: int
    settling: int
    """Tasks of which we have said what becomes of them, and that is not answered."""


class Bus:
    """A client of the cluster. `connect` makes, runs and closes it."""

    def __init__(
        self,
        world: ClientWorld,
        switchboard: Switchboard,
        url: str,
        tls: TlsOptions,
        credentials: Credentials,
    ) -> None:
        self._world = world
        self._url = url
        self._tls = tls
        self._credentials = credentials
        self._switchboard = switchboard
        self._requests = switchboard.requests
        self._outgoing = switchboard.outgoing
        self._batching = self._outgoing.batching
        self._lanes = self._batching.lanes
        self._everyone = Everyone(self, self.reach)
        self._correspondence = Correspondence(switchboard, self.queue, world.entropy)

    # Publishing -----------------------------------------------------------------------------------

    @overload
    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        persistent: Literal[True],
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        scope: Scope = "global",
        require: Require = None,
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        persistent: Literal[False] = False,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        scope: Scope = "global",
        require: Require = None,
    ) -> None: ...

    @overload
    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        persistent: bool,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        scope: Scope = "global",
        require: Require = None,
    ) -> Receipt | None: ...

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        persistent: bool = False,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        scope: Scope = "global",
        require: Require = None,
    ) -> Receipt | None:
        """Publish one message. A persistent one returns its receipt when it is acked; another
        returns when it is buffered. With `require="mirrored"` it raises NotMirrored, with the time
        after which to try again, where no second node has it.

        Cancelled while it waits for room, the message was not taken. Cancelled later, it is on its
        way all the same, and is sent again until it is acked. Disconnected likewise.
        """
        lane = self._lanes.get((topic, persistent, scope, require))
        if lane is None:
            lane = self._batching.lane(check_topic(topic), persistent, scope, require)
        plain = lane.plain
        room = plain.room - MESSAGE_CHARGE
        if (
            room >= 0
            and headers is None
            and message_id is None
            and type(payload) is bytes
            and len(payload) <= room
        ):
            plain.room = room - len(payload)
            plain.append(payload)
            if not persistent:
                return None
            batch = lane.open
            assert batch is not None
        else:
            batch = await self._outgoing.admit(lane, plain, payload, headers, message_id)
            if not persistent:
                return None
        index = len(batch.payloads) - 1
        await self._outgoing.wait(batch)
        return Receipt(batch.broker_id, MsgNo(batch.first_no + index), batch.level)

    def publisher(
        self,
        topic: str,
        *,
        persistent: bool = False,
        scope: Scope = "global",
        require: Require = None,
    ) -> Publisher:
        """The fast way for many messages to one topic: `async with bus.publisher(…) as out`."""
        lane = self._batching.lane(check_topic(topic), persistent, scope, require)
        return Publisher(topic, lane, self._outgoing)

    # Subscribing ----------------------------------------------------------------------------------

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        cursors: str | os.PathLike[str] | CursorStore | None = None,
        durable: str | None = None,
        queue: str | None = None,
        on_gap: OnGap = None,
        on_dropped: OnDropped = None,
        credit_bytes: int = CREDIT_BYTES,
    ) -> Subscription:
        """`async with bus.subscribe(pattern) as messages: async for message in messages: …`

        `cursors` (a file's path or a store) keeps the position; what it holds goes before `start`.
        `durable` keeps it on the cluster under a name. `queue` shares the messages with the other
        members of the group. `on_gap` is called with each Gap, or "raise" raises it; `on_dropped`
        is called with a number of messages that were not persistent and came too fast.
        """
        store = cursors
        if isinstance(store, str | os.PathLike):
            store = FileCursorStore(store, self._world.files)
        return Subscription(
            self._switchboard,
            check_pattern(pattern),
            _start(start),
            store,
            durable,
            queue,
            credit_bytes,
            on_gap,
            on_dropped,
        )

    def log_records(
        self, pattern: str, position: Position, *, credit_bytes: int = CREDIT_BYTES
    ) -> LogRecords:
        """All that logs hold behind a position, as it lies there: for tools that read logs rather
        than consume messages. Repeats and what is for other nodes' clients alone come too."""
        return LogRecords(self._switchboard, check_pattern(pattern), position, credit_bytes)

    # Requests -------------------------------------------------------------------------------------

    async def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Reply:
        """Ask whoever provides the topic, and return the first answer.

        Raises NoProvider, TimedOut, RequestFailed with the provider's words, or Unavailable when
        the connection was lost meanwhile: it is not asked again by itself.
        """
        return await self._requests.call(check_topic(topic), payload, headers, timeout)

    def request_many(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Replies:
        """Ask all who provide the topic: `async for reply in bus.request_many(…)`.

        It ends when all have answered or the time is over. One who failed is a reply with an
        `error`. Whoever stops early just leaves the loop.
        """
        return self._requests.ask_many(check_topic(topic), payload, headers, timeout)

    def provide(
        self,
        topic: str,
        handler: Handler,
        *,
        accepts: Accepts | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Provider:
        """Answer requests on a topic or pattern: `async with bus.provide(topic, handler): …`

        `handler` and `accepts` may be async or not; one that is not must be quick. The handler
        returns bytes or a Reply; what it raises reaches whoever asked as RequestFailed.
        """
        return Provider(self._switchboard, check_pattern(topic), handler, accepts, concurrency)

    # Tasks ----------------------------------------------------------------------------------------

    def queue(self, name: str, *, retry: Retry | None = None) -> Queue:
        """A task queue of the cluster. `retry` is the schedule of the tasks that are enqueued
        through it: `"0,60,300"` or `[0, 60, 300]` are the waits before each attempt, `"none"` is
        one attempt, `"exponential:first=1,factor=2,cap=3600,attempts=10,jitter=0.2"` waits longer
        and longer."""
        return Queue(self._switchboard, self._everyone, self.subscribe, name, retry)

    # Services -------------------------------------------------------------------------------------

    def service(
        self,
        name: str,
        handlers: Mapping[str, ServiceHandler] | ServiceHandler,
        *,
        on_reply: OnReply | None = None,
        concurrency: int = SERVICE_CONCURRENCY,
        lease: float = LEASE_S,
    ) -> Service:
        """Be a named service: `async with bus.service("users", {"post_user": handler}): …`

        A handler, async or not, is called with a ServiceCall; what it returns is the reply. What it
        raises is tried again by the queue's schedule; Reject makes it a dead letter at once, and
        whoever sent it is told. `handlers` may be one function for all patterns. `on_reply` is
        called with replies to what this service has sent that come after `send` said Pending.
        """
        queue = self.queue(service_queue(name))
        return Service(
            self._switchboard,
            self._correspondence,
            queue,
            name,
            handlers,
            on_reply,
            concurrency,
            lease,
        )

    async def send(
        self,
        to: str,
        pattern: str,
        data: Any = None,
        *,
        cid: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        retry: Retry | None = None,
    ) -> ServiceReply | Pending:
        """Send to a named service; `data` is what JSON has, and bytes.

        A pattern that begins with "get" is a plain request: NoProvider when the service is down,
        and nothing is kept. Any other is kept until it is done. If the service is up its reply is
        awaited for `timeout` seconds. Otherwise, or if the first attempt fails, this is Pending at
        once, and the reply comes later with the same `cid` to `on_reply` of the service that this
        client is. RequestFailed when the service says that it will never be done.

        Cancelled, the letter is on its way all the same.
        """
        return await self._correspondence.send(to, pattern, data, cid, None, timeout, retry)

    def reach(
        self, url: str, deadline_s: float, name: str | None = None
    ) -> AbstractAsyncContextManager["Bus"]:
        """A connection to another node, as the same user, and in TLS if this one is: a node knows
        others' addresses, and not how a client gets there."""
        name = self._switchboard.hello.name if name is None else name
        if speaks_tls(self._url):
            url = TLS_SCHEME + url.removeprefix(SCHEME)
        user, password, token, _ = self._credentials
        return connect(
            url, name=name, deadline_s=deadline_s, world=self._world,
            user=user, password=password, token=token, **self._tls,
        )  # fmt: skip

    # State ----------------------------------------------------------------------------------------

    def statistics(self) -> BusStatistics:
        outgoing = self._outgoing
        home = self._switchboard.home
        return BusStatistics(
            home=None if home.connection is None else str(home.address),
            connections=self._switchboard.visit,
            sent=outgoing.sent_messages,
            lost=outgoing.lost_messages,
            acked=outgoing.acked_messages,
            unacked=outgoing.window.messages,
            refused=outgoing.refused_messages,
            subscriptions=len(self._switchboard.subscriptions),
            requests=len(self._switchboard.requests),
            polls=len(self._switchboard.workers),
            settling=self._switchboard.settling.count,
        )


def _start(start: Start) -> str | int | Position:
    match start:
        case datetime():
            if start.tzinfo is None:
                raise Refused(f"start {start} has no time zone: give it one, such as UTC")
            return max(0, (start - EPOCH) // timedelta(microseconds=1))
        case Position() | "latest" | "earliest":
            return start
        case _:
            raise Refused(f"start {start!r:.60}; expected latest, earliest, a datetime or Position")


@asynccontextmanager
async def connect(
    url: str = DEFAULT_URL,
    *,
    name: str = "python",
    deadline_s: float = DEADLINE_S,
    window_bytes: int = WINDOW_BYTES,
    window_batches: int = BATCHES_MAX,
    buffer_bytes: int = BUFFER_BYTES,
    linger_s: float = 0.0,
    producer_id: int | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    world: ClientWorld | None = None,
) -> AsyncGenerator[Bus]:
    """A connected bus for as long as the block runs; on trio or asyncio.

    It keeps itself connected, to whichever node it can reach. Raises Disconnected when none
    answers within `deadline_s`, and at once what a node refuses us with. On the way out it sends
    what is buffered and says goodbye. A `producer_id` is for who numbers batches itself: see
    `Publisher.send_numbered`.

    A node may want to know who we are: by `user` and `password`, or by a `token`, or else by
    BUSNODE_USER and BUSNODE_PASSWORD, or BUSNODE_TOKEN, of the environment; or by a certificate.

    With `bus+tls://` nodes are dialled in TLS and must show a certificate for their host, signed by
    an authority in the file `tls_ca`, or by one that this machine trusts. `tls_cert` and `tls_key`
    are shown to them. Without them the environment is asked: BUSNODE_TLS_CA, BUSNODE_TLS_CERT and
    BUSNODE_TLS_KEY.
    """
    addresses = parse_url(url)
    around: Mapping[str, str] = environment() if world is None else {}
    if world is None:
        world = AnyioWorld()
    if speaks_tls(url):
        tls_ca = tls_ca or around.get("BUSNODE_TLS_CA")
        tls_cert = tls_cert or around.get("BUSNODE_TLS_CERT")
        tls_key = tls_key or around.get("BUSNODE_TLS_KEY")
    tls = client_tls(world, url, tls_ca, tls_cert, tls_key)
    certified = None
    if tls is not None and tls_cert is not None:
        certified = name_in(read_whole(world.files, tls_cert, CERTIFICATE_BYTES_MAX))
    credentials = make_credentials(user, password, token, around, certified)
    if producer_id is None:
        producer_id = world.entropy.u64()
    producer_id = credentials.producer_id(producer_id)
    hello = Hello(PROTOCOL_VERSION, name, producer_id, credentials.user, credentials.secret)
    encode_control(hello)  # a name that cannot be sent is refused here, not by each node in turn
    patience = Patience(world.clock, deadline_s)
    wanted = Bell()
    outgoing = Outgoing(
        producer_id,
        world.clock,
        patience,
        wanted,
        window_bytes=window_bytes,
        window_batches=window_batches,
        buffer_bytes=buffer_bytes,
        linger_s=linger_s,
    )
    home = Home(world, Directory(addresses), patience, hello, wanted, tls)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        switchboard = Switchboard(
            world.clock, patience, home, outgoing, tasks, world.entropy, hello
        )
        tasks.start_soon(home.run, switchboard)
        try:
            await patience.wait(switchboard.arrival, lambda: not patience.away)
            options = TlsOptions(tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
            yield Bus(world, switchboard, url, options, credentials)
            await switchboard.close()
        except BaseException as error:
            with anyio.move_on_after(DRAIN_S, shield=True):
                await switchboard.close()
            if not isinstance(error, Exception):
                raise
            failure = error  # raised outside of the group, which would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
