"""Where logs can be read that this node does not write: at other nodes, and on its own disk.

Other nodes tell which logs they hold that our clients want, and how far each copy reaches. This
node's own copies are among the places from which they are fetched. What it has written itself, in
an earlier life, it reads elsewhere where somebody has more of it.
"""

from collections.abc import Callable, Container, Iterator
from typing import Final

import trio

from busnode.node.handed import Handed
from busnode.node.local_copies import LocalCopies
from busnode.node.mending import Mending
from busnode.node.peer_link import PeerLink
from busnode.node.remote_logs import RemoteLogs
from busnode.node.remote_reading import RemoteReading
from busnode.node.router import Listener, Router
from busnode.replication.remote_cursor import PIECE_BYTES
from busnode.segments.store import Log, Store
from busnode.wire.control import ExtentsHeld
from busnode.wire.errors import BadFrame
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BrokerId, LogId, MsgNo, Pattern, Topic

LOGS_OF_PEER_MAX: Final = 1_000_000
"""Logs of which one other node may tell; each takes some hundred bytes."""

STEPS_BEFORE_YIELD: Final = 200


class RemoteSources:
    """Who has which log, and who reads it. It is the `Fetcher` of all readings; run `local`."""

    def __init__(
        self,
        store: Store,
        router: Router,
        own: Container[BrokerId],
        current: Callable[[], BrokerId],
        mending: Mending,
    ) -> None:
        """`own` are the incarnations that this node has written; `current` is the one that it
        writes now."""
        self.logs = RemoteLogs()
        self.readings: dict[Listener, RemoteReading] = {}
        """What subscriptions read of other nodes' logs; they keep it."""
        self.local = LocalCopies(self.fetch_elsewhere, mending)
        self._store = store
        self._router = router
        self._own = own
        self._current = current

    def is_own(self, broker_id: BrokerId) -> bool:
        """Whether it is an incarnation of this node: other logs that it holds are copies."""
        return broker_id in self._own

    def is_longer_elsewhere(self, log: Log) -> bool:
        """Whether another node holds more of it, as after a loss of power a mirror may of what this
        node has written itself."""
        holder = self.logs.holder(log.log_id)
        return holder is not None and holder.logs[log.log_id][1] > log.committed_no

    def remote_logs(self, pattern: Pattern) -> Iterator[tuple[LogId, int, int]]:
        """Other nodes' logs that match, and those of this node that are longer elsewhere: the first
        and last number that anybody has of each."""
        for log_id, first_no, end_no in self.logs.matching(pattern):
            copy = self._store.get(log_id)
            if copy is None:
                yield log_id, first_no, end_no
            elif not self.is_own(log_id.broker_id) or self.is_longer_elsewhere(copy):
                reach = min(first_no, copy.first_no), max(end_no, copy.committed_no)
                yield log_id, *reach
        for log in self._router.logs(pattern):
            if not self.is_own(log.log_id.broker_id) and log.log_id not in self.logs:
                yield log.log_id, log.first_no, log.committed_no

    def reach(self, log_id: LogId) -> int | None:
        """The last number of a log that a node has which is up, or None when nobody has the log."""
        holder, log = self.logs.holder(log_id), self._store.get(log_id)
        ends = [log.committed_no] if log is not None else []
        if holder is not None:
            ends.append(MsgNo(holder.logs[log_id][1]))
        return max(ends, default=None)

    def fetch(
        self,
        reading: RemoteReading,
        log_id: LogId,
        after_no: int,
        since_us: int | None,
        length: int,
    ) -> bool:
        """See `remote_reading.Fetcher`."""
        reading.lacking.pop(log_id, None)
        holder = self.logs.holder(log_id)
        copy = self._store.get(log_id)
        if copy is not None and (holder is None or copy.committed_no >= holder.logs[log_id][1]):
            self.local.fetch(reading, copy, after_no, since_us, length)
            return True
        if holder is None:
            return False
        holder.fetch(reading, log_id, after_no, since_us, length)
        return True

    def fetch_elsewhere(
        self,
        reading: RemoteReading,
        log_id: LogId,
        after_no: int,
        last_no: int,
        lacking: PeerLink | None,
    ) -> bool:
        """A range that one holder lacks is a gap only if all others do, too."""
        asked = reading.lacking.setdefault(log_id, {})
        asked[lacking] = last_no
        copy = self._store.get(log_id)
        if None not in asked and copy is not None and copy.committed_no > after_no:
            self.local.fetch(reading, copy, after_no, None, PIECE_BYTES)
            return True
        for link in self.logs.holders(log_id):
            if link not in asked and link.logs[log_id][1] > after_no:
                link.fetch(reading, log_id, after_no, None, PIECE_BYTES)
                return True
        return False

    def disowned(self, broker_id: BrokerId) -> None:
        """What was taken for an incarnation of this node is another's."""
        for reading in self.readings.values():
            there = [each for each in reading.subscription.cursors if each.broker_id == broker_id]
            for log_id in there:
                reading.fetch_from_now_on(log_id)

    # What other nodes tell ------------------------------------------------------------------------

    def arrived(self, link: PeerLink, handed: Handed) -> None:
        """Another node has committed something that our clients want."""
        log_id = handed.log_id
        if self.is_own(log_id.broker_id):
            return
        self.logs.advance(link, log_id, handed.last_no)
        for listener in self._router.route(log_id.topic.encode()).clients:
            self.readings[listener].arrived(handed)
            listener.pump()

    def passed_over(self, link: PeerLink, log_id: LogId, last_no: int) -> None:
        """A node could not send what it has committed: it is fetched, from there when that is
        possible again, or from another one."""
        if self.is_own(log_id.broker_id) or not 1 <= last_no < U64_MAX:
            return
        self.logs.advance(link, log_id, last_no)
        first_no, end_no = link.logs[log_id]
        for listener in self._router.route(log_id.topic.encode()).clients:
            self.readings[listener].reaches(log_id, first_no, end_no)
            listener.pump()

    def extents(self, link: PeerLink, message: ExtentsHeld) -> None:
        """Another node tells which logs it holds that our clients want, and how far."""
        for broker_id, topic, first_no, end_no in message.extents:
            route = self._router.route(topic.encode())
            log_id = LogId(broker_id, route.topic)
            if not 1 <= first_no <= end_no + 1 <= U64_MAX or len(link.logs) >= LOGS_OF_PEER_MAX:
                raise BadFrame(f"{len(link.logs)} logs, and one from {first_no} to {end_no}")
            if self.is_own(broker_id):
                if self._is_behind(log_id, end_no):
                    self.logs.reaches(link, log_id, first_no, end_no)
                    self._own_reaches(log_id, first_no, end_no)
                continue
            self.logs.reaches(link, log_id, first_no, end_no)
            for listener in route.clients:
                self.readings[listener].reaches(log_id, first_no, end_no)

    def _own_reaches(self, log_id: LogId, first_no: int, end_no: int) -> None:
        """Somebody, perhaps we, has more of a log of ours that is finished. Who fetches it goes on,
        and where nothing is left of it here everybody does; who reads it here goes on when it was
        completed."""
        is_here = self._store.get(log_id) is not None
        for listener in self._router.route(log_id.topic.encode()).clients:
            reading = self.readings[listener]
            is_read_here = is_here or log_id in reading.subscription.cursors
            if log_id in reading.cursors or (reading.taken_up and not is_read_here):
                reading.reaches(log_id, first_no, end_no)

    def _is_behind(self, log_id: LogId, end_no: int) -> bool:
        """Whether another node has more of a log of ours that is finished: a mirror may have synced
        what we had not when the power was cut."""
        if log_id.broker_id == self._current():
            return False
        log = self._store.get(log_id)
        return log is None or log.committed_no < end_no

    def copies_moved(self, logs: list[Log]) -> list[Log]:
        """Copies that we hold have grown: our own clients may read on. Those of other nodes' logs:
        others are told of them."""
        others: list[Log] = []
        for log in logs:
            if self.is_own(log.log_id.broker_id):
                self._own_reaches(log.log_id, log.first_no, log.committed_no)
                continue
            others.append(log)
            for listener in self._router.route(log.log_id.topic.encode()).clients:
                self.readings[listener].reaches(log.log_id, log.first_no, log.committed_no)
        return others

    async def forget(self, is_wanted: Callable[[Topic], bool]) -> None:
        """Forget logs that nobody here wants any more."""
        for step, log_id in enumerate(self.logs, start=1):
            if not is_wanted(log_id.topic):
                self.logs.forget(log_id)
            if step % STEPS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
