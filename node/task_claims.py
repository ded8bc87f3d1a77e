"""Who goes on with the tasks of incarnations that are no more: carries out what claims decide.

A claim is a message of a system topic like any other, synced and mirrored, at the node that makes
it and at each that hears of it. What is claimed is taken over from the copies of logs here.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final, Protocol, assert_never

import trio

from busnode.node.claim_log import CLAIMS, encode_claim, message_of, read_claims
from busnode.node.event_kinds import TASKS_GIVEN_UP, TASKS_TAKEN_OVER, TASKS_UNREADABLE
from busnode.node.events import Tell
from busnode.node.own_messages import PERSISTENT, OwnMessages
from busnode.node.ownership import Ownership
from busnode.node.publishing import TASKS
from busnode.node.subscription import Mender
from busnode.node.task_agreement import (
    WAITING_MAX,
    Account,
    Agreement,
    Hearing,
    Link,
    merged,
    tell,
    without,
)
from busnode.node.task_facts import FACTS, Fact, encode_fact, read_facts
from busnode.node.task_jobs import CarryAll, Compare, Job, Told
from busnode.node.task_queue import JOURNAL
from busnode.node.task_queues import TaskQueues
from busnode.node.task_takeover import Takeover
from busnode.segments.store import Log, Store
from busnode.tasks.claims import (
    Action,
    CancelClaim,
    Claim,
    Claimed,
    Claims,
    Deny,
    Event,
    Heard,
    Holds,
    Started,
    TakeOver,
    Ticked,
    WriterGone,
    WriterSeen,
)
from busnode.tasks.intake import parts_of
from busnode.tasks.ranges import Numbers
from busnode.wire.batches import Columns
from busnode.wire.control import TaskClaim, TaskFinished
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.world.world import World

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
STEPS_BEFORE_YIELD: Final = 500
RETRY_S: Final = 5.0
"""When a takeover is tried again that a disk or a lost log has ended."""

QUEUES_TOLD_MAX: Final = 400
"""Queues whose extents one claim can name; the names fit into a control frame."""


class ClaimPeers(Protocol):
    """What is known of other nodes."""

    def links_by_incarnation(self) -> Mapping[BrokerId, Link]:
        """Links, by what the node at the other end writes now."""
        ...

    def writes_now(self, node: BrokerId) -> BrokerId:
        """What a node writes that has greeted us with this."""
        ...

    def longest_copies(self, broker_id: BrokerId) -> list[BrokerId]:
        """Nodes that hold logs of an incarnation, by what they write now, this one included: those
        who have most first."""
        ...

    def is_more_away(self, broker_id: BrokerId) -> bool:
        """Whether a node that is gone had more of its logs than all that are here."""
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
        self._begin(me, ())

    def _begin(self, me: BrokerId, known: Iterable[Claimed]) -> None:
        self._me = me
        self._claims = Claims(me, self._adopt_after_s)
        self._alive: dict[BrokerId, None] = {}
        self._jobs.clear()
        self._waiting = 0
        """The weight of all jobs."""
        self._finished: set[BrokerId] = set()
        """What was taken over to the end, by this incarnation."""
        self._reached: dict[BrokerId, int] = {}
        """Of what was taken over: how many tasks its logs here had, queues together."""
        self._agreement = Agreement()
        self._hearing = Hearing()
        self._taken: dict[BrokerId, dict[str, dict[BrokerId, Numbers]]] = {}
        """By those whom we have taken over: what they had taken over themselves."""
        for log in self._store.logs():
            if log.log_id.topic == CLAIMS:
                try:
                    for claimed in read_claims(log):
                        self._claims.handle(Heard(claimed))
                except OSError as error:
                    logger.warning("claims cannot be read, and others may tell them: %s", error)
        for claimed in known:
            self._claims.handle(Heard(claimed))
        self._origins: dict[BrokerId, int] = {}
        """Other incarnations with tasks whose logs are here, and how many there are."""
        self._queues_of: dict[BrokerId, list[str]] = {}
        """Their queues."""
        for log in self._store.logs():
            if log.log_id.topic.startswith(TASKS) and log.log_id.broker_id != me:
                _add_to(self._origins, self._queues_of, log)
        earlier = [each for each in reversed(list(self._ownership)) if each in self._origins]
        self._claims.handle(Started(earlier, self._world.clock.monotonic()))

    def begin(self, me: BrokerId) -> None:
        """A new incarnation: the one before is one of those whose tasks are to be taken over."""
        if self._under_way is not None:
            self._under_way[1].cancel()
        self._begin(me, self._claims.known)  # what a failing disk has of them nobody knows
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
        found: dict[BrokerId, int] = {}
        queues: dict[BrokerId, list[str]] = {}
        for step, log in enumerate(self._store.logs(), start=1):
            if log.log_id.topic.startswith(TASKS):
                _add_to(found, queues, log)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
        found.pop(self._me, None)
        queues.pop(self._me, None)
        self._origins, self._queues_of = found, queues

    def _look(self) -> None:
        now = self._world.clock.monotonic()
        links = self._peers.links_by_incarnation()
        events: list[Event] = [WriterSeen(each) for each in links if each not in self._alive]
        events += [WriterGone(each, now) for each in self._alive if each not in links]
        self._alive = dict.fromkeys(links)
        for origin in self._origins:
            holders = self._peers.longest_copies(origin)
            events.append(Holds(origin, holders, self._peers.is_more_away(origin)))
            end = self._claims.end_of(origin)
            if end not in self._alive and end not in self._origins:
                # It has claimed them and is gone. Who has most of what it has written goes on with
                # them, also where nothing of that is about tasks; we do if nobody has any of it.
                there = self._peers.longest_copies(end) if self._others_hold(end) else holders
                events.append(Holds(end, there, self._peers.is_more_away(end)))
        for event in (*events, Ticked(now)):
            self._handle(event)
        for origin in self._agreement.due(self._origins, self._link_of, now):
            self._add(Compare(origin))
        self._take_what_came_later()

    def _take_what_came_later(self) -> None:
        """A copy may be completed after it was taken over: this node's own disk has lost the end of
        a log, say, which its mirror has and answers for."""
        for origin, count in list(self._reached.items()):
            if self._origins.get(origin, 0) > count and self._claims.resolve(origin) == self._me:
                del self._reached[origin]
                self._finished.discard(origin)
                self._add(CarryAll(origin))

    def _others_hold(self, origin: BrokerId) -> bool:
        return any(holder != self._me for holder in self._peers.longest_copies(origin))

    def heard(self, message: TaskClaim) -> None:
        """Another node tells of a claim."""
        claimed = Claimed(
            message.origin, message.claimer, message.claimed_us, tuple(message.extents)
        )
        if self._claims.knows(claimed):
            return
        if claimed.origin in self._origins or claimed.origin in self._ownership:
            self._publish(claimed)
        self._handle(Heard(claimed))
        if self._claims.knows(claimed):  # who made it may have died before all were told
            self._tell_others(claimed)

    def tell_all(self, link: Link) -> None:
        """What a node must know that has just been linked."""
        for claimed in self._claims.known:
            link.tell(message_of(claimed))

    def has_claimed(self, origin: BrokerId) -> bool:
        """Whether this node goes on with its tasks."""
        claimed = self._claims.claim_of(origin)
        return claimed is not None and claimed.claimer == self._me

    def orphans(self) -> dict[str, list[BrokerId]]:
        """By queue, incarnations that are no more, of whose tasks there is a copy here and with
        which nobody goes on yet."""
        found: dict[str, list[BrokerId]] = {}
        links = self._peers.links_by_incarnation()
        for origin, queues in self._queues_of.items():
            owner = self._claims.resolve(origin)
            if origin not in self._finished if owner == self._me else owner not in links:
                for queue in queues:
                    found.setdefault(queue, []).append(origin)
        return found

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
                now_us = max(self._world.clock.utc_us(), self._claims.denied_us(origin) + 1)
                claimed = Claimed(origin, self._me, now_us, tuple(self._extents(origin)))
                if not self._publish(claimed):
                    return  # with this disk there is soon another incarnation
                self._tell_others(claimed)
                self._handle(Heard(claimed))
            case Deny(denied):
                self._publish(denied)
                self._tell_others(denied)
            case TakeOver(origin):
                self._agreement.keeps(origin)
                self._add(CarryAll(origin))
            case CancelClaim(origin):
                self._cancel(CarryAll(origin))
                self._finished.discard(origin)
                self._reached.pop(origin, None)
                self._taken.pop(origin, None)  # it may let go of them itself
                self._agreement.lets_go(origin, self._world.clock.monotonic())
            case _:
                assert_never(action)

    def _tell_others(self, claimed: Claimed) -> None:
        message = message_of(claimed)
        for link in self._peers.links_by_incarnation().values():
            link.tell(message)

    def _add(self, job: Job) -> None:
        self._waiting += job.weight
        self._jobs.append(job)
        self._woken.set()

    def _cancel(self, job: Job) -> None:
        if self._under_way is not None and self._under_way[0] == job:
            self._under_way[1].cancel()
        if job in self._jobs:
            self._jobs.remove(job)
            self._waiting -= job.weight

    def _extents(self, origin: BrokerId) -> Iterable[tuple[str, int]]:
        """How far the queues of an origin go that are here."""
        count = 0
        for log in self._store.logs():
            if log.log_id.broker_id == origin and log.log_id.topic.startswith(TASKS):
                count += 1
                if count <= QUEUES_TOLD_MAX:
                    yield log.log_id.topic.removeprefix(TASKS), log.committed_no

    def _publish(self, claimed: Claimed) -> bool:
        """Whether it is on its way to the disk."""
        return self._keep(CLAIMS, [encode_claim(claimed)])

    def _keep(self, topic: Topic, payloads: list[bytes]) -> bool:
        try:
            self._own.publish(topic, Columns(payloads), self._world.clock.utc_us(), PERSISTENT)
            self._own.flush()
        except BusnodeError as error:
            logger.warning("%s is not kept: %s", topic, error)
            return False
        return True

    # What takes a while ---------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._jobs:
                job = self._jobs.popleft()
                self._waiting -= job.weight
                with trio.CancelScope() as scope:
                    self._under_way = job, scope
                    try:
                        await self._carry_out(job)
                    except (OSError, BusnodeError) as error:
                        logger.error("%s failed and is tried again: %s", job, error)
                        await self._world.clock.sleep(RETRY_S)
                        self._add(job)
                self._under_way = None

    async def _carry_out(self, job: Job) -> None:
        match job:
            case CarryAll(origin):
                reached = sum(end for _, end in self._extents(origin))
                await self._take_over(origin)
                self._finished.add(origin)
                self._reached[origin] = reached
            case Compare(origin):
                await self._compare(origin)
            case Told(message, sender):
                await self._look_at(message, sender)
            case _:
                assert_never(job)

    def _takeover(self, origin: BrokerId) -> Takeover:
        return Takeover(
            self._world.files,
            self._store,
            self._own,
            self._world.clock,
            self._mender,
            self._queues.remembered,
            self._is_known_as_finished,
            origin,
        )

    async def _take_over(
        self, origin: BrokerId, others: Mapping[str, Numbers] | None = None
    ) -> Takeover:
        """All queues of an origin; or these, but for what others have."""
        self._read_facts(origin)
        takeover = self._takeover(origin)
        if others is None:
            others = dict.fromkeys(takeover.queues, Numbers())
        await takeover.run(
            {queue: merged(self._known(origin, queue), those) for queue, those in others.items()}
        )
        for queue, numbers in takeover.finished.items():
            self._note(Fact("finished", origin, queue, numbers))
        # An heir takes no copies of tasks that it had accepted itself: they go on in its own log.
        returned = self._claims.heirs(origin)
        taken = {
            queue: {each: numbers for each, numbers in those.items() if each not in returned}
            for queue, those in takeover.taken.items()
        }
        for queue, those in taken.items():
            for earlier, numbers in those.items():
                self._note(Fact("elsewhere", earlier, queue, numbers))
        self._taken[origin] = {**self._taken.get(origin, {}), **taken}
        if takeover.count:
            self._tell(TASKS_TAKEN_OVER, origin=origin.hex(), count=takeover.count)
        if takeover.unreadable:
            self._tell(TASKS_UNREADABLE, origin=origin.hex(), count=takeover.unreadable)
        return takeover

    def _is_known_as_finished(self, queue: str, task_id: str) -> bool:
        home, number = parts_of(task_id)
        try:
            origin = BrokerId(bytes.fromhex(home))
        except ValueError:
            return False
        return number in self._agreement.finished.of(origin, queue)

    def _read_facts(self, writer: BrokerId) -> None:
        """What an incarnation knew whose tasks we take over. What one of its heirs had accepted is
        elsewhere no more: it came back to that one, which needs no copy of what is its own."""
        log = self._store.get(LogId(writer, FACTS))
        returned = self._claims.heirs(writer)
        for fact in () if log is None else read_facts(log):
            if fact.kind == "finished" or fact.origin not in returned:
                self._note(fact)

    def _note(self, fact: Fact) -> None:
        """It is so for good. What is news is written down for whoever comes after us."""
        agreement = self._agreement
        known = agreement.finished if fact.kind == "finished" else agreement.elsewhere
        if known.note(fact.origin, fact.queue, fact.numbers) and fact.origin != self._me:
            self._keep(FACTS, encode_fact(fact))

    def _held(self, origin: BrokerId, queue: str) -> Numbers:
        """What is here of an origin's queue, or was taken over by those whom we have taken over."""
        return merged(
            self._queues.extents(origin, queue),
            *(taken.get(queue, {}).get(origin, Numbers()) for taken in self._taken.values()),
        )

    def _known(self, origin: BrokerId, queue: str) -> Numbers:
        """What nobody has to take over."""
        return merged(
            self._held(origin, queue),
            self._agreement.finished.of(origin, queue),
            self._agreement.elsewhere.of(origin, queue),
        )

    # What several nodes know of -------------------------------------------------------------------

    def _link_of(self, origin: BrokerId) -> Link | None:
        """To the node that goes on with the tasks of an origin; None where it is this one, or there
        is none, or where nobody needs to be asked."""
        owner = self._claims.resolve(origin)
        if owner == origin and not self._agreement.is_leaving(origin):
            return None
        return None if owner is None else self._peers.links_by_incarnation().get(owner)

    async def _compare(self, origin: BrokerId) -> None:
        """Tell whoever has the tasks of an origin which of them are finished; it answers."""
        finished: dict[str, Numbers] = {}
        if origin in self._origins:
            takeover = self._takeover(origin)
            await takeover.look()
            finished = takeover.finished
        here, are_all = await self._queues.done_of(origin)
        for queue, numbers in here.items():
            finished[queue] = merged(numbers, finished.get(queue, Numbers()))
        for queue, numbers in finished.items():
            numbers.add_all(self._agreement.finished.of(origin, queue))
        link = self._link_of(origin)
        if link is None:
            return
        for queue, numbers in finished.items():
            self._tell_owner(link, origin, queue, numbers)
        if are_all and self._agreement.keeps(origin):
            self._tell(TASKS_GIVEN_UP, origin=origin.hex())

    def _tell_owner(self, link: Link, origin: BrokerId, queue: str, finished: Numbers) -> None:
        """What we are about to let go of we do not say to have."""
        is_leaving = self._agreement.is_leaving(origin)
        held = Numbers() if is_leaving else without(self._held(origin, queue), finished)
        tell(link, origin, queue, finished, held)

    def told(self, node: BrokerId, message: TaskFinished) -> None:
        """Another node tells what is finished of ours; or what it has, of what is its own."""
        sender = self._peers.writes_now(node)
        owner = self._claims.resolve(message.origin)
        if owner not in (self._me, sender):
            return
        if self._waiting > WAITING_MAX:
            logger.warning("%s tells more of finished tasks than can be looked at", node.hex())
            return
        self._add(Told(message, sender))

    async def _look_at(self, message: TaskFinished, sender: BrokerId) -> None:
        origin, queue = message.origin, message.queue
        log = self._store.get(LogId(origin, Topic(TASKS + queue)))
        heard = self._hearing.hear(sender, message, 0 if log is None else log.committed_no)
        if heard is None:
            return
        owner = self._claims.resolve(origin)
        if owner not in (self._me, sender):
            return
        self._note(Fact("finished", origin, queue, heard.finished))
        await self._queues.finish(origin, queue, heard.finished)
        if owner == self._me:
            self._note(Fact("elsewhere", origin, queue, heard.held))
            await self._answer(origin, queue, sender)
        else:
            await self._part(origin, queue, heard)

    async def _answer(self, origin: BrokerId, queue: str, sender: BrokerId) -> None:
        if CarryAll(origin) in self._jobs:
            # When that is done.
            self._add(Told(TaskFinished(origin, queue, [], [], [], 0, 1), sender))
            return
        done, _ = await self._queues.done_of(origin, queue)
        link = self._peers.links_by_incarnation().get(sender)
        if link is None or self._claims.resolve(origin) != self._me:
            return
        finished = merged(self._agreement.finished.of(origin, queue), done.get(queue, Numbers()))
        held = without(self._held(origin, queue), finished)
        elsewhere = without(self._agreement.elsewhere.of(origin, queue), finished, held)
        tell(link, origin, queue, finished, held, elsewhere)

    async def _part(self, origin: BrokerId, queue: str, heard: Account) -> None:
        """The owner knows that some are finished, has others, and knows where others are."""
        if self._agreement.is_leaving(origin):
            await self._queues.give_up(origin, queue, heard.held)
        if origin not in self._origins or not self._is_first_beside_owner(origin):
            return
        others = [numbers async for numbers in self._taken_on_the_way(origin, queue)]
        takeover = await self._take_over(origin, {queue: merged(*heard, *others)})
        link = self._link_of(origin)
        if takeover.count and link is not None:
            self._tell_owner(link, origin, queue, takeover.finished[queue])

    async def _taken_on_the_way(self, origin: BrokerId, queue: str) -> AsyncIterator[Numbers]:
        """What those have taken over of an origin's queue who had its tasks before their owner, as
        far as their logs are here: those go on with them in whose logs they are."""
        for heir in self._claims.heirs(origin):
            if heir in self._origins:
                takeover = self._takeover(heir)
                await takeover.look()
                yield takeover.taken.get(queue, {}).get(origin, Numbers())

    def _is_first_beside_owner(self, origin: BrokerId) -> bool:
        owner = self._claims.resolve(origin)
        holders = (each for each in self._peers.longest_copies(origin) if each != owner)
        return next(holders, None) == self._me


def _add_to(counts: dict[BrokerId, int], queues: dict[BrokerId, list[str]], log: Log) -> None:
    origin = log.log_id.broker_id
    counts[origin] = counts.get(origin, 0) + log.committed_no
    queues.setdefault(origin, []).append(log.log_id.topic.removeprefix(TASKS))
