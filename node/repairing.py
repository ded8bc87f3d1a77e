"""Copies that are missing are made again: nodes tell what they hold, and whoever should, sends."""

from collections.abc import Callable, Iterable
from typing import Final

import trio

from busnode.node.event_kinds import REPAIR_BEGUN, REPAIR_DONE, REPAIR_STOPPED
from busnode.node.events import Tell, log_only
from busnode.node.mirroring import MirrorStream
from busnode.node.peer_link import PeerLink
from busnode.node.subscription import Mender
from busnode.replication.mirror_choice import rendezvous
from busnode.replication.mirror_progress import SILENT_S
from busnode.replication.repair import Held, Patience, Push, plan_repairs
from busnode.replication.throttle import Throttle
from busnode.segments.store import Store
from busnode.wire.control import HoldingsTold, Mirrored
from busnode.wire.ids import BrokerId
from busnode.world.clock import Clock

LOOK_EVERY_S: Final = 2.0
STEPS_BEFORE_YIELD: Final = 500
ROWS_MAX: Final = 1000
"""Incarnations told of: more than a node meets within a week of restarting every ten minutes."""

MOST_MAX: Final = 10 * ROWS_MAX
"""Incarnations of which it is remembered how much there was; those told of longest ago go."""

PUSHES_MAX: Final = 2
"""Repairs at once: they are background work."""


class Repairing:
    """What all nodes hold, as this one knows it, and what it copies to others."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        me: BrokerId,
        copies: int,
        after_s: float,
        throttle: Throttle | None,
        current: Callable[[], BrokerId],
        own: Iterable[BrokerId],
        retain_s: Callable[[BrokerId], float],
        mender: Mender | None = None,
        tell: Tell = log_only,
    ) -> None:
        """`copies` are wanted in all, the origin's own included. `current` is the incarnation that
        this node writes now; `own` are all that it has written, as far as it knows. `retain_s`
        tells how long an incarnation's logs are kept."""
        self._current = current
        self._own = own
        self._retain_s = retain_s
        self._mender = mender
        self._tell = tell
        self._throttle = throttle
        self.streams: dict[Push, MirrorStream] = {}
        self.repaired = 0
        self._store = store
        self._clock = clock
        self._me = me
        self._copies = copies
        self._patience = Patience(after_s)
        self._made: dict[Push, Held] = {}
        """What was held here when a node was sent all of it. Where that has not changed it lacks
        nothing that could be sent: what it does not have has expired, or cannot be read."""
        self._links: dict[BrokerId, PeerLink] = {}
        self._holdings: dict[BrokerId, dict[BrokerId, Held]] = {}
        self._most: dict[BrokerId, dict[str, int]] = {}
        """By incarnation, what each node was known to hold of it, by its name."""
        self.written: dict[BrokerId, BrokerId] = {}
        """By node, the incarnation that it writes now."""

    def linked(self, link: PeerLink) -> None:
        self._links[link.broker_id] = link
        link.tell(self._told())

    def unlinked(self, link: PeerLink) -> None:
        del self._links[link.broker_id]
        for push in [each for each in self.streams if each.target == link.broker_id]:
            self._stop(push, "the link to it is gone")
        for push in [each for each in self._made if each.target == link.broker_id]:
            del self._made[push]

    def left(self, node: BrokerId) -> None:
        """A node is gone, and with it what it holds."""
        self._holdings.pop(node, None)
        self.written.pop(node, None)

    def holders(self, broker_id: BrokerId) -> list[BrokerId]:
        """Other nodes that hold logs of an incarnation."""
        return [
            node for node, held in self._holdings.items() if broker_id in held and node != self._me
        ]

    def longest_copies(self, broker_id: BrokerId) -> list[BrokerId]:
        """Nodes that hold logs of an incarnation which this one holds, too, by what they write now.
        Who has most of them comes first, in the same order wherever it is asked."""
        holders = {
            self._current() if node == self._me else self.writes_now(node): held[broker_id]
            for node, held in self._holdings.items()
            if broker_id in held
        }
        order = rendezvous(broker_id, holders) or [self._current()]  # it has not counted yet
        return sorted(order, key=lambda node: -holders.get(node, Held()).messages)

    def told(self, node: BrokerId, message: HoldingsTold) -> bool:
        """Another node tells what it holds; whether it holds what it did not hold before."""
        before = self._holdings.get(node, {})
        self.written[node] = message.written
        self._holdings[node] = {row[0]: Held(*row[1:]) for row in message.holdings}
        if node in self._links:
            self._note_most(self._links[node].name, self._holdings[node])
        return not self._holdings[node].keys() <= before.keys()

    def _note_most(self, name: str, held: dict[BrokerId, Held]) -> None:
        most = self._most
        for broker_id, each in held.items():
            most[broker_id] = {**most.pop(broker_id, {}), name: each.messages}
        while len(most) > MOST_MAX:
            del most[next(iter(most))]

    def is_more_away(self, broker_id: BrokerId, name: str) -> bool:
        """Whether a node that is gone had more of an incarnation's logs than all that are here. One
        that has come back without them has lost them: nobody need wait for it. This node, of that
        name, is here: what was heard under its name was a clone of it, or itself before."""
        # One whose link has just broken is not here, though it may not be known to have left yet.
        live = (self._holdings.get(node, {}) for node in (self._me, *self._links))
        here = (held[broker_id].messages for held in live if broker_id in held)
        present = {name, *(link.name for link in self._links.values())}
        known = self._most.get(broker_id, {}).items()
        return max(here, default=0) < max(
            (count for whose, count in known if whose not in present), default=0
        )

    async def answered(self, link: PeerLink, message: Mirrored) -> None:
        """A node has synced something that it was sent for repair."""
        push = Push(message.broker_id, link.broker_id)
        stream = self.streams.get(push)
        if stream is None:
            return
        await stream.answered(message)
        if self.streams.get(push) is stream and stream.progress.in_force:
            self._done(push)

    def _done(self, push: Push) -> None:
        self.repaired += 1
        at = self.streams[push].link.name
        self._tell(REPAIR_DONE, of=push.broker_id.hex(), at=at)
        # It may have expired meanwhile.
        self._made[push] = self._holdings[self._me].get(push.broker_id, Held())
        self._end(push)

    def whole(self, broker_id: BrokerId) -> None:
        """Something of an incarnation can be read that could not be: who lacks it may have it."""
        for push in [each for each in self._made if each.broker_id == broker_id]:
            del self._made[push]

    def writes_now(self, node: BrokerId) -> BrokerId:
        """The incarnation that a node writes: as far as we know the one that it has greeted us
        with. After its disk has failed it is another, and what it wrote before is finished."""
        return self.written.get(node, node)

    def is_written(self, broker_id: BrokerId, by_other_than: BrokerId | None) -> bool:
        """Whether another node than this one writes logs of that incarnation now."""
        return any(
            written == broker_id and node != by_other_than for node, written in self.written.items()
        )

    def refused(self, link: PeerLink) -> None:
        """A node does not take what it was offered: it is tried again in its time."""
        for push, stream in list(self.streams.items()):
            if push.target == link.broker_id and not stream.has_begun:
                self._stop(push, "it refuses")

    async def run(self) -> None:
        while True:
            await self._count()
            self._look()
            await self._clock.sleep(LOOK_EVERY_S)

    async def _count(self) -> None:
        # Of its own incarnations also those whose logs its disk has lost: it wants them back.
        mine = dict.fromkeys(self._own, Held(own=True))
        for step, log in enumerate(self._store.logs(), start=1):
            broker_id = log.log_id.broker_id
            mine[broker_id] = mine.get(broker_id, Held()).plus(log.log_id, log.committed_no)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
        if mine != self._holdings.get(self._me):
            self._holdings[self._me] = mine
            told = self._told()
            for link in self._links.values():
                link.tell(told)

    def _told(self) -> HoldingsTold:
        mine = self._holdings.get(self._me, {})
        newest = list(mine.items())[-ROWS_MAX:]
        rows = [(each, h.logs, h.messages, h.digest, h.own) for each, h in newest]
        return HoldingsTold(self._current(), rows)

    def _look(self) -> None:
        now = self._clock.monotonic()
        # One that turned out to lack only what nobody has may have nothing more to answer.
        for push in [p for p, stream in self.streams.items() if stream.progress.in_force]:
            self._done(push)
        for push in [p for p, stream in self.streams.items() if stream.progress.is_silent(now)]:
            self._stop(push, f"silent for {SILENT_S:g} s")
        live = {self._me, *self._links}
        holdings = {node: held for node, held in self._holdings.items() if node in live}
        written = {self._current(), *(self.writes_now(node) for node in self._links)}
        mine = self._holdings.get(self._me, {})
        pushes = [
            push
            for push in plan_repairs(self._me, self._copies, holdings, written)
            if self._made.get(push) != mine[push.broker_id]
        ]

        def urgent(push: Push) -> bool:
            return holdings[push.target].get(push.broker_id, Held()).own

        for push in self._patience.due(pushes, now, urgent):
            link = self._links.get(push.target)
            if link is not None and push not in self.streams and len(self.streams) < PUSHES_MAX:
                self._tell(REPAIR_BEGUN, of=push.broker_id.hex(), at=link.name)
                self.streams[push] = MirrorStream(
                    link, push.broker_id, self._store, self._clock,
                    self._retain_s(push.broker_id), self._throttle, self._mender,
                )  # fmt: skip

    def resume(self) -> bool:
        """As that of mirrors."""
        pausing = [stream.resume() for stream in self.streams.values()]  # all of them, each time
        return any(pausing)

    def _stop(self, push: Push, why: str) -> None:
        at = self.streams[push].link.name
        self._tell(REPAIR_STOPPED, of=push.broker_id.hex(), at=at, why=why)
        self._end(push)

    def _end(self, push: Push) -> None:
        self.streams.pop(push).end()
