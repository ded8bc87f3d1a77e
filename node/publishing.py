"""Taking messages in: to subscribers at once, or into a log and to subscribers once it is safe."""

from collections.abc import Callable
from itertools import accumulate
from typing import Final, Protocol

from busnode.node.access import check_right
from busnode.node.committer import Committer
from busnode.node.producers import Producer, Producers, SeenRun
from busnode.node.receipts import Acked, Receipt, Receipts
from busnode.node.router import Listener, Route, Router
from busnode.security.rules import Rights
from busnode.segments.store import Log
from busnode.wire.errors import BadTask, BadTopic, Forbidden, LogPoisoned, NotMirrored, Unavailable
from busnode.wire.frames import TRANSPORT_AT, Flags, Transport, broker_seed
from busnode.wire.ids import BrokerId, Topic
from busnode.wire.producer_tag import TAG_SHIFT, tag_of
from busnode.wire.runs import Run, stamp_run
from busnode.wire.topics import is_system

TASKS: Final = "/$task/"
"""Below it each queue has its topic: a task is a message there."""

OWN_PRODUCER: Final = 0
"""The producerId of a node's own batches: nobody else may write with it where that counts."""

AT_ONCE_MAX: Final = 1000
"""Listeners to whom a message is sent straight on, 5 to 9 ms in all. One client may subscribe to
one topic ten thousand times; it then gets them in its turns."""

RETRY_S: Final = 1.0
"""When a publisher should try again after the disk has failed."""


class Publisher(Acked, Protocol):
    """Who publishes: a session, or the node itself."""

    uncommitted_bytes: int
    identity: str
    """Whose the producerIds of its batches must be; "": anybody's."""
    rights: Rights | None
    """None: it may publish everywhere."""

    @property
    def is_client(self) -> bool:
        """Whether somebody waits for the ack; the node's own messages are never refused."""
        ...


class Mirrors(Protocol):
    """Those who hold copies of our logs."""

    @property
    def in_force(self) -> bool:
        """Whether what is published now can be acked as mirrored."""
        ...

    def appended(self, log: Log) -> None: ...

    def pump(self) -> None:
        """Send what was appended."""
        ...


class NoMirrors:
    in_force = False

    def appended(self, log: Log) -> None:
        pass

    def pump(self) -> None:
        pass


class Publishing:
    """The way of a message into the node. One task at a time calls it, and it never waits."""

    def __init__(
        self,
        broker_id: BrokerId,
        router: Router,
        producers: Producers,
        receipts: Receipts,
        committer: Committer,
    ) -> None:
        self.broker_id = broker_id
        self._seed = broker_seed(broker_id)
        self._router = router
        self._producers = producers
        self._receipts = receipts
        self._committer = committer
        self._offered: dict[Listener, None] = {}
        self._stopped: str | None = None
        self.mirrors: Mirrors = NoMirrors()
        """Where our logs are copied to while they are written."""
        self.require_mirror = False
        self.check_queue: Callable[[str], None] = _any
        """Refuses what cannot be the name of a queue."""
        self.messages_live = 0
        self.messages_persistent = 0
        self.repeats = 0
        self.messages_forwarded = 0
        """Not persistent, sent on to other nodes, once for each."""
        self.messages_from_peers = 0
        """Of all kinds."""

    def publish(
        self, publisher: Publisher, view: memoryview, run: Run, *, system: bool = False
    ) -> None:
        """Take a verified run. Raises Refused when the topic is none, or is the system's own, or is
        not for this publisher."""
        route = self._router.route(run.topic)
        if publisher.rights is not None:
            check_right(publisher.rights, "publish", route.topic)
        if publisher.identity:
            _check_producer(publisher.identity, run)
        if is_system(route.topic) and not system:
            self._check_system(route.topic, run)
        if run.flags & Flags.PERSISTENT:
            self._store(publisher, view, run, route)
        else:
            self.messages_live += 0 if system else run.count
            self._offer(view, run, route)

    def _check_system(self, topic: Topic, run: Run) -> None:
        """Of the system's topics those of queues alone are for everybody."""
        if not topic.startswith(TASKS):
            raise BadTopic(f"{topic} is a topic of the system: nobody else publishes there")
        if not run.flags & Flags.PERSISTENT:
            raise BadTask(f"a task is always persistent; {topic} takes nothing else")
        if any(batch[3] == OWN_PRODUCER for batch in run.batches):
            raise BadTask(f"producerId {OWN_PRODUCER} is that of nodes: draw one at random")
        self.check_queue(topic.removeprefix(TASKS))

    def begin(self, broker_id: BrokerId) -> None:
        """From here on persistent messages are those of a new incarnation."""
        self.broker_id = broker_id
        self._seed = broker_seed(broker_id)
        self._stopped = None

    def stop(self, reason: str) -> None:
        """Refuse persistent messages until the next incarnation begins."""
        self._stopped = reason

    def write_with_next(self, write: Callable[[], None]) -> None:
        """Have it called when the next commit begins: it may publish then."""
        self._committer.write_with_next(write)

    def flush(self) -> None:
        """Send what was offered and appended since the last time."""
        self.mirrors.pump()
        if self._offered:
            offered, self._offered = self._offered, {}
            for listener in offered:
                listener.pump()

    def _offer(self, view: memoryview, run: Run, route: Route) -> None:
        if run.flags & Flags.LOCAL:
            self._offer_to(route.clients, view, run)
        if route.groups:
            self._offer_to(route.groups, view, run)  # they look at the scope themselves
        if run.flags & Flags.REMOTE and route.peers:
            for batch in run.batches:
                view[batch[0] + TRANSPORT_AT] = Transport.FORWARDED
            self.messages_forwarded += run.count * len(route.peers)
            self._offer_to(route.peers, view, run)

    def forwarded(self, view: memoryview, run: Run) -> None:
        """Messages that another node has sent on, for this node's clients and nobody else."""
        self.messages_from_peers += run.count
        self._offer_to(self._router.route(run.topic).clients, view, run)

    def dropped_before(self, topic: bytes, count: int) -> None:
        """Messages that another node has dropped before they came here."""
        for listener in self._router.route(topic).clients:
            listener.dropped_before(count)
            self._offered[listener] = None

    def _offer_to(self, listeners: list[Listener], view: memoryview, run: Run) -> None:
        batches = view[run.start : run.end]
        kept: bytes | None = None
        few = len(listeners) <= AT_ONCE_MAX
        for listener in listeners:
            if few and listener.offer_at_once(batches, run.count):
                continue
            if kept is None:
                kept = bytes(batches)  # one copy for all who cannot take it now
            listener.offer(kept, run.count)
            self._offered[listener] = None

    def _store(self, publisher: Publisher, view: memoryview, run: Run, route: Route) -> None:
        if self._stopped is not None:
            raise _unavailable(self._stopped)
        if self._needs_mirror(publisher, run) and not self.mirrors.in_force:
            text = "no mirror is up, and this message must have one; nothing was stored"
            raise NotMirrored(text, retry_after_s=RETRY_S)
        log = self._router.open_log(route)
        if log.poisoned is not None:
            raise _unavailable(log.poisoned)
        for part in consecutive(run):
            _, _, _, producer_id, first_seq = part.batches[0]
            producer = self._producers.get(producer_id)
            if first_seq and not producer.is_new(first_seq):
                self._store_new_of(publisher, view, part, log, producer)
            else:
                self._append(publisher, view, part, log, producer)
        self.mirrors.appended(log)
        self._committer.wake()

    def _store_new_of(
        self, publisher: Publisher, view: memoryview, run: Run, log: Log, producer: Producer
    ) -> None:
        """A run of which some batches may be repeats: each is looked at alone."""
        committed: dict[Log, None] = {}
        try:
            for place, batch in enumerate(run.batches):
                seen = producer.find(batch[4])
                if (
                    seen is None
                    or _is_lost(*seen)
                    or self._must_be_stored_anew(publisher, run, seen[0])
                ):
                    part = _part(run, place, place + 1)
                    self._append(publisher, view, part, log, producer)
                    continue
                self.repeats += batch[1]
                stored_in, first_no, count = seen
                last_no = first_no + count - 1
                must = self._needs_mirror(publisher, run)
                receipt = Receipt(publisher, 0, batch[4], 1, first_no, last_no, must)
                self._receipts.add(stored_in, receipt)
                if stored_in.committed_no >= last_no:
                    committed[stored_in] = None
        finally:
            self._receipts.settle(list(committed))

    def _append(
        self, publisher: Publisher, view: memoryview, run: Run, log: Log, producer: Producer
    ) -> None:
        first_no = log.next_no
        next_no = stamp_run(view, run, self.broker_id, self._seed, first_no)
        try:
            log.append(view[run.start : run.end], run.count, run.utc_us_max)
        except LogPoisoned as error:
            self._committer.lost(log)
            raise _unavailable(error.text) from error
        self.messages_persistent += run.count
        size_bytes = run.end - run.start
        publisher.uncommitted_bytes += size_bytes
        first_seq = run.batches[0][4]
        if first_seq:
            ends = list(accumulate(batch[1] for batch in run.batches))
            producer.add(SeenRun(first_seq, ends, log, first_no))
        must = self._needs_mirror(publisher, run)
        batches = len(run.batches)
        receipt = Receipt(publisher, size_bytes, first_seq, batches, first_no, next_no - 1, must)
        self._receipts.add(log, receipt)

    def _must_be_stored_anew(self, publisher: Publisher, run: Run, stored_in: Log) -> bool:
        """Nobody can vouch any more for a second copy of a log that is finished. What needs one is
        stored again, in a log that has a mirror; consumers drop repeats across logs."""
        return stored_in.log_id.broker_id != self.broker_id and self._needs_mirror(publisher, run)

    def _needs_mirror(self, publisher: Publisher, run: Run) -> bool:
        """Whether it is acked as mirrored or refused: it says so, or this node does."""
        required = self.require_mirror and publisher.is_client
        return required or bool(run.flags & Flags.MIRROR_REQUIRED)


def _check_producer(identity: str, run: Run) -> None:
    """Forbidden unless it may publish under these producerIds."""
    tag = tag_of(identity)
    for batch in run.batches:
        if batch[3] >> TAG_SHIFT != tag:
            raise Forbidden(
                f"producerId {batch[3]:016x} is not one of {identity}: its first 16 bits "
                f"are made from the identity, {tag:04x}; connect with a library that knows that"
            )


def _any(queue: str) -> None:
    del queue


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(f"this node's disk failed: {reason}", retry_after_s=RETRY_S)


def _is_lost(log: Log, first_no: int, count: int) -> bool:
    """Whether a batch that was appended will never be committed, or is not there any more since its
    copy was taken up again without it: a repeat of it is none."""
    last_no = first_no + count - 1
    return log.committed_no < last_no and (log.poisoned is not None or log.next_no <= last_no)


def consecutive(run: Run) -> list[Run]:
    """A run as parts of one producer with numbers one behind the other: nearly always itself.

    Every number is looked at. The ends alone do not tell: 2, 1, 4 would pass for 2, 3, 4, and the
    true 3 would then be taken for a repeat. A batch with the number 0 has none and stands alone.
    """
    batches = run.batches
    ends: list[int] = []
    _, _, _, producer_id, seq = batches[0]
    for place in range(1, len(batches)):
        _, _, _, next_id, next_seq = batches[place]
        if next_seq != seq + 1 or next_id != producer_id or not seq:
            ends.append(place)
        producer_id, seq = next_id, next_seq
    if not ends:
        return [run]
    starts = [0, *ends]
    return [_part(run, *place) for place in zip(starts, [*ends, len(batches)], strict=True)]


def _part(run: Run, first: int, end: int) -> Run:
    """Some batches of a run as a run of their own."""
    batches = run.batches
    part = Run(run.topic, batches[first][0])
    part.end = batches[end][0] if end < len(batches) else run.end
    part.batches = batches[first:end]
    part.count = sum(batch[1] for batch in part.batches)
    part.flags = run.flags
    part.utc_us_max = run.utc_us_max
    return part
