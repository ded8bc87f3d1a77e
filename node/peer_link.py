"""A link to another node: we have dialled it and are its client."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from busnode.node.bidding import Bidding
from busnode.node.conversation import Conversation
from busnode.node.handed import Handed
from busnode.node.peer_greeting import Greeting
from busnode.node.remote_reading import RemoteReading
from busnode.node.task_home import TaskHome
from busnode.security.cluster_key import ClusterKey
from busnode.wire.control import (
    Ask,
    Chunk,
    Compared,
    Control,
    Credit,
    Damaged,
    Dropped,
    Error,
    ExtentsHeld,
    FindRegistration,
    Finished,
    Gap,
    Goodbye,
    Interest,
    MembersSeen,
    Mirrored,
    PeerChallenge,
    PeerWelcome,
    Ping,
    Pong,
    RegistrationKept,
    Replay,
    Request,
    TaskReady,
    Tasks,
    TaskSettled,
    encode_control,
    encode_trusted,
)
from busnode.wire.errors import BY_CODE, BadFrame, BusnodeError, NotAuthenticated
from busnode.wire.frames import FrameType, read_header
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.limits import FRAME_BYTES_MAX
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import FORWARDED_KINDS, Run
from busnode.wire.sessions import PEER_TABLE, Session, Side, State
from busnode.world.clock import Clock
from busnode.world.network import Stream

logger = logging.getLogger(__name__)

T = TypeVar("T")

FetchKey = tuple[int, int, LogId]
"""Client, subscription, log."""

NO_ANSWER: Final = "the node closed the connection before it has welcomed us"


class Fetching(Protocol):
    """Who has asked another node for records. The answer is one call of `placed`, `ended` or
    `lacked`, with `fetched` for all that came before, or one of `lost`."""

    closed: bool
    """Whether nothing is wanted any more."""

    @property
    def whom(self) -> tuple[int, int]:
        """Client and subscription, as the answer names them."""
        ...

    def fetched(self, handed: Handed) -> None: ...

    def placed(self, log_id: LogId, after_no: int) -> None: ...

    def ended(self, log_id: LogId, end_no: int | None) -> None: ...

    def lacked(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None: ...

    def lost(self, log_id: LogId) -> None: ...

    def pump(self) -> None: ...


class LinkHost(Protocol):
    """What a link asks of its node."""

    bidding: Bidding
    task_home: TaskHome

    def refused(self, session: Conversation, error: BusnodeError) -> None:
        """The other side has not shown that it is of our cluster."""
        ...

    def forwarded(self, link: "PeerLink", view: memoryview, run: Run) -> None:
        """Messages that are not persistent, for our clients; valid only now."""
        ...

    def dropped_by_peer(self, topic: bytes, count: int) -> None:
        """So many of a topic are gone that another node could not send fast enough."""
        ...

    def forwarded_to_queue(
        self, link: "PeerLink", interest: int, batches: bytes, handed: Handed | None
    ) -> None:
        """Messages for one member of a queue group: records of a log, or not persistent."""
        ...

    def arrived(self, link: "PeerLink", handed: Handed) -> None:
        """What the other node has committed."""
        ...

    def extents(self, link: "PeerLink", message: ExtentsHeld) -> None: ...

    def lacks(self, link: "PeerLink", log_id: LogId) -> None:
        """The other node does not hold a log that we thought it did."""
        ...

    def fetch_elsewhere(
        self,
        reading: RemoteReading,
        log_id: LogId,
        after_no: int,
        last_no: int,
        lacking: "PeerLink | None",
    ) -> bool:
        """Somebody lacks what was asked of it, up to a number; whether somebody else is asked
        now."""
        ...

    def gap_of_queue(self, interest: int, gap: Gap) -> None: ...

    def passed_over(self, link: "PeerLink", log_id: LogId, last_no: int) -> None:
        """The other node has committed something that it could not read when it was to be sent."""
        ...

    def members_seen(self, broker_id: BrokerId, name: str, message: MembersSeen) -> None: ...

    def mirror_refused(self, link: "PeerLink") -> None:
        """The other node does not hold what it was asked to."""
        ...

    async def mirrored(self, link: "PeerLink", message: Mirrored) -> None:
        """What the other node has synced of our logs."""
        ...

    def registration_kept(self, message: RegistrationKept) -> None:
        """What the other node has kept under a name that it was asked for."""
        ...

    def compared(self, message: Compared) -> None:
        """The other node tells what its copy is like."""
        ...

    def damaged(self, message: Damaged) -> None:
        """Somebody was sent records of this node that are not what was written."""
        ...

    def flush(self) -> None:
        """A buffer was worked off."""
        ...


class PeerLink(Conversation):
    """The dialler's side of a link. `greet` it, then `run` it until it ends."""

    is_peer = True

    def __init__(
        self, stream: Stream, clock: Clock, host: LinkHost, heartbeat_s: float, greet_s: float
    ) -> None:
        session = Session(PEER_TABLE, Side.DIALLER)
        super().__init__(stream, clock, session, FrameReader(FORWARDED_KINDS), heartbeat_s, greet_s)
        self.welcome: PeerWelcome | None = None
        self.said_goodbye = False
        self.logs: dict[LogId, tuple[int, int]] = {}
        """Logs that it holds and our clients want: first and last number."""
        self._told: set[int] = set()
        """Interests that it was told of, by number."""
        self.unanswered: dict[int, trio.Event] = {}
        """Interests that it was told of and has not answered, by number."""
        self._finding: dict[str, trio.Event] = {}
        """Names of durable subscriptions that it was asked for and has not told of."""
        self.fetches: dict[FetchKey, tuple[Fetching, int]] = {}
        """What we have asked it for and not got: for whom, and how much."""
        self.dropped = 0
        """Messages that were not persistent and for which we were too slow."""
        self.messages = 0
        """Messages that came over it."""
        self._host = host
        self.key: ClusterKey | None = None
        """What the other side has shown that it has."""
        self._chunk: Chunk | None = None
        self._chunk_left = 0

    @property
    def broker_id(self) -> BrokerId:
        assert self.welcome is not None
        return self.welcome.broker_id

    @property
    def name(self) -> str:
        return "" if self.welcome is None else self.welcome.node

    @property
    def who(self) -> str:
        return f"link to {self.name or self.peer}"

    async def greet(self, greeting: Greeting) -> PeerWelcome:
        """Say who we are. Raises what the other node refuses us with, or we it, or OSError."""
        self._session.sent(FrameType.PEER_HELLO)
        self.send(encode_control(greeting.first))
        was_challenged = False
        while True:
            for event in self._reader.events():
                if isinstance(event, Runs):
                    raise BadFrame("batch before the PEER_WELCOME")
                self._session.received(event.TYPE)
                if isinstance(event, Error):
                    raise BY_CODE.get(event.code, BusnodeError)(event.text)
                if isinstance(event, PeerChallenge):
                    if greeting.is_own(event):  # as far as it has to go to know that
                        hello = greeting.hello
                        return PeerWelcome(
                            hello.broker_id, hello.node, hello.clients_at, hello.peers_at, 0.0
                        )
                    proof = self._believe(partial(greeting.answer, event))
                    was_challenged = True
                    self._session.sent(FrameType.PEER_PROOF)
                    self.send(encode_control(proof))
                    continue
                assert isinstance(event, PeerWelcome)  # the table lets nothing else by
                self._believe(partial(greeting.welcomed, was_challenged=was_challenged))
                self.key = greeting.key
                self.welcome = event
                return event
            if self.outgoing.failure is not None:
                raise OSError(str(self.outgoing.failure))
            count = self._stream.receive_into(self._reader.space())
            if count is None:
                await self._stream.wait_readable()
            elif not count:
                raise ConnectionError(NO_ANSWER)
            else:
                self._reader.received(count)

    def _believe(self, looks: Callable[[], T]) -> T:
        try:
            return looks()
        except NotAuthenticated as error:
            self._host.refused(self, error)
            raise

    def hang_up(self) -> None:
        """End a link that is not run."""
        self._stream.close()

    def tell(self, message: Control) -> None:
        """Send what the other node must know, while there is a session."""
        if self._session.state is not State.OPEN:
            return
        if isinstance(message, Interest) and message.queue is None:
            if not message.members:
                self._told.discard(message.interest)
            elif message.interest in self._told:
                return  # it is answered once
            else:
                self._told.add(message.interest)
                self.unanswered[message.interest] = trio.Event()
        self.send(encode_control(message))

    def find_registration(self, name: str) -> trio.Event:
        """Ask what it has kept under a name; the event is set when it has told, or is gone."""
        found = self._finding.get(name)
        if found is None:
            found = trio.Event()
            if self._session.state is State.OPEN:
                self._finding[name] = found
                self.send(encode_control(FindRegistration(name)))
            else:
                found.set()
        return found

    def leave(self, reason: str) -> None:
        if self._session.state is State.OPEN:
            self._session.sent(FrameType.GOODBYE)
            self.send(encode_control(Goodbye(reason, [])))

    def fetch(
        self,
        reading: Fetching,
        log_id: LogId,
        after_no: int,
        since_us: int | None,
        length: int,
    ) -> None:
        whom = reading.whom
        self.fetches[*whom, log_id] = reading, length
        self.send(encode_trusted(Replay, *whom, *log_id, after_no, since_us, length))

    def forget(self) -> None:
        """It has ended: nobody waits for its answers any more."""
        for event in (*self.unanswered.values(), *self._finding.values()):
            event.set()
        self.unanswered.clear()
        self._finding.clear()
        fetches, self.fetches = self.fetches, {}
        for (_, _, log_id), (reading, _) in fetches.items():
            if not reading.closed:
                reading.lost(log_id)

    # What comes in --------------------------------------------------------------------------------

    def _after_reading(self) -> None:
        self._host.flush()

    async def _take_run(self, runs: Runs, place: int) -> None:
        chunk, run = runs.chunk, runs.runs[place]
        if chunk is None:
            raise BadFrame("batch without a CHUNK that says for whom it is")
        if chunk is not self._chunk:
            self._chunk, self._chunk_left = chunk, chunk.length
        self._chunk_left -= run.end - run.start
        view = self._reader.view
        self.messages += run.count
        if not chunk.first_no:
            if chunk.subscription:
                batches = bytes(view[run.start : run.end])
                self._host.forwarded_to_queue(self, chunk.subscription, batches, None)
            else:
                self._host.forwarded(self, view, run)
            return
        handed = _handed(view, run, chunk)
        if chunk.client_no:
            self._take_fetched(handed, chunk)
        elif chunk.subscription:
            self._host.forwarded_to_queue(self, chunk.subscription, handed.data, handed)
        else:
            self._host.arrived(self, handed)

    def _take_fetched(self, handed: Handed, chunk: Chunk) -> None:
        key = chunk.client_no, chunk.subscription, handed.log_id
        reading, length = self.fetches.get(key, (None, 0))
        if reading is not None and chunk.length > length + FRAME_BYTES_MAX:
            raise BadFrame(f"{chunk.length} bytes where {length} were asked for")
        if reading is not None and not reading.closed:
            reading.fetched(handed)
            reading.pump()
        if not self._chunk_left:
            self._answered(
                key, lambda r: r.ended(handed.log_id, chunk.last_no if chunk.last else None)
            )

    def _answered(self, key: FetchKey, tell: Callable[[Fetching], None]) -> None:
        reading, _ = self.fetches.pop(key, (None, 0))
        if reading is not None and not reading.closed:
            tell(reading)
            reading.pump()

    def _empty_chunk(self, chunk: Chunk) -> None:
        log_id = LogId(chunk.broker_id, Topic(chunk.topic))
        key = chunk.client_no, chunk.subscription, log_id
        _, length = self.fetches.get(key, (None, 0))
        if length:
            self._answered(key, lambda reading: reading.ended(log_id, chunk.last_no))
        else:
            self._answered(key, lambda reading: reading.placed(log_id, chunk.last_no))

    def _gap(self, gap: Gap) -> None:
        log_id = LogId(gap.broker_id, Topic(gap.topic))
        if not gap.client_no:
            if gap.subscription:
                self._host.gap_of_queue(gap.subscription, gap)
            else:
                self._host.passed_over(self, log_id, gap.last_no)
            return
        key = gap.client_no, gap.subscription, log_id
        if not gap.last_no:
            self._host.lacks(self, log_id)
        else:
            reading, _ = self.fetches.get(key, (None, 0))
            if isinstance(reading, RemoteReading) and not reading.closed:
                del self.fetches[key]
                numbers = gap.first_no - 1, gap.last_no
                if self._host.fetch_elsewhere(reading, log_id, *numbers, self):
                    return
                self.fetches[key] = reading, 0
        self._answered(
            key, lambda reading: reading.lacked(log_id, gap.first_no, gap.last_no, gap.reason)
        )

    def _take(self, message: Control) -> Awaitable[None] | None:
        host = self._host
        match message:
            case Chunk():
                if not message.length:
                    self._empty_chunk(message)
            case ExtentsHeld():
                host.extents(self, message)
                if message.last and message.interest in self.unanswered:
                    self.unanswered.pop(message.interest).set()
            case Tasks():
                host.task_home.tasks_from(self, message)
            case TaskSettled():
                host.task_home.settled_from(self, message)
            case TaskReady():
                host.task_home.owner_ready(self, message.queue)
            case Ask():
                host.bidding.ask_of_peer(self, message)
            case Request():
                host.bidding.request_of_peer(self, message)
            case Gap():
                self._gap(message)
            case Dropped():
                self.dropped += message.count
                logger.warning(
                    "%s: %d messages came too fast and are gone", self.who, message.count
                )
                if message.topic:
                    host.dropped_by_peer(message.topic.encode(), message.count)
            case RegistrationKept():
                found = self._finding.pop(message.name, None)
                if found is not None:
                    host.registration_kept(message)
                    found.set()
            case MembersSeen():
                host.members_seen(self.broker_id, self.name, message)
            case Ping():
                self.send(encode_trusted(Pong, message.token))
            case Goodbye():
                self.said_goodbye = True
                self.close()
            case Error():
                logger.warning("%s says %s: %s", self.who, message.code, message.text)
                if message.refused == FrameType.MIRROR:
                    host.mirror_refused(self)
            case Mirrored():
                return host.mirrored(self, message)
            case Compared():
                host.compared(message)
            case Damaged():
                host.damaged(message)
                self.close()
            case _:
                assert isinstance(message, Pong), message  # the table lets no other by
        return None

    def finished(self, interest: int, log_id: LogId, first_no: int) -> None:
        """A member of a queue group is done with records that the other node has sent."""
        if self._session.state is State.OPEN:
            self.send(encode_trusted(Finished, interest, *log_id, first_no))

    def return_credit(self, interest: int, size_bytes: int) -> None:
        """Members of a queue group were given so much that is not persistent."""
        if self._session.state is State.OPEN:
            self.send(encode_trusted(Credit, interest, size_bytes))


def _handed(view: memoryview, run: Run, chunk: Chunk) -> Handed:
    """A run of records, copied out of the buffer, with the numbers that it holds."""
    first = read_header(view, run.start)
    last = read_header(view, run.batches[-1][0])
    log_id = LogId(chunk.broker_id, Topic(chunk.topic))
    if run.topic != chunk.topic.encode() or {first.broker_id, last.broker_id} != {chunk.broker_id}:
        raise BadFrame(f"records in a chunk of {log_id} that are of another log")
    data = bytes(view[run.start : run.end])
    return Handed(log_id, first.first_no, last.last_no, data, is_remote=True)
