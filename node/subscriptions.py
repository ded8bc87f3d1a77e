"""The subscriptions of this node's clients: made, fed with logs, and ended."""

from collections.abc import Iterator
from typing import Final

import trio

from busnode.node.config import NodeConfig
from busnode.node.durable_positions import (
    DurablePositions,
    Position,
    flatten,
    nest,
    topic_of,
)
from busnode.node.queue_group import QueueGroup
from busnode.node.router import Router
from busnode.node.session import ClientSession
from busnode.node.subscription import Subscription
from busnode.segments.store import Log
from busnode.wire.control import Credit, Gap, Subscribe, Subscribed, encode_control
from busnode.wire.errors import FrameTooLarge, LimitReached, Refused, Unavailable
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import MsgNo, Pattern
from busnode.wire.topics import check_pattern, matches
from busnode.world.entropy import Entropy

RETRY_S: Final = 1.0
"""When to try again after the disk has failed."""

STEPS_BEFORE_YIELD: Final = 200
"""Topics that a new subscription looks at, and logs that it takes up, before others have their
turn."""

PLACES_MAX: Final = 500_000
"""Places in logs that one client's subscriptions may have together: each takes 206 bytes."""

PLACES_COUNTED_EVERY: Final = 64
"""Subscriptions after which they are counted again."""

STEPS_BY_TIME: Final = 20
"""Finding a moment in a log reads from its disk: it counts for so many."""


class Subscriptions:
    def __init__(
        self, router: Router, durable: DurablePositions, entropy: Entropy, config: NodeConfig
    ) -> None:
        self._router = router
        self._durable = durable
        self._entropy = entropy
        self._config = config
        self._by_session: dict[ClientSession, dict[int, Subscription]] = {}
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
            _check_places(mine)
        if message.durable is not None:
            topic_of(message.durable)
        pattern = check_pattern(message.pattern)
        subscription = mine[message.subscription] = Subscription(
            message.subscription,
            session.client_no,
            pattern,
            session.outgoing,
            message.credit_bytes,
            message.durable,
        )
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
        for count, gap in enumerate(self._unknown(subscription, position)):
            session.send(encode_control(gap))
            if count % STEPS_BEFORE_YIELD == STEPS_BEFORE_YIELD - 1:
                await trio.lowlevel.checkpoint()
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
            kept = self._durable.get(subscription.durable)
            if kept is not None:
                start, given = None, kept
        self._router.add(subscription)  # from here on a new log is read from its beginning
        position = dict(given)
        for logs in self._router.look_through(subscription.pattern):
            steps += 1 + len(logs) * (STEPS_BY_TIME if isinstance(start, int) else 1)
            if steps >= STEPS_BEFORE_YIELD:
                steps = 0
                _check_places(mine)
                await trio.lowlevel.checkpoint()
            for log in logs:
                if log.log_id not in subscription.cursors:
                    after_no = _place(log, start, given)
                    position[log.log_id] = after_no
                    subscription.read(log, after_no)
        return position

    def _unknown(self, subscription: Subscription, position: Position) -> Iterator[Gap]:
        """Cursors that mean nothing here: in a log that nobody holds, or behind the end of one."""
        if subscription in self._group_of:
            return
        for log_id, msg_no in position.items():
            cursor = subscription.cursors.get(log_id)
            if cursor is None and matches(subscription.pattern, log_id.topic):
                reason = "unknown: no copy of this log is left"
            elif cursor is not None and msg_no > cursor.log.committed_no:
                reason = f"unknown: this copy of the log ends with {cursor.log.committed_no}"
            else:
                continue
            yield Gap(subscription.number, *log_id, min(msg_no + 1, U64_MAX), 0, reason)

    async def _join(self, member: Subscription, name: str, message: Subscribe) -> Position:
        key = name, member.pattern
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = QueueGroup(name, member.pattern, self._entropy)
            self._router.add(group)
            # Its members have no position to come back with: who gives none means from now on.
            start = "latest" if message.start is None and not message.position else message.start
            for log in self._router.logs(member.pattern):
                group.read(log, _place(log, start, flatten(message.position)))
        self._group_of[member] = group
        group.join(member)
        await trio.lowlevel.checkpoint()
        return {}

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

    def leave(self, session: ClientSession) -> None:
        for subscription in self._by_session.pop(session, {}).values():
            self._end(session, subscription)

    def _end(self, session: ClientSession, subscription: Subscription) -> None:
        session.outgoing.forget(subscription)
        group = self._group_of.pop(subscription, None)
        if group is None:
            self._router.remove(subscription)
            subscription.give_back()
            return
        group.leave(subscription)
        if not group.members:
            self._router.remove(group)
            del self._groups[group.name, group.pattern]


def _check_places(mine: dict[int, Subscription]) -> None:
    places = sum(len(each.cursors) for each in mine.values())
    if places > PLACES_MAX:
        raise LimitReached(f"{places} places in logs; one client may have {PLACES_MAX}")


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
