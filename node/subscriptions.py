"""The subscriptions of this node's clients: made, fed with logs, and ended."""

from typing import Final, Protocol

import trio

from busnode.node.access import forbidden
from busnode.node.config import NodeConfig
from busnode.node.durable_positions import (
    DurablePositions,
    Position,
    Registration,
    flatten,
    nest,
    topic_of,
)
from busnode.node.event_kinds import GAP, SLOW
from busnode.node.events import Tell, log_only
from busnode.node.queue_group import QueueGroup
from busnode.node.remote_reading import RemoteReading
from busnode.node.remote_sources import RemoteSources
from busnode.node.router import Router
from busnode.node.session import ClientSession
from busnode.node.subscription import Mender, Subscription, Witness
from busnode.node.unknown_cursors import UnknownCursor, UnknownCursors
from busnode.security.rules import Rights
from busnode.segments.store import Log
from busnode.wire.control import Credit, Subscribe, Subscribed, encode_control
from busnode.wire.errors import FrameTooLarge, LimitReached, Refused, Unavailable
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import LogId, MsgNo, Pattern
from busnode.wire.topics import check_pattern, is_system, matches
from busnode.world.world import World

RETRY_S: Final = 1.0
"""When to try again after the disk has failed."""

STEPS_BEFORE_YIELD: Final = 200
"""Topics that a new subscription looks at, and logs that it takes up, before others have their
turn."""

PLACES_MAX: Final = 500_000
"""Places in logs that one client's subscriptions may have together: each takes 206 bytes."""

PLACES_COUNTED_EVERY: Final = 64
"""Subscriptions after which they are counted again."""

LOOK_EVERY_S: Final = 1.0
"""How often cursors are looked at whose logs nobody has."""

STEPS_BY_TIME: Final = 20
"""Finding a moment in a log reads from its disk: it counts for so many."""

PLACING_S: Final = 2.0
"""How long other nodes may take to find a moment in their logs. What they have not found by then
comes up late."""


class TellingWitness(Witness):
    """Makes events of what one client goes through."""

    def __init__(self, tell: Tell, client: str, pattern: Pattern) -> None:
        self._tell = tell
        self._client = client
        self._pattern = pattern

    def gap(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        numbers = {"first_no": first_no, "last_no": last_no or "?"}
        self._tell(GAP, client=self._client, log=log_id, **numbers, why=reason)

    def slow(self, what: str) -> None:
        self._tell(SLOW, client=self._client, pattern=self._pattern, what=what)


class Cluster(Protocol):
    """The other nodes, as far as subscriptions need them."""

    @property
    def sources(self) -> RemoteSources: ...

    @property
    def mending(self) -> Mender: ...

    async def want(self, pattern: Pattern) -> None:
        """Ask other nodes for what matches; returns when they have told what they hold, or have
        taken too long."""
        ...

    def unwant(self, pattern: Pattern) -> None: ...

    def want_queue(self, pattern: Pattern, queue: str) -> None:
        """One more client here is a member of the group."""
        ...

    def unwant_queue(self, pattern: Pattern, queue: str) -> None: ...

    async def find_registration(self, name: str) -> None:
        """Learn what other nodes have kept under a name; returns when they have told it, or have
        taken too long."""
        ...

    @property
    def expects_others(self) -> bool:
        """Whether a node that is not there may come, and bring logs along."""
        ...

    def is_finished(self, log_id: LogId) -> bool:
        """Whether a log is another node's that is not there: nobody writes it here and now."""
        ...


class Subscriptions:
    def __init__(
        self,
        router: Router,
        durable: DurablePositions,
        world: World,
        config: NodeConfig,
        cluster: Cluster,
        tell: Tell = log_only,
    ) -> None:
        self._tell = tell
        self._router = router
        self._cluster = cluster
        self._sources = cluster.sources
        self._clock = world.clock
        self._durable = durable
        self._entropy = world.entropy
        self._config = config
        self.readings = cluster.sources.readings
        self._by_session: dict[ClientSession, dict[int, Subscription]] = {}
        self._unknown = UnknownCursors()
        self._groups: dict[tuple[str, Pattern], QueueGroup] = {}
        self._group_of: dict[Subscription, QueueGroup] = {}

    def of(self, session: ClientSession) -> dict[int, Subscription]:
        return self._by_session.get(session, {})

    @property
    def groups(self) -> list[QueueGroup]:
        return list(self._groups.values())

    async def subscribe(self, session: ClientSession, message: Subscribe) -> Position:
        """Take up a subscription; the client learns its complete position before any message."""
        mine = self._by_session.setdefault(session, {})
        if message.subscription in mine:
            raise Refused(f"subscription {message.subscription} is there already")
        if len(mine) >= self._config.subscriptions_max:
            raise LimitReached(f"{len(mine)} subscriptions; the limit for one client")
        if len(mine) % PLACES_COUNTED_EVERY == 0:
            self._check_places(mine)
        if message.durable is not None:
            topic_of(message.durable)
        pattern = check_pattern(message.pattern)
        _check_rights(session.rights, pattern, is_member=message.queue is not None)
        subscription = mine[message.subscription] = Subscription(
            message.subscription,
            session.client_no,
            pattern,
            session.outgoing,
            message.credit_bytes,
            message.durable,
            mender=self._cluster.mending,
            rights=session.rights,
        )
        if session.account is not None:
            session.account.subscriptions += 1
        if not is_system(pattern):  # who listens to events and is slow makes no more of them
            subscription.witness = TellingWitness(self._tell, session.who, pattern)
        if message.queue is None:
            try:
                position = await self._take_up(subscription, message, mine)
            except Refused:
                self.unsubscribe(session, subscription.number)
                raise
            except OSError as error:
                self.unsubscribe(session, subscription.number)
                text = f"a log cannot be read: {error}"
                raise Unavailable(text, retry_after_s=RETRY_S) from error
        else:
            position = await self._join(subscription, message.queue, message)
        if len(position) >= STEPS_BEFORE_YIELD:
            await trio.lowlevel.checkpoint()
        try:
            subscribed = encode_control(Subscribed(subscription.number, nest(position)))
        except FrameTooLarge as error:
            self.unsubscribe(session, subscription.number)
            raise LimitReached(f"{len(position)} logs match: {error.text}") from error
        session.send(subscribed)
        if message.queue is None:
            await self._tell_unknown(subscription, position)
        subscription.open()
        group = self._group_of.get(subscription)
        if group is not None:
            group.has_credit()
        subscription.pump()
        return position

    async def _take_up(
        self, subscription: Subscription, message: Subscribe, mine: dict[int, Subscription]
    ) -> Position:
        """Read all logs that match, each from its place."""
        start: str | int | None = message.start
        steps = sum(map(len, message.position.values()))
        if steps >= STEPS_BEFORE_YIELD:
            await trio.lowlevel.checkpoint()
        given = flatten(message.position)
        if subscription.durable is not None:
            await self._cluster.find_registration(subscription.durable)
            self._look_into_copies(subscription.durable)
            kept = self._durable.get(subscription.durable)
            if kept is not None:
                start, given = None, kept
        # From here on a new log is read from its beginning, here and at other nodes.
        self._router.add(subscription.pattern, subscription)
        now_us = self._clock.utc_us()
        reading = RemoteReading(subscription, self._sources, start, given, now_us)
        self.readings[subscription] = reading
        await self._cluster.want(subscription.pattern)
        if len(given) >= STEPS_BEFORE_YIELD:
            self._check_places(mine)
        position = dict(given)
        elsewhere: list[Log] = []
        for logs in self._router.look_through(subscription.pattern):
            steps += 1 + len(logs) * (STEPS_BY_TIME if isinstance(start, int) else 1)
            if steps >= STEPS_BEFORE_YIELD:
                steps = 0
                self._check_places(mine)
                await trio.lowlevel.checkpoint()
            for log in logs:
                if not subscription.may_have(log.log_id.topic):
                    break  # all of them are of one topic
                if not self._sources.is_own(log.log_id.broker_id):
                    continue  # this copy is one of the places from which it is fetched
                if self._sources.is_longer_elsewhere(log):
                    elsewhere.append(log)
                elif log.log_id not in subscription.cursors:
                    position[log.log_id] = after_no = _place(log, start, given)
                    subscription.read(log, after_no)
        for log_id, first_no, end_no in self._sources.remote_logs(subscription.pattern):
            steps += 1
            if steps >= STEPS_BEFORE_YIELD:
                steps = 0
                self._check_places(mine)
                await trio.lowlevel.checkpoint()
            if not subscription.may_have(log_id.topic):
                continue
            if log_id not in subscription.cursors:  # else it got longer elsewhere meanwhile
                reading.take_up(log_id, first_no, end_no)
        for log in elsewhere:
            if log.log_id not in reading.cursors:  # it was completed here meanwhile
                position[log.log_id] = after_no = _place(log, start, given)
                subscription.read(log, after_no)
        with trio.move_on_after(PLACING_S):
            await reading.begin()
        position.update(reading.position())
        return position

    def _look_into_copies(self, name: str) -> None:
        """The newest registration of a name may be in a copy of another node's log: that node was
        its home before, and is gone."""
        for log in self._router.logs(Pattern(topic_of(name))):
            if not self._sources.is_own(log.log_id.broker_id):
                self._durable.load(log)

    def registration(self, name: str) -> Registration | None:
        """What this node has kept under a name, or holds a copy of."""
        self._look_into_copies(name)
        return self._durable.registration(name)

    def learn(self, name: str, registration: Registration) -> None:
        """Another node has kept this under a name."""
        self._durable.learn(name, registration)

    def _check_places(self, mine: dict[int, Subscription]) -> None:
        places = sum(map(self._places, mine.values()))
        if places > PLACES_MAX:
            raise LimitReached(f"{places} places in logs; one client may have {PLACES_MAX}")

    def _places(self, subscription: Subscription) -> int:
        """Its places in logs, or what it was given for them when that is more: it is kept, too."""
        places = len(subscription.cursors)
        reading = self.readings.get(subscription)
        return places if reading is None else max(places + len(reading.cursors), len(reading.given))

    async def _tell_unknown(self, subscription: Subscription, position: Position) -> None:
        """Cursors that mean nothing: in a log that nobody holds, or behind the end of one whose
        origin is there. Whoever holds such a log, or more of it, is given time to tell of it."""
        unknown: list[UnknownCursor] = []
        for step, (log_id, msg_no) in enumerate(position.items(), start=1):
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
            if not matches(subscription.pattern, log_id.topic):
                continue
            cursor = UnknownCursor(subscription, log_id, msg_no)
            if (reason := self._unknown_why(cursor)) is None:
                continue
            if self._cluster.expects_others:
                unknown.append(cursor)
            else:
                _tell_unknown(cursor, reason)
        self._unknown.add(unknown, self._clock.monotonic())

    def _unknown_why(self, cursor: UnknownCursor) -> str | None:
        """Why a cursor means nothing now; None when it does. Of a finished log somebody may have
        had more, now gone, that was never acked as mirrored: who has read that lacks nothing. A log
        that its client may not have is answered like one that is nowhere."""
        is_there = cursor.subscription.may_have(cursor.log_id.topic)
        end_no = self._sources.reach(cursor.log_id) if is_there else None
        if end_no is None:
            return "unknown: no node that is up has this log"
        if cursor.msg_no > end_no and not self._cluster.is_finished(cursor.log_id):
            return f"unknown: no copy of the log goes beyond {end_no}"
        return None

    async def run(self) -> None:
        """Tell of cursors in logs with which nobody has come back in time."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            for step, cursor in enumerate(self._unknown.due(self._clock.monotonic()), start=1):
                reason = self._unknown_why(cursor)
                if cursor.subscription.opened and reason is not None:
                    _tell_unknown(cursor, reason)
                    cursor.subscription.pump()
                if step % STEPS_BEFORE_YIELD == 0:
                    await trio.lowlevel.checkpoint()

    async def may_have_more(self, session: ClientSession) -> bool:
        """A client has more rights than before: its subscriptions get what is new to them from its
        beginning, as they would if the client came back. False where it has to, because one of them
        is just being taken up."""
        subscriptions = list(self.of(session).values())
        if not all(subscription.opened for subscription in subscriptions):
            return False
        for subscription in subscriptions:
            subscription.rights = session.rights
        self._router.rights_changed()
        for subscription in subscriptions:
            if subscription not in self._group_of:
                await self._take_up_allowed(subscription)
                subscription.pump()
        return True

    async def _take_up_allowed(self, subscription: Subscription) -> None:
        def is_new(log_id: LogId) -> bool:
            return log_id not in subscription.cursors and subscription.may_have(log_id.topic)

        for step, logs in enumerate(self._router.look_through(subscription.pattern), start=1):
            for log in logs:
                if self._sources.is_own(log.log_id.broker_id) and is_new(log.log_id):
                    subscription.read(log, 0)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
        reading = self.readings.get(subscription)
        for log_id, _, end_no in list(self._sources.remote_logs(subscription.pattern)):
            if reading is not None and log_id not in reading.cursors and is_new(log_id):
                reading.from_the_beginning(log_id, end_no)

    async def _join(self, member: Subscription, name: str, message: Subscribe) -> Position:
        # Its members have no position to come back with: who gives none means from now on.
        start = "latest" if message.start is None and not message.position else message.start
        group = self._groups.get((name, member.pattern))
        if group is None:
            group = self._open_group(name, member.pattern, start, flatten(message.position))
        self._group_of[member] = group
        group.join(member)
        self._cluster.want_queue(member.pattern, name)
        await trio.lowlevel.checkpoint()
        return {}

    def _open_group(
        self, name: str, pattern: Pattern, start: str | int | None, given: Position
    ) -> QueueGroup:
        group = self._groups[name, pattern] = QueueGroup(
            name, pattern, self._entropy, self._cluster.mending
        )
        self._router.add(pattern, group, is_group=True)
        for log in self._router.logs(pattern):
            if self._sources.is_own(log.log_id.broker_id):
                group.read(log, _place(log, start, given))
        return group

    def join_peer(self, member: Subscription, name: str) -> None:
        """Another node has members of a group."""
        group = self._groups.get((name, member.pattern))
        if group is None:
            group = self._open_group(name, member.pattern, "latest", {})
        self._group_of[member] = group
        member.open()
        group.join(member)
        group.pump()

    def leave_peer(self, member: Subscription) -> None:
        """It has none any more."""
        self._leave_group(member, self._group_of.pop(member))

    def credit_peer(self, member: Subscription, credit_bytes: int) -> None:
        member.add_credit(credit_bytes)
        self._group_of[member].has_credit()

    def finished_by_peer(self, member: Subscription, log_id: LogId, first_no: int) -> None:
        """A client of another node is done with what was sent there."""
        member.finished(log_id, first_no)
        self._group_of[member].has_credit()

    def group(self, name: str, pattern: Pattern) -> QueueGroup | None:
        return self._groups.get((name, pattern))

    def add_credit(self, session: ClientSession, message: Credit) -> None:
        subscription = self.of(session).get(message.subscription)
        if subscription is None:
            return  # it was ended while this was on its way
        subscription.add_credit(message.credit_bytes)
        group = self._group_of.get(subscription)
        if group is not None:
            group.has_credit()
        subscription.pump()

    def unsubscribe(self, session: ClientSession, number: int) -> None:
        subscription = self.of(session).pop(number, None)
        if subscription is not None:
            self._end(session, subscription)

    def leave_groups(self, session: ClientSession) -> None:
        """Others shall have what it would not get."""
        for number, subscription in list(self.of(session).items()):
            if subscription in self._group_of:
                self.unsubscribe(session, number)

    def leave(self, session: ClientSession) -> None:
        for subscription in self._by_session.pop(session, {}).values():
            self._end(session, subscription)

    def _end(self, session: ClientSession, subscription: Subscription) -> None:
        if session.account is not None:
            session.account.subscriptions -= 1
        session.outgoing.forget(subscription)
        self._unknown.forget(subscription)
        group = self._group_of.pop(subscription, None)
        if group is not None:
            self._leave_group(subscription, group)
            self._cluster.unwant_queue(group.pattern, group.name)
            return
        self._router.remove(subscription.pattern, subscription)
        reading = self.readings.pop(subscription, None)
        if reading is not None:
            reading.close()
            self._cluster.unwant(subscription.pattern)
        subscription.give_back()

    def _leave_group(self, member: Subscription, group: QueueGroup) -> None:
        group.leave(member)
        if not group.members:
            self._router.remove(group.pattern, group)
            del self._groups[group.name, group.pattern]


def _check_rights(rights: Rights | None, pattern: Pattern, *, is_member: bool) -> None:
    """Forbidden unless there can be something for it. A member of a queue group must be allowed to
    have all that the pattern matches: what it may not have would be lost to the others."""
    if rights is None:
        return
    allowed = rights.covers if is_member else rights.reaches
    if not allowed("subscribe", pattern):
        raise forbidden(rights, "subscribe", pattern)


def _tell_unknown(cursor: UnknownCursor, reason: str) -> None:
    subscription, log_id, msg_no = cursor
    subscription.report(log_id, min(msg_no + 1, U64_MAX), 0, reason)


def _place(log: Log, start: str | int | None, given: Position) -> MsgNo:
    """After which number a subscription reads a log."""
    match start:
        case None:
            return given.get(log.log_id, MsgNo(0))
        case "latest":
            return log.committed_no
        case "earliest":
            return MsgNo(log.first_no - 1)
        case int():
            return MsgNo(log.first_at(start) - 1)
        case _:
            raise AssertionError(start)
