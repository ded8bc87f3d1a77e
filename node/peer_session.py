"""Another node as our client: it has dialled us, and says what its own clients want and provide.

What is published here goes to it once, however many of its clients want it. For messages that are
not persistent it has a bounded queue, like any client; for logs it has a place in each, and what is
committed is sent from the file. So a slow node costs one unsent piece.
"""

import logging
from collections.abc import Awaitable
from typing import Final, Protocol

import trio

from busnode.node.bidding import Bidding
from busnode.node.comparing import Comparing
from busnode.node.conversation import Conversation
from busnode.node.copies import Copies
from busnode.node.durable_positions import nest
from busnode.node.events import Tell
from busnode.node.memory_budget import MemoryBudget
from busnode.node.mending import Mending
from busnode.node.peer_greeting import Challenge
from busnode.node.receipts import encode_refusal
from busnode.node.replays import Replays
from busnode.node.router import Router
from busnode.node.subscription import Subscription
from busnode.node.subscriptions import Subscriptions
from busnode.node.task_claims import TaskClaims
from busnode.node.task_peer import TaskPeer
from busnode.node.task_queues import TaskQueues
from busnode.security.cluster_key import ClusterKey
from busnode.segments.store import Log, Store
from busnode.wire.control import (
    Bid,
    Chunk,
    Compare,
    Control,
    Credit,
    Damaged,
    Error,
    ExtentsHeld,
    FindRegistration,
    Finished,
    Goodbye,
    HoldingsTold,
    Interest,
    MembersSeen,
    Mirror,
    PeerHello,
    PeerProof,
    Ping,
    Pong,
    Provide,
    RegistrationKept,
    Replay,
    Reply,
    TaskClaim,
    TaskDone,
    TaskFinished,
    TaskPoll,
    Unprovide,
    encode_control,
    encode_trusted,
)
from busnode.wire.copied import CopiedRun
from busnode.wire.errors import (
    BadFrame,
    BadHash,
    BusnodeError,
    LimitReached,
    Refused,
    SecondWriter,
    StorageError,
)
from busnode.wire.fields import U64_MAX
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, ClientNo, LogId, Pattern, Topic
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.sessions import PEER_TABLE, Session, Side, State
from busnode.wire.topics import check_pattern
from busnode.wire.trie import Trie
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

INTERESTS_MAX: Final = 200_000
"""Patterns that the clients of one other node may want together."""

REPLAYS_MAX: Final = 100_000
"""Replays that one other node may have asked for and not got; it asks for four a subscription."""

ROWS_A_FRAME: Final = 200
"""Logs that fit into one EXTENTS frame whatever their topics are."""

STEPS_BEFORE_YIELD: Final = 200

UNLIMITED: Final = 1 << 62
"""Credit of a whole node: its clients' credits are its own affair."""


class PeerHost(Protocol):
    """What a peer's session asks of its node beside what clients ask."""

    router: Router
    subscriptions: Subscriptions
    bidding: Bidding
    store: Store
    copies: Copies
    tell_of: Tell
    mending: Mending
    comparing: Comparing
    task_queues: TaskQueues
    task_claims: TaskClaims

    def is_own(self, broker_id: BrokerId) -> bool:
        """Whether it is one of this node's own incarnations."""
        ...

    def is_written(self, broker_id: BrokerId, session: "PeerSession") -> bool:
        """Whether somebody else than this peer writes logs of that incarnation now."""
        ...

    def holdings_told(self, broker_id: BrokerId, message: HoldingsTold) -> None: ...

    def damaged(self, message: Damaged) -> None:
        """The peer was sent records that are not what was written."""
        ...

    def welcome(self, session: "PeerSession", hello: PeerHello) -> bytes:
        """Take a node in. WrongCluster, or BadVersion."""
        ...

    def challenge(self, hello: PeerHello) -> Challenge | None:
        """What it must show before it is welcome; None: nothing. NotAuthenticated."""
        ...

    def refused(self, session: "PeerSession", error: BusnodeError) -> None:
        """It has not shown who it is, or has sent what is not its to send."""
        ...

    def members_message(self) -> MembersSeen:
        """Whom this node is linked to."""
        ...

    def chosen(self, session: "PeerSession") -> None:
        """The node goes on with this connection, of all that it has made to us."""
        ...

    def members_seen(self, broker_id: BrokerId, name: str, message: MembersSeen) -> None: ...


class PeerSession(Conversation):
    """The listener's side of a link. Its node runs it and closes it."""

    is_peer = True

    def __init__(
        self,
        stream: Stream,
        clock: Clock,
        host: PeerHost,
        heartbeat_s: float,
        hello_timeout_s: float,
        budget: MemoryBudget | None = None,
    ) -> None:
        reader = FrameReader(copies=True)
        reader.awaited = FrameType.PEER_HELLO
        session = Session(PEER_TABLE, Side.LISTENER)
        super().__init__(stream, clock, session, reader, heartbeat_s, hello_timeout_s, budget)
        self.name = ""
        self.broker_id: BrokerId | None = None
        self.clients_at: list[str] = []
        self._host = host
        self._challenge: Challenge | None = None
        self.key: ClusterKey | None = None
        """What it has shown that it has."""
        self.feed = Subscription(
            0, ClientNo(0), Pattern("/*"), self.outgoing, UNLIMITED, is_peer=True
        )
        """What its clients want that are in no group."""
        self.feed.open()
        self._patterns: dict[int, Pattern] = {}
        self._wanted: Trie[int] = Trie()
        self._members: dict[int, Subscription] = {}
        self._tasks = TaskPeer(self, host.task_queues)
        self._replays = Replays(host.store, self.outgoing, host.mending, host.tell_of)

    @property
    def who(self) -> str:
        return f"peer {self.name or 'unknown'}"

    @property
    def interests(self) -> int:
        return len(self._patterns) + len(self._members)

    @property
    def subscriptions(self) -> list[Subscription]:
        """All that it has queues for."""
        return [self.feed, *self._members.values()]

    @property
    def dropped(self) -> int:
        """Messages that were not persistent and that it was too slow for."""
        return self.feed.dropped_total + sum(m.dropped_total for m in self._members.values())

    @property
    def replays(self) -> int:
        """Ranges sent that were asked for."""
        return self._replays.served

    def leave(self, reason: str) -> None:
        """Tell the peer that this node is leaving."""
        if self._session.state is State.OPEN:
            self._session.sent(FrameType.GOODBYE)
            self.outgoing.end_sources()
            self.send(encode_control(Goodbye(reason, [])))

    def tell(self, message: Control) -> None:
        if self._session.state is State.OPEN:
            self.send(encode_control(message))

    def forget(self) -> None:
        """It is gone, and so is what it wanted."""
        self._host.copies.leave(self)
        self._tasks.forget()
        del self._tasks  # which knows us: all that we had would wait for the garbage collector
        router = self._host.router
        for pattern in self._patterns.values():
            router.remove(pattern, self.feed)
        self._patterns.clear()
        for member in self._members.values():
            self._host.subscriptions.leave_peer(member)
        self._members.clear()

    # What comes in --------------------------------------------------------------------------------

    def _after_reading(self) -> None:
        pass  # whatever it asks for is answered at once

    async def _take_run(self, runs: Runs, place: int) -> None:
        if runs.chunk is None:
            raise BadFrame("batch without a CHUNK that says of which log it is")
        run = runs.runs[place]
        assert isinstance(run, CopiedRun)
        self._host.copies.take(self, runs.chunk, self._reader.view, run)

    def _take(self, message: Control) -> Awaitable[None] | None:
        if isinstance(message, Interest):
            return self._take_interest(message)
        if isinstance(message, Mirror):
            return self._mirror(message)
        try:
            self._act(message)
        except Refused as error:
            self._refuse(error, message)
        return None

    async def _take_interest(self, message: Interest) -> None:
        try:
            await self._interest(message)
        except Refused as error:
            self._refuse(error, message)

    def _refuse(self, error: Refused, message: Control) -> None:
        logger.warning("%s: %s", self.who, error)
        self.send(encode_refusal(error, message.TYPE, None))

    def _act(self, message: Control) -> None:
        host = self._host
        match message:
            case Credit():
                member = self._members.get(message.subscription)
                if member is not None:
                    host.subscriptions.credit_peer(member, message.credit_bytes)
            case Finished():
                member = self._members.get(message.interest)
                if member is not None:
                    log_id = LogId(message.broker_id, Topic(message.topic))
                    host.subscriptions.finished_by_peer(member, log_id, message.first_no)
            case Replay():
                self._replay(message)
            case Bid():
                host.bidding.bid(self, message)
            case Reply():
                host.bidding.reply(self, message)
            case Provide():
                host.bidding.provide(self, message)
            case Unprovide():
                host.bidding.unprovide(self, message.provider)
            case TaskDone():
                self._tasks.done(message)
            case TaskClaim():
                host.task_claims.heard(message)
            case TaskFinished():
                if self.broker_id is not None:
                    host.task_claims.told(self.broker_id, message)
            case TaskPoll():
                self._tasks.poll(message)
            case Chunk():
                pass  # what it announces brings it along
            case Compare():
                host.comparing.asked(self, message)
            case Damaged():
                host.damaged(message)
                self.close()
            case HoldingsTold():
                assert self.broker_id is not None
                host.holdings_told(self.broker_id, message)
            case FindRegistration():
                self._tell_registration(message.name)
            case MembersSeen():
                assert self.broker_id is not None
                host.chosen(self)
                host.members_seen(self.broker_id, self.name, message)
            case Ping():
                self.send(encode_trusted(Pong, message.token))
            case PeerHello():
                self._challenge = host.challenge(message)
                if self._challenge is None:
                    self._welcome(message)
                else:
                    self._reader.awaited = FrameType.PEER_PROOF
                    self._session.sent(FrameType.PEER_CHALLENGE)
                    self.send(encode_control(self._challenge.message))
            case PeerProof():
                assert self._challenge is not None  # the table lets it by only after one
                hello = self._challenge.answered(message)
                self.key = self._challenge.key
                self._welcome(hello)
            case Goodbye():
                self.close()
            case Error():
                logger.info("%s says %s: %s", self.who, message.code, message.text)
            case _:
                assert isinstance(message, Pong), message  # the table lets no other by

    def _welcome(self, hello: PeerHello) -> None:
        welcome = self._host.welcome(self, hello)
        # A node that has dialled itself knows that now, and wants nothing more.
        is_self = self.broker_id is None
        self._reader.awaited = FrameType.GOODBYE if is_self else None
        self._session.sent(FrameType.PEER_WELCOME)
        self.send(welcome)
        if not is_self:
            self.tell(self._host.members_message())

    def _broke_off(self, error: BusnodeError) -> None:
        super()._broke_off(error)
        if not isinstance(error, BadHash):  # a disk or a wire has failed, and nobody has tried
            self._host.refused(self, error)

    async def give_way(self) -> None:
        """Let others have their turn, and the peer read what it was sent."""
        if not self.outgoing.has_room(0):
            await self.outgoing.wait_idle()
        await trio.lowlevel.checkpoint()

    async def _mirror(self, message: Mirror) -> None:
        try:
            written = self._host.is_written(message.broker_id, self)
            await self._host.copies.begin(self, message.broker_id, written, message.retain_s)
        except StorageError as error:
            logger.error("%s: %s", self.who, error)
            if isinstance(error, SecondWriter):
                self._host.refused(self, error)
            self.send(encode_refusal(error, FrameType.MIRROR, None))
        except Refused as error:
            self._refuse(error, message)

    def _tell_registration(self, name: str) -> None:
        kept = self._host.subscriptions.registration(name)
        if kept is None:
            self.tell(RegistrationKept(name, 0, "", "", {}))
        else:
            saved_us, pattern, client, position = kept
            self.tell(RegistrationKept(name, saved_us, pattern, client, nest(position)))

    def _replay(self, message: Replay) -> None:
        if message.after_no >= U64_MAX:
            raise BadFrame(f"replay after {message.after_no}, behind which there is no number")
        if len(self._replays.waiting) >= REPLAYS_MAX:
            raise LimitReached(f"{REPLAYS_MAX} replays wait for their turn")
        self._replays.waiting.append((message, None))
        self.outgoing.wake(self._replays)
        self.outgoing.pump()

    async def _interest(self, message: Interest) -> None:
        pattern = check_pattern(message.pattern)
        if message.members and self.interests >= INTERESTS_MAX:
            raise LimitReached(f"{self.interests} interests of one node")
        if message.queue is not None:
            self._interest_of_queue(message, pattern, message.queue)
            return
        if not message.members:
            await self._lose_interest(message.interest)
        elif message.interest not in self._patterns:
            self._patterns[message.interest] = pattern
            self._wanted.add(pattern, message.interest)
            self._host.router.add(pattern, self.feed)
            await self._tell_extents(message.interest, pattern)

    async def _tell_extents(self, interest: int, pattern: Pattern) -> None:
        """What there is, each log as of the moment from which on it is fed."""
        rows: list[tuple[BrokerId, str, int, int]] = []
        steps = 0
        for logs in self._host.router.look_through(pattern):
            steps += 1 + len(logs)
            for log in logs:
                broker_id, topic = log.log_id
                rows.append((broker_id, topic, log.first_no, log.committed_no))
                if self._host.is_own(broker_id) and log.log_id not in self.feed.cursors:
                    self.feed.read(log, log.committed_no)
            if len(rows) >= ROWS_A_FRAME:
                self.send(encode_trusted(ExtentsHeld, interest, rows[:ROWS_A_FRAME], False))
                del rows[:ROWS_A_FRAME]
            if not self.outgoing.has_room(0):
                await self.outgoing.wait_idle()
            if steps >= STEPS_BEFORE_YIELD:
                steps = 0
                await trio.lowlevel.checkpoint()
        while len(rows) > ROWS_A_FRAME:
            self.send(encode_trusted(ExtentsHeld, interest, rows[:ROWS_A_FRAME], False))
            del rows[:ROWS_A_FRAME]
        self.send(encode_trusted(ExtentsHeld, interest, rows, True))
        self.outgoing.pump()

    def copies_moved(self, logs: list[Log]) -> None:
        """Copies have grown: it is told how far those reach that it wants, for the day on which
        their origin is gone."""
        rows = [
            (log.log_id.broker_id, log.log_id.topic, log.first_no, log.committed_no)
            for log in logs
            if self._wanted.match(log.log_id.topic)
        ]
        for at in range(0, len(rows), ROWS_A_FRAME):
            if self._session.state is State.OPEN:
                self.send(encode_trusted(ExtentsHeld, 0, rows[at : at + ROWS_A_FRAME], False))

    async def _lose_interest(self, interest: int) -> None:
        pattern = self._patterns.pop(interest, None)
        if pattern is None:
            return
        self._wanted.remove(pattern, interest)
        self._host.router.remove(pattern, self.feed)
        for step, log_id in enumerate(list(self.feed.cursors), start=1):
            if not self._wanted.match(log_id.topic):
                self.feed.cursors.pop(log_id, None)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()

    def _interest_of_queue(self, message: Interest, pattern: Pattern, queue: str) -> None:
        member = self._members.get(message.interest)
        if member is not None and not message.members:
            del self._members[message.interest]
            self._host.subscriptions.leave_peer(member)
        elif member is not None:
            member.weight = message.members
        elif message.members:
            member = self._members[message.interest] = Subscription(
                message.interest, ClientNo(0), pattern, self.outgoing, message.credit_bytes,
                is_peer=True,
            )  # fmt: skip
            member.weight = message.members
            self._host.subscriptions.join_peer(member, queue)
