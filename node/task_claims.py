"""Who goes on with the tasks of incarnations that are no more: carries out what claims decide.

A claim is a message of a system topic like any other, synced and mirrored, at the node that makes
it and at each that hears of it. What is claimed is taken over from the copies of logs here.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import msgpack
import trio

from busnode.node.event_kinds import TASKS_GIVEN_UP, TASKS_TAKEN_OVER
from busnode.node.events import Tell
from busnode.node.own_messages import PERSISTENT, OwnMessages
from busnode.node.ownership import Ownership
from busnode.node.publishing import TASKS
from busnode.node.subscription import Mender
from busnode.node.task_queue import JOURNAL
from busnode.node.task_queues import TaskQueues
from busnode.node.task_takeover import Takeover
from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log, Store
from busnode.tasks.claims import (
    Action,
    CancelClaim,
    Claim,
    Claimed,
    Claims,
    Event,
    Heard,
    Holds,
    Started,
    TakeOver,
    Ticked,
    WriterGone,
    WriterSeen,
)
from busnode.tasks.ranges import Numbers
from busnode.wire.batches import Columns, decode_columns
from busnode.wire.control import Control, TaskClaim, TaskFinished
from busnode.wire.errors import BadBatch, BusnodeError
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, LogId, MsgNo, Topic
from busnode.wire.limits import CONTROL_ELEMENTS_MAX
from busnode.world.world import World

logger = logging.getLogger(__name__)

CLAIMS: Final = Topic("/$sys/task/claims")

LOOK_EVERY_S: Final = 0.5
STEPS_BEFORE_YIELD: Final = 500
RETRY_S: Final = 5.0
"""When a takeover is tried again that a disk or a lost log has ended."""

JOBS_MAX: Final = 10_000
NUMBERS_MAX: Final = 1 << 32
"""Numbers in one range that another node tells of."""

QUEUES_TOLD_MAX: Final = 400
"""Queues whose extents one claim can name; the names fit into a control frame."""


class ClaimLink(Protocol):
    """A link to another node."""

    def tell(self, message: Control) -> None: ...


class ClaimPeers(Protocol):
    """What is known of other nodes."""

    def links_by_incarnation(self) -> Mapping[BrokerId, ClaimLink]:
        """Links, by what the node at the other end writes now."""
        ...

    def longest_copies(self, broker_id: BrokerId) -> list[BrokerId]:
        """Nodes that hold logs of an incarnation, by what they write now, this one included: those
        who have most first."""
        ...


class TaskClaims:
    def __init__(
        self,
        world: World,
        store: Store,
        ownership: Ownership,
        queues: TaskQueues,
        own: OwnMessages,
        peers: ClaimPeers,
        mender: Mender,
        me: BrokerId,
        adopt_after_s: float,
        tell: Tell,
    ) -> None:
        self._world = world
        self._store = store
        self._ownership = ownership
        self._queues = queues
        self._own = own
        self._peers = peers
        self._mender = mender
        self._adopt_after_s = adopt_after_s
        self._tell = tell
        self._jobs: deque[Job] = deque()
        """What takes a while, one after the other."""
        self._woken = trio.Event()
        self._under_way: tuple[Job, trio.CancelScope] | None = None
        self._begin(me)

    def _begin(self, me: BrokerId) -> None:
        self._me = me
        self._claims = Claims(me, self._adopt_after_s)
        self._alive: set[BrokerId] = set()
        self._jobs.clear()
        self._finished: set[BrokerId] = set()
        """What was taken over to the end, by this incarnation."""
        self._compared: set[BrokerId] = set()
        """Earlier incarnations that somebody else has claimed, and that were seen to."""
        self._taken: dict[str, dict[BrokerId, Numbers]] = {}
        for log in self._store.logs():
            if log.log_id.topic == CLAIMS:
                for claimed in _read_claims(log):
                    self._claims.handle(Heard(claimed))
        self._origins = {
            log.log_id.broker_id
            for log in self._store.logs()
            if log.log_id.topic.startswith(TASKS) and log.log_id.broker_id != me
        }
        """Other incarnations with tasks whose logs are here."""
        earlier = [each for each in reversed(list(self._ownership)) if each in self._origins]
        self._claims.handle(Started(earlier, self._world.clock.monotonic()))

    def begin(self, me: BrokerId) -> None:
        """A new incarnation: the one before is one of those whose tasks are to be taken over."""
        if self._under_way is not None:
            self._under_way[1].cancel()
        self._begin(me)
        self.keep()

    def keep(self) -> None:
        """Write down again what is known of claims, before it expires, while it matters."""
        for claimed in self._claims.known:
            if claimed.origin in self._origins:
                self._publish(claimed)

    async def run(self) -> None:
        self.keep()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work)
            while True:
                await self._count()
                self._look()
                await self._world.clock.sleep(LOOK_EVERY_S)

    # What is known --------------------------------------------------------------------------------

    async def _count(self) -> None:
        """Look through all logs, of which there may be many, in steps."""
        found: set[BrokerId] = set()
        for step, log in enumerate(self._store.logs(), start=1):
            if log.log_id.topic.startswith(TASKS):
                found.add(log.log_id.broker_id)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
        self._origins = found - {self._me}

    def _look(self) -> None:
        now = self._world.clock.monotonic()
        links = self._peers.links_by_incarnation()
        events: list[Event] = [WriterSeen(each) for each in links if each not in self._alive]
        events += [WriterGone(each, now) for each in self._alive if each not in links]
        self._alive = set(links)
        for origin in self._origins:
            events.append(Holds(origin, self._peers.longest_copies(origin)))
        for event in (*events, Ticked(now)):
            self._handle(event)
        self._see_to_what_others_claimed()

    def heard(self, message: TaskClaim) -> None:
        """Another node tells of a claim."""
        claimed = Claimed(
            message.origin, message.claimer, message.claimed_us, tuple(message.extents)
        )
        if self._claims.claim_of(claimed.origin) == claimed:
            return
        if claimed.origin in self._origins or claimed.origin in self._ownership:
            self._publish(claimed)
        self._handle(Heard(claimed))

    def tell_all(self, link: ClaimLink) -> None:
        """What a node must know that has just been linked."""
        for claimed in self._claims.known:
            link.tell(_message(claimed))

    def pinned_from(self, log_id: LogId) -> MsgNo | None:
        """Logs of queues stay while nobody has taken over what is in them."""
        origin = log_id.broker_id
        if origin == self._me or not log_id.topic.startswith((TASKS, JOURNAL)):
            return self._queues.pinned_from(log_id)
        claimed = self._claims.claim_of(origin)
        if origin in self._alive or origin in self._finished:
            return None
        if claimed is not None and self._claims.resolve(origin) not in (self._me, None):
            return None
        return MsgNo(1)

    # What is to be done ---------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for action in self._claims.handle(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Claim(origin):
                claimed = Claimed(
                    origin, self._me, self._world.clock.utc_us(), tuple(self._extents(origin))
                )
                self._publish(claimed)
                message = _message(claimed)
                for link in self._peers.links_by_incarnation().values():
                    link.tell(message)
                self._handle(Heard(claimed))
            case TakeOver(origin):
                self._add(CarryAll(origin))
            case CancelClaim(origin, winner):
                self._cancel(CarryAll(origin))
                self._finished.discard(origin)
                self._add(GiveUp(origin, None if winner is None else dict(winner.extents)))
            case _:
                assert_never(action)

    def _add(self, job: "Job") -> None:
        self._jobs.append(job)
        self._woken.set()

    def _cancel(self, job: "Job") -> None:
        if self._under_way is not None and self._under_way[0] == job:
            self._under_way[1].cancel()
        if job in self._jobs:
            self._jobs.remove(job)

    def _extents(self, origin: BrokerId) -> Iterable[tuple[str, int]]:
        """How far the queues of an origin go that are here."""
        count = 0
        for log in self._store.logs():
            if log.log_id.broker_id == origin and log.log_id.topic.startswith(TASKS):
                count += 1
                if count <= QUEUES_TOLD_MAX:
                    yield log.log_id.topic.removeprefix(TASKS), log.committed_no

    def _publish(self, claimed: Claimed) -> None:
        try:
            payload = _encode(claimed)
            utc_us = self._world.clock.utc_us()
            self._own.publish(CLAIMS, Columns([payload]), utc_us, PERSISTENT)
            self._own.flush()
        except BusnodeError as error:
            logger.warning("a claim was not kept: %s", error)

    # What takes a while ---------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._jobs:
                job = self._jobs.popleft()
                with trio.CancelScope() as scope:
                    self._under_way = job, scope
                    try:
                        await self._carry_out(job)
                    except (OSError, BusnodeError) as error:
                        logger.error("%s failed and is tried again: %s", job, error)
                        await self._world.clock.sleep(RETRY_S)
                        self._add(job)
                self._under_way = None

    async def _carry_out(self, job: "Job") -> None:
        match job:
            case CarryAll(origin):
                await self._take_over(origin, {})
                self._finished.add(origin)
            case CarryBeyond(origin, extents):
                takeover = await self._take_over(origin, extents)
                self._tell_finished(origin, takeover.finished)
            case GiveUp(origin, extents):
                finished = await self._queues.give_up(origin, extents)
                self._tell_finished(origin, finished)
                self._tell(TASKS_GIVEN_UP, origin=origin.hex())
            case Finish(origin, queue, numbers):
                await self._queues.finish(origin, queue, numbers)
            case _:
                assert_never(job)

    async def _take_over(self, origin: BrokerId, beyond: dict[str, int] | None) -> Takeover:
        takeover = Takeover(
            self._world.files, self._store, self._own, self._world.clock, self._mender, origin
        )
        await takeover.run(self._taken, beyond)
        for queue, taken in takeover.taken.items():
            known = self._taken.setdefault(queue, {})
            for other, numbers in taken.items():
                already = known.setdefault(other, Numbers())
                for first, last in numbers.runs():
                    already.add_run(first, last)
        if takeover.count or takeover.unreadable:
            self._tell(
                TASKS_TAKEN_OVER, origin=origin.hex(), count=takeover.count,
                unreadable=takeover.unreadable,
            )  # fmt: skip
        return takeover

    def _see_to_what_others_claimed(self) -> None:
        """Of what somebody else has claimed the copy here may tell more: that some of it is
        finished, and, where it was written by this node, of tasks that the other has no copy of."""
        for origin in self._origins:
            claimed = self._claims.claim_of(origin)
            owner = self._claims.resolve(origin)
            if claimed is None or owner in (self._me, None) or origin in self._compared:
                continue
            self._compared.add(origin)
            is_own = origin in self._ownership
            self._add(CarryBeyond(origin, dict(claimed.extents) if is_own else None))

    # What is finished -----------------------------------------------------------------------------

    def _tell_finished(self, origin: BrokerId, finished: dict[str, Numbers]) -> None:
        """Tell whoever has the tasks of an origin now which of them are finished."""
        owner = self._claims.resolve(origin)
        link = None if owner is None else self._peers.links_by_incarnation().get(owner)
        if link is None:
            return
        for queue, numbers in finished.items():
            runs = list(numbers.runs())
            for at in range(0, len(runs), CONTROL_ELEMENTS_MAX):
                link.tell(TaskFinished(origin, queue, runs[at : at + CONTROL_ELEMENTS_MAX]))

    def finished_elsewhere(self, message: TaskFinished) -> None:
        """Another node has finished tasks that are ours."""
        numbers = Numbers()
        for first, last in message.ranges:
            if 0 < first <= last < first + NUMBERS_MAX:
                numbers.add_run(first, last)
        if len(self._jobs) < JOBS_MAX:
            self._add(Finish(message.origin, message.queue, numbers))


@dataclass(frozen=True, slots=True)
class CarryAll:
    """Take over the tasks of an origin."""

    origin: BrokerId


@dataclass(frozen=True, slots=True)
class CarryBeyond:
    """Somebody else has taken over an origin: tell what is finished, and take over those that lie
    behind these numbers in its queues, if there are any."""

    origin: BrokerId
    extents: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Somebody else has them, all or up to these numbers."""

    origin: BrokerId
    extents: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Finish:
    """Somebody else has finished some of them."""

    origin: BrokerId
    queue: str
    numbers: Numbers


Job = CarryAll | CarryBeyond | GiveUp | Finish


def _message(claimed: Claimed) -> TaskClaim:
    return TaskClaim(claimed.origin, claimed.claimer, claimed.claimed_us, list(claimed.extents))


def _encode(claimed: Claimed) -> bytes:
    """[origin, claimer, when, [[queue, msgNo]]]"""
    packed = msgpack.packb(
        [claimed.origin, claimed.claimer, claimed.claimed_us, list(claimed.extents)]
    )
    assert isinstance(packed, bytes)
    return packed


def _read_claims(log: Log) -> Iterable[Claimed]:
    """Those of one log; what cannot be read is as good as never heard."""
    for found in read_batches(log):
        if isinstance(found, Hole):
            continue
        header, body = found
        try:
            for payload in decode_columns(body, header.count).payloads:
                yield _decode(payload)
        except BadBatch as error:
            logger.warning("claims in %s cannot be read: %s", log.log_id, error)


def _decode(payload: bytes) -> Claimed:
    try:
        origin, claimer, claimed_us, extents = msgpack.unpackb(payload, max_ext_len=0)
        if {len(origin), len(claimer)} != {BROKER_ID_BYTES}:
            raise ValueError("brokerId of the wrong length")
        rows = tuple((str(queue), int(last_no)) for queue, last_no in extents)
        return Claimed(BrokerId(bytes(origin)), BrokerId(bytes(claimer)), int(claimed_us), rows)
    except (ValueError, TypeError) as error:
        raise BadBatch(f"a claim cannot be read: {error!r:.200}") from error
