"""A node: the process's parts put together, started and ended."""

import logging
import posixpath
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final

import trio

from busnode.node.access import Access
from busnode.node.audit import Audit
from busnode.node.bidding import Bidding, Party
from busnode.node.claim_log import CLAIMS
from busnode.node.committer import Committer
from busnode.node.config import BadSetting, NodeConfig
from busnode.node.copies import Copies
from busnode.node.door import turn_away
from busnode.node.doors import Doors
from busnode.node.durable_positions import (
    PREFIX,
    DurablePositions,
    Position,
    Registration,
    encode_registration,
    flatten,
    topic_of,
)
from busnode.node.event_kinds import (
    ACCESS_NOT_RELOADED,
    ACCESS_REFUSED,
    ACCESS_RELOADED,
    EXPIRED,
    HOUSE_TROUBLE,
    NODE_LEAVING,
    NODE_READY,
    REFUSED,
)
from busnode.node.events import TOPIC as EVENTS
from busnode.node.events import Events
from busnode.node.held_logs import answer_logs
from busnode.node.http import HttpServer
from busnode.node.identity import find_name
from busnode.node.incarnation import Incarnations
from busnode.node.listeners import Listeners, open_listeners
from busnode.node.mirroring import Mirroring
from busnode.node.own_messages import PERSISTENT, OwnMessages
from busnode.node.ownership import Ownership
from busnode.node.pages import may_read, pages
from busnode.node.peers import Peers
from busnode.node.porch import Porch
from busnode.node.producers import Producers
from busnode.node.publishing import TASKS, Publishing
from busnode.node.receipts import Receipts
from busnode.node.reloading import Reloading
from busnode.node.router import Router
from busnode.node.session import ClientSession
from busnode.node.status import STATUS, answer_status, answer_topics
from busnode.node.subscription import Subscription
from busnode.node.subscriptions import Subscriptions
from busnode.node.task_answers import TASKS as TASK_ANSWERS
from busnode.node.task_answers import TaskAnswers
from busnode.node.task_claims import TaskClaims
from busnode.node.task_facts import FACTS
from busnode.node.task_home import TaskHome
from busnode.node.task_queue import JOURNAL
from busnode.node.task_queues import TaskQueues
from busnode.node.task_renewal import TaskRenewal
from busnode.node.tls import NodeTls, open_tls
from busnode.node.traffic import Traffic
from busnode.replication.throttle import Throttle
from busnode.segments.retention import RetentionRules
from busnode.segments.storages import find_storage
from busnode.segments.store import Log, Store, StoreOptions
from busnode.wire.batches import Columns
from busnode.wire.control import (
    Bid,
    Credit,
    Damaged,
    Hello,
    Provide,
    Reply,
    Request,
    SavePosition,
    Subscribe,
    TaskDone,
    TaskPoll,
    Welcome,
    encode_control,
)  # fmt: skip
from busnode.wire.errors import (
    BusnodeError,
    Draining,
    Forbidden,
    LimitReached,
    NotAuthenticated,
    Refused,
    Unavailable,
)
from busnode.wire.frames import Flags, FrameType
from busnode.wire.ids import BrokerId, ClientNo, LogId, Topic
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.wire.runs import Run
from busnode.world.network import Address, Stream
from busnode.world.world import World

logger = logging.getLogger(__name__)

RETENTION_EVERY_S: Final = 60.0
"""How often what is too old is looked for, or four times in as long as messages are kept."""

EXPIRED_BEFORE_YIELD: Final = 32
"""Segments that are dropped before others have their turn: two files each, and their folder."""

COME_AGAIN_S: Final = 3.0
"""How long a client may take to go whose rights were cut: it waits for acks, and says goodbye."""

CLIENTS_BEFORE_YIELD: Final = 100
"""Clients that are told of other nodes before others have their turn."""


class RunningNode:
    """All parts of one incarnation. `start_node` makes it, runs it and ends it."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        name: str,
        store: Store,
        listeners: Listeners,
        access: Access,
        tls: NodeTls,
    ) -> None:
        self.world = world
        self.config = config
        self.access = access
        self.name = name
        self.store = store
        self.listeners = listeners
        self.reloading = Reloading()
        self.reloading.add("access", self.reload_access)
        if tls.clients is not None:
            self.reloading.add("TLS", tls.reload)
        broker_id = world.entropy.broker_id()
        store.begin(broker_id)  # durable before anything can be acked under it
        self.router = Router(store, broker_id)
        self.events = Events(world.clock, name, broker_id, self._publish_event)
        tell = self.events.tell
        self.doors = Doors(config, world.clock, tell)
        self.receipts = Receipts()
        self.producers = Producers()
        self.producers.load(store.logs())
        keeps = None if config.storage == "memory" else world.files
        assert config.data is not None
        self.ownership = Ownership(keeps, config.data, store)
        self.ownership.add(broker_id)
        self.committer = Committer(store, self.receipts, self.router, tell)
        self.publishing = Publishing(
            broker_id, self.router, self.producers, self.receipts, self.committer
        )
        self.incarnations = Incarnations(
            world, store, self.router, self.publishing, self.ownership.add, self._begun, tell
        )
        self.committer.on_lost = self.incarnations.lost
        self.durable = DurablePositions()
        self.bidding = Bidding(world.clock)
        self.mirroring = Mirroring(
            store, world.clock, broker_id, config.mirrors, config.mirror,
            self.ownership.mirrored_by, config.retain_s,
            None if config.catchup_rate is None else Throttle(config.catchup_rate),
            tell,
        )  # fmt: skip
        self.mirroring.on_safe = self.receipts.settle
        self.mirroring.on_let_go = self.receipts.settle_waiting
        self.receipts.safe = self.mirroring.safe
        self.publishing.mirrors = self.mirroring
        self.publishing.require_mirror = config.require_mirror
        self.copies = Copies(
            store, self.router, self.producers, self.committer, self.ownership, world.clock, tell
        )
        self.committer.on_committed = self._committed
        self._own = OwnMessages(self.publishing)
        self.audit = Audit(world.clock, name, self._own, tell)
        self.task_queues = TaskQueues(
            world, store, self.router, self._own, lambda: self.broker_id,
            self.ownership.__contains__, config, tell,
        )  # fmt: skip
        self.task_home = TaskHome(self.task_queues)
        self.publishing.check_queue = self.task_queues.check
        self.peers = Peers(
            world, config, name, broker_id, store, self.router, self.publishing, self.bidding,
            world.network.reachable_at(listeners.client.address), listeners.peer,
            self.ownership, self.mirroring, self.copies, self.task_queues, self.task_home,
            self.doors, tell, access, self.audit, tls.dialling,
        )  # fmt: skip
        self.task_queues.mender = self.peers.mending
        self.task_claims = self.peers.task_claims = TaskClaims(
            world, store, self.ownership, self.task_queues, self._own, self.peers,
            self.peers.mending, broker_id, config.adopt_after_s, tell,
        )  # fmt: skip
        self.subscriptions = self.peers.subscriptions = Subscriptions(
            self.router, self.durable, world, config, self.peers, tell
        )
        self.bidding.answer(STATUS, partial(answer_status, self))
        self.bidding.answer("/$sys/topics", partial(answer_topics, self))
        self.bidding.answer("/$sys/logs", partial(answer_logs, self))
        self.bidding.answer(EVENTS, self.events.answer)
        self.task_renewal = TaskRenewal(self.task_queues, self._own, world.clock, config.retain_s)
        self.task_answers = TaskAnswers(
            self.task_queues, self._own, world.clock, self._acted, self.task_claims.orphans
        )
        self.bidding.answer_later(TASK_ANSWERS, self.task_answers.ask)
        self.bidding.on_forbidden = self._forbidden_later
        self.sessions: dict[ClientNo, ClientSession] = {}
        self.porch: Porch | None = None
        """Clients that have not greeted."""
        self.departed = Traffic()
        self.serving = False
        self.draining = False
        self.started_at = world.clock.monotonic()
        self._next_client_no = 1
        self._drained_by: float | None = None
        self._in_a_hurry = False
        self._load_positions()

    @property
    def broker_id(self) -> BrokerId:
        return self.incarnations.current

    @property
    def address(self) -> Address:
        """Where clients reach it."""
        return self.listeners.client.address

    @property
    def scheme(self) -> str:
        """How the URL of a client begins."""
        return "bus://" if self.config.tls_cert is None else "bus+tls://"

    # Clients --------------------------------------------------------------------------------------

    async def serve_clients(self) -> None:
        self.serving = True
        self.events.tell(NODE_READY, client=self.address, broker_id=self.broker_id.hex())
        async with trio.open_nursery() as nursery:
            porch = self.porch = Porch(
                self.doors.clients, self.world.network.crowd(), self.world.clock, FrameType.HELLO,
                self.config.hello_timeout_s, partial(self._come_in, nursery),
                self._stranger_broke_off,
            )  # fmt: skip
            nursery.start_soon(porch.run)
            try:
                await porch.take_in(self.listeners.client, partial(self._come, porch))
            except OSError:
                if self.draining:
                    await trio.sleep_forever()  # until those who are here have left
                raise

    def _come(self, porch: Porch, stream: Stream) -> None:
        error = self._no_more(len(self.sessions))
        if error is not None:
            if not self.draining:
                self.events.tell(REFUSED, client=stream.peer, why=error)
            turn_away(stream, error)
        elif self.doors.clients.lets_in(stream):
            porch.wait_for(stream)

    def _come_in(self, nursery: trio.Nursery, stream: Stream, greeting: bytes) -> None:
        client_no = ClientNo(self._next_client_no)
        self._next_client_no += 1
        session = ClientSession(
            stream, self.world.clock, self, client_no,
            self.config.heartbeat_s, self.config.hello_timeout_s, self.doors.budget,
        )  # fmt: skip
        session.has_received(greeting)
        self.sessions[client_no] = session
        self.doors.clients.wait_for(session)
        nursery.start_soon(self._serve_client, session)

    def _stranger_broke_off(self, stream: Stream, error: BusnodeError) -> None:
        self.events.tell(REFUSED, client=f"stranger at {stream.peer}", why=error)

    def _no_more(self, clients: int) -> BusnodeError | None:
        """Why nobody may come in, beside so many. Those on the porch take no client's place."""
        if self.draining:
            return Draining("this node is leaving", retry_after_s=0.0)
        if clients < self.config.clients_max:
            return None
        return LimitReached(
            f"{clients} clients are connected; this node takes no more: --clients-max"
        )

    async def _serve_client(self, session: ClientSession) -> None:
        try:
            await session.run()
        except Exception:
            # One client's session must not take the others along, whatever is wrong with it.
            logger.exception("client %d (%s): session failed", session.client_no, session.name)
        finally:
            del self.sessions[session.client_no]
            dropped = sum(each.dropped_total for each in self.subscriptions.of(session).values())
            self.departed.add(session.received_bytes, session.outgoing.sent_bytes, dropped)
            self.subscriptions.leave(session)
            self.bidding.leave(session)
            self.task_home.leave(session)
            self.receipts.forget(session)
            self.doors.client_left(session)

    async def authenticate(self, session: ClientSession, hello: Hello) -> None:
        host = session.peer.host
        shown = await self.access.authenticate(hello, session.certificate, host)
        session.shown, session.identity = shown, shown.identity
        session.rights = self.access.rights(shown.identity)

    def forbidden(self, session: ClientSession, error: Forbidden) -> None:
        who = session.identity or session.name
        self.audit.refused(ACCESS_REFUSED, who=who, address=session.peer, why=error.text)

    def _forbidden_later(self, party: Party, error: Forbidden) -> None:
        if isinstance(party, ClientSession):
            self.forbidden(party, error)

    def _acted(self, identity: str, act: str, target: str) -> None:
        self.audit.acted(who=identity or "somebody", act=act, target=target)

    async def reload_access(self) -> None:
        """Read keys, users and rules again, and apply them to who is here. A session whose right to
        be here is gone ends; one that may do less than before is asked to come again, with its
        positions; one that may do more goes on with more."""
        try:
            self.access.reload()
        except BadSetting as error:
            self.events.tell(ACCESS_NOT_RELOADED, error=error.text)
            raise
        self.peers.keys_changed()
        ended = changed = 0
        for session in list(self.sessions.values()):
            if not session.is_welcome:
                continue
            rights = self.access.rights(session.identity)
            if not self.access.still_holds(session.shown):
                session.end(NotAuthenticated("you may not be here any more"))
                ended += 1
            elif rights != session.rights:
                may_do_all = session.rights is not None and (
                    rights is None or session.rights.is_within(rights)
                )
                session.rights = rights
                changed += 1
                if not may_do_all or not await self.subscriptions.may_have_more(session):
                    self._dismiss(session)
        self.events.tell(ACCESS_RELOADED, ended=ended, changed=changed)

    def _dismiss(self, session: ClientSession) -> None:
        """It may do less than before. Nothing goes on that it has begun and others wait for, and it
        is not left to the client whether it goes."""
        session.leave("your rights have changed: come again", self.peers.addresses())
        self.subscriptions.leave_groups(session)
        self.bidding.unprovide_all(session)
        self.task_home.leave(session)
        session.end_within(COME_AGAIN_S)

    def welcome(self, session: ClientSession, hello: Hello) -> bytes:
        error = self._no_more(len(self.sessions) - 1)
        if isinstance(error, LimitReached):
            raise error  # others have greeted meanwhile
        self.doors.client_greeted(session)
        self.bidding.join(session)
        logger.info("client %d (%s) from %s", session.client_no, hello.name, session.peer)
        welcome = Welcome(
            session.client_no, self.broker_id, self.name, self.config.cluster_id,
            self.peers.addresses(), self.config.heartbeat_s,
        )  # fmt: skip
        return encode_control(welcome)

    def publish(self, session: ClientSession, view: memoryview, run: Run) -> None:
        self.publishing.publish(session, view, run)

    def after_reading(self, session: ClientSession) -> None:
        del session
        self.publishing.flush()

    async def subscribe(self, session: ClientSession, message: Subscribe) -> None:
        self.doors.check_subscriptions(session)
        if message.durable is not None and session.identity:
            # A name is its identity's own: nobody else finds or moves what is kept under it.
            own = f"{session.identity}:{message.durable}"
            if len(own.encode()) > NAME_BYTES_MAX:
                raise Refused(
                    f"durable name {own!r}, with who it is of, has {len(own.encode())} bytes; "
                    f"the limit is {NAME_BYTES_MAX}"
                )
            message = replace(message, durable=own)
        position = await self.subscriptions.subscribe(session, message)
        if (name := message.durable) is not None and message.queue is None:
            # From here on it has a place, also when the client goes before it saves one.
            try:
                self._register(name, message.pattern, session.name, position)
            except (Refused, Unavailable) as error:
                logger.warning("position of %r was not kept: %s", name, error)

    def unsubscribe(self, session: ClientSession, number: int) -> None:
        self.subscriptions.unsubscribe(session, number)

    def add_credit(self, session: ClientSession, message: Credit) -> None:
        self.subscriptions.add_credit(session, message)

    def save_position(self, session: ClientSession, message: SavePosition) -> None:
        subscription = self.subscriptions.of(session).get(message.subscription)
        if subscription is not None and subscription.durable is not None:
            self._move(subscription.durable, flatten(message.position))

    def provide(self, session: ClientSession, message: Provide) -> None:
        self.bidding.provide(session, message)

    def unprovide(self, session: ClientSession, number: int) -> None:
        self.bidding.unprovide(session, number)

    def bid(self, session: ClientSession, message: Bid) -> None:
        self.bidding.bid(session, message)

    def request(self, session: ClientSession, message: Request) -> None:
        self.bidding.request(session, message)

    def reply(self, session: ClientSession, message: Reply) -> None:
        self.bidding.reply(session, message)

    def task_poll(self, session: ClientSession, message: TaskPoll) -> None:
        self.task_home.poll(session, message)

    def task_done(self, session: ClientSession, message: TaskDone) -> None:
        self.task_home.done(session, message)

    def broke_off(self, session: ClientSession, error: BusnodeError) -> None:
        if isinstance(error, NotAuthenticated):
            self.audit.refused(
                ACCESS_REFUSED, who=session.claimed, address=session.peer, why=error.text
            )
        else:
            self.events.tell(REFUSED, client=f"{session.who} at {session.peer}", why=error)

    def damaged(self, session: ClientSession, message: Damaged) -> None:
        """Only who may have a log is heard about it: it makes us read and compare."""
        if session.rights is None or session.rights.allows("subscribe", Topic(message.topic)):
            self.peers.damaged(message)

    def _committed(self, logs: list[Log]) -> None:
        self.task_queues.committed(logs)
        moved = self.copies.committed(logs)
        if moved:
            self.peers.copies_moved(moved)

    def _begun(self) -> None:
        """A new incarnation: its logs have to be mirrored too."""
        self.mirroring.begin(self.broker_id)
        self.task_queues.begin()
        self.task_claims.begin(self.broker_id)
        self.keep_positions()

    # Its own messages -----------------------------------------------------------------------------

    def _register(self, name: str, pattern: str, client: str, position: Position) -> None:
        """Keep who a durable subscription is, if that is new. Refused when it is too much."""
        known = self.durable.registration(name)
        if known is None:
            now_us = self.world.clock.utc_us()
            self._keep(name, Registration(now_us, pattern, client, position))
        elif (known.pattern, known.client) != (pattern, client):
            moved = self.durable.moved(name, {}, self.world.clock.utc_us())
            self._keep(name, moved._replace(pattern=pattern, client=client))

    def _move(self, name: str, cursors: Position) -> None:
        """Keep cursors that have moved."""
        if self.durable.registration(name) is not None:
            self._keep(name, self.durable.moved(name, cursors, self.world.clock.utc_us()))

    def _keep(self, name: str, registration: Registration) -> None:
        payload = encode_registration(registration)
        # Also while nothing can be written: the next incarnation keeps all that is known.
        self.durable.learn(name, registration)
        columns = Columns([payload])
        self._own.publish(topic_of(name), columns, registration.saved_us, PERSISTENT)

    def _publish_event(self, topic: Topic, payload: bytes, utc_us: int) -> None:
        self._own.publish(topic, Columns([payload]), utc_us, Flags.GLOBAL)
        self._own.flush()

    def _load_positions(self) -> None:
        """Take over the registrations of durable subscriptions, into this incarnation's own logs,
        so that they live on when the old ones expire."""
        for log in self.store.logs():
            if log.log_id.topic.startswith(PREFIX):
                self.durable.load(log)
        self.keep_positions()

    def keep_positions(self) -> None:
        for name in self.durable.names():
            self._move(name, {})

    # Housekeeping ---------------------------------------------------------------------------------

    async def keep_directory(self) -> None:
        """Tell clients, whenever a node has come or gone, where they can go."""
        told = self.peers.addresses()
        while True:
            await self.peers.changed.wait()
            addresses = self.peers.addresses()
            if addresses == told:
                continue
            told = addresses
            for count, session in enumerate(list(self.sessions.values()), start=1):
                session.tell_nodes(addresses)
                if count % CLIENTS_BEFORE_YIELD == 0:
                    await trio.lowlevel.checkpoint()

    def rules(self) -> RetentionRules:
        """What may expire now. How large the store may be is each node's own affair; how long a
        copy is kept is its origin's."""
        config = self.config
        return RetentionRules(
            config.retain_s, None, config.retain_bytes, self.ownership.retain_s,
            self.task_claims.pinned_from, _is_of_no_queue,
        )  # fmt: skip

    async def keep_house(self) -> None:
        """Retention, and positions renewed before they expire."""
        renewed_at = self.world.clock.monotonic()
        while True:
            await self.world.clock.sleep(min(RETENTION_EVERY_S, self.config.retain_s / 4))
            try:
                await self._expire()
                self.router.forget_gone()
                if self.world.clock.monotonic() - renewed_at > self.config.retain_s / 4:
                    self.keep_positions()
                    self.task_claims.keep()
                    renewed_at = self.world.clock.monotonic()
            except (BusnodeError, OSError) as error:
                # What could not be dropped or renewed now is so the next time.
                self.events.tell(HOUSE_TROUBLE, error=error)

    async def _expire(self) -> None:
        """Drop what is too old, in steps: thousands of logs may come of age together."""
        while True:
            dropped = self.store.expire(self.rules(), EXPIRED_BEFORE_YIELD)
            for expired in dropped:
                self.events.tell(
                    EXPIRED, log=expired.log_id, first_no=expired.first_no,
                    last_no=expired.last_no, bytes=expired.size_bytes, why=expired.reason,
                )  # fmt: skip
            if len(dropped) < EXPIRED_BEFORE_YIELD:
                break
            await trio.lowlevel.checkpoint()

    async def drain(self) -> None:
        """Take no more clients, send those there are elsewhere, and commit what is pending.

        A second call waits for the same end.
        """
        if not self.draining:
            self.events.tell(NODE_LEAVING, clients=len(self.sessions))
            self.events.publish()  # while there is somebody to hear of it
        self.draining = True
        if self._drained_by is None:
            self._drained_by = trio.current_time() + self.config.drain_timeout_s
        self.listeners.client.close()
        if self.porch is not None:
            self.porch.turn_away(Draining("this node is leaving"))
        for session in list(self.sessions.values()):
            self.bidding.leave(session)
            session.leave("this node is leaving", self.peers.addresses(others_only=True))
        with trio.CancelScope(deadline=self._drained_by):
            while self._has_work() and not self._in_a_hurry:
                await self.world.clock.sleep(0.02)
        await self.peers.leave()

    def _has_work(self) -> bool:
        return bool(self.sessions) or self.store.dirty() or self.committer.has_work

    def shed(self) -> None:
        """Memory is short: those for whom most is kept lose what is not persistent, and if that is
        not enough, those who have begun the largest frames begin again."""
        budget = self.doors.budget
        keeping: list[tuple[int, Callable[[], Iterable[Subscription]]]] = [
            (session.outgoing.queued_bytes, self.subscriptions.of(session).values)
            for session in self.sessions.values()
        ]
        keeping += [
            (session.outgoing.queued_bytes, session.subscriptions.copy)
            for session in self.peers.sessions.values()
        ]
        for _, subscriptions in sorted(keeping, key=itemgetter(0), reverse=True):
            for subscription in subscriptions():
                subscription.drop_live()
            if not budget.is_full:
                return
        conversations = [*self.sessions.values(), *self.peers.sessions.values()]
        for session in sorted(conversations, key=lambda each: -each.unfinished_bytes):
            if not (budget.is_full and session.unfinished_bytes):
                return
            session.let_go(LimitReached("a large frame, and this node has no memory: --memory-max"))

    def hurry(self) -> None:
        """Draining ends now, whoever is still there."""
        self._in_a_hurry = True


def _is_of_no_queue(log_id: LogId) -> bool:
    """Whether a log may go because there is too much: what is known of tasks goes by age alone."""
    return not log_id.topic.startswith((TASKS, JOURNAL, CLAIMS, FACTS))


@asynccontextmanager
async def start_node(
    world: World, config: NodeConfig, otherwise_named: str = "n1"
) -> AsyncGenerator[RunningNode, None]:
    """A node that serves while the block runs, and drains when it is left."""
    data = config.data or posixpath.join("busnode-data", config.name or otherwise_named)
    config = replace(config, data=data)
    access = Access(world, config)
    tls = open_tls(world.network, config)
    storage = find_storage(config.storage)
    options = StoreOptions(segment_bytes_max=config.segment_bytes_max)
    store = storage(world.files, world.clock, data, options)
    try:
        name = config.name or otherwise_named
        if config.storage != "memory":
            name = find_name(world.files, data, config.name, otherwise_named)
        # Listeners first: a port that is taken must not leave an incarnation behind.
        async with open_listeners(world.network, config, tls) as listeners:
            node = RunningNode(world, config, name, store, listeners, access, tls)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.committer.run)
                nursery.start_soon(node.incarnations.run)
                nursery.start_soon(node.bidding.run)
                nursery.start_soon(node.events.run)
                nursery.start_soon(node.audit.run)
                nursery.start_soon(node.subscriptions.run)
                nursery.start_soon(node.keep_house)
                nursery.start_soon(node.doors.budget.run, node.shed)
                nursery.start_soon(node.serve_clients)
                nursery.start_soon(node.keep_directory)
                nursery.start_soon(node.task_queues.run)
                nursery.start_soon(node.task_claims.run)
                nursery.start_soon(node.task_answers.run)
                nursery.start_soon(node.task_renewal.run)
                nursery.start_soon(node.peers.run)
                if listeners.http is not None:
                    allow = partial(may_read, node)
                    http = HttpServer(listeners.http, pages(node), node.doors.http, allow)
                    nursery.start_soon(http.run)
                try:
                    yield node
                finally:
                    with trio.CancelScope(shield=True):
                        await node.drain()
                    nursery.cancel_scope.cancel()
    finally:
        store.close()
