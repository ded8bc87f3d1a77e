"""Copies of other nodes' logs that this node holds as their mirror.

The same bytes go into the same files under the origin's brokerId. A copy has one writer, the
session of its origin; what it has synced it tells that one, and does not broadcast.
"""

from typing import Final, Protocol

from busnode.node.committer import Committer
from busnode.node.event_kinds import COPIES_HELD
from busnode.node.events import Tell, log_only
from busnode.node.ownership import Ownership
from busnode.node.producers import Producers, SeenRun
from busnode.node.router import Router
from busnode.replication.setbacks import Setbacks
from busnode.segments.store import Log, Store
from busnode.wire.control import Chunk, Mirrored, encode_trusted
from busnode.wire.copied import CopiedRun, copied_log, record_from, verify_copied
from busnode.wire.errors import (
    BadFrame,
    BadTopic,
    LimitReached,
    LogPoisoned,
    SecondWriter,
    StorageFailed,
)
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.topics import check_topic
from busnode.world.clock import Clock

ORIGINS_MAX: Final = 1000
"""Incarnations whose logs one node may send in one session, its own and those that it repairs: as
many as nodes tell each other of."""

OLD_US: Final = 1_000_000
"""What its origin stored so long ago is caught up with, and no ack waits for it: one that waits for
a mirror is given without it after two seconds."""

ROWS_A_FRAME: Final = 200
"""Logs that fit into one MIRRORED frame whatever their topics are."""


class Origin(Protocol):
    """The session of a node that writes copies here."""

    broker_id: BrokerId | None
    """Of the node itself, as it has greeted us."""

    @property
    def who(self) -> str: ...

    def send(self, frame: bytes) -> None: ...

    async def give_way(self) -> None:
        """Let others have their turn, and the origin read what it was sent."""
        ...


class Copies:
    """All copies that are being written. Those at rest are logs like any other."""

    def __init__(
        self,
        store: Store,
        router: Router,
        producers: Producers,
        committer: Committer,
        ownership: Ownership,
        clock: Clock,
        tell: Tell = log_only,
    ) -> None:
        self._clock = clock
        self._tell = tell
        self._ownership = ownership
        self._store = store
        self._router = router
        self._producers = producers
        self._committer = committer
        self._writers: dict[BrokerId, Origin] = {}
        self._displaced: dict[Origin, set[BrokerId]] = {}
        """Sessions in whose place another one writes an incarnation's logs now."""
        self._setbacks = Setbacks()
        self.messages = 0
        """Messages written for others."""

    @property
    def origins(self) -> list[BrokerId]:
        return list(self._writers)

    async def begin(
        self, origin: Origin, broker_id: BrokerId, written: bool, retain_s: float
    ) -> None:
        """A node wants its logs held here, or those of one that is gone. It is told how far the
        copies that there are reach, and an empty list marks the end. SecondWriter when they are
        being written, by this node (`written`) or by their origin; the same node may have dialled
        again before we know that its old session is broken. LogPoisoned when the disk has failed
        a copy: it is taken up again after a while, since what is sent at once would only end the
        session, again and again. StorageFailed when it cannot be kept for how long its origin
        wants them. LimitReached for more incarnations than one node has to offer. Who says it again
        is only told again how far they reach."""
        writer = self._writers.get(broker_id)
        by_origin = writer is not None and writer.broker_id == broker_id
        if written or (by_origin and origin.broker_id != broker_id):
            raise SecondWriter(f"logs of {broker_id.hex()} have a writer here already")
        rests_s = self._setbacks.left_s(broker_id, self._clock.monotonic())
        if rests_s:
            raise LogPoisoned(f"copies of {broker_id.hex()} failed and rest for {rests_s:.1f} s")
        if writer is not origin:
            self._check_room(origin)
            self._ownership.copies_kept(broker_id, retain_s, self._held)
            self._displaced.get(origin, set()).discard(broker_id)
            if writer is not None:
                self._displaced.setdefault(writer, set()).add(broker_id)
        self._writers[broker_id] = origin
        try:
            count = await self._tell_extents(origin, broker_id)
        except LogPoisoned:
            if self._writers.get(broker_id) is origin:
                del self._writers[broker_id]
            raise
        self._setbacks.tried(broker_id)
        self._tell(COPIES_HELD, origin=origin.who, of=broker_id.hex(), logs=count)

    async def _tell_extents(self, origin: Origin, broker_id: BrokerId) -> int:
        """Tell how far each copy reaches; how many there are."""
        rows: list[tuple[Topic, int]] = []
        count = 0
        for step, log in enumerate(self._store.logs(), start=1):
            if log.log_id.broker_id == broker_id:
                if log.poisoned is not None:
                    self._take_up_again(log)
                count += 1
                rows.append((log.log_id.topic, log.committed_no))
            if step % ROWS_A_FRAME == 0:
                if rows:
                    origin.send(encode_trusted(Mirrored, broker_id, rows))
                    rows = []
                await origin.give_way()
        if rows:
            origin.send(encode_trusted(Mirrored, broker_id, rows))
        origin.send(encode_trusted(Mirrored, broker_id, []))
        return count

    def _check_room(self, origin: Origin) -> None:
        if sum(writer is origin for writer in self._writers.values()) >= ORIGINS_MAX:
            raise LimitReached(f"logs of {ORIGINS_MAX} incarnations are held for one node already")

    def _held(self) -> set[BrokerId]:
        return {log.log_id.broker_id for log in self._store.logs()} | self._writers.keys()

    def _take_up_again(self, log: Log) -> None:
        """A copy whose disk failed goes on behind what is durable, unless that was just now."""
        broker_id, now = log.log_id.broker_id, self._clock.monotonic()
        if not self._setbacks.may_try(broker_id, now):
            self._setbacks.add(broker_id, now)
            raise LogPoisoned(f"the copy of {log.log_id} takes no more yet: {log.poisoned}")
        try:
            log.take_up_again()
        except LogPoisoned:
            self._setbacks.add(broker_id, now)
            raise
        self._committer.taken_up(log)

    def leave(self, origin: Origin) -> None:
        """Its session has ended; what it wrote stays."""
        for broker_id in [each for each, writer in self._writers.items() if writer is origin]:
            del self._writers[broker_id]
        self._displaced.pop(origin, None)

    def take(self, origin: Origin, chunk: Chunk, view: memoryview, run: CopiedRun) -> None:
        """Records of the origin's log; valid only now. A ProtocolError for what cannot be."""
        broker_id = chunk.broker_id
        if self._writers.get(broker_id) is not origin:
            if broker_id in self._displaced.get(origin, ()):
                return  # two nodes repaired the same; who is not answered stops
            raise BadFrame(f"records of {broker_id.hex()} from a node that may not write them")
        log_id = LogId(broker_id, Topic(chunk.topic))
        log = self._store.get(log_id) or self._create(log_id)
        if run.first_no < log.next_no:
            rest = _behind(view, run, log)
            if rest is None:
                return  # it was had before
            run = rest
        elif run.first_no > log.next_no:
            if chunk.first_no != run.first_no:
                raise BadFrame(f"{log_id}: record {run.first_no} where {log.next_no} comes next")
            log.skip_to(MsgNo(run.first_no))  # the origin does not have what is between
        stored_us = self._clock.utc_us() - chunk.age_us if chunk.age_us else None
        try:
            log.append(view[run.start : run.end], run.count, run.utc_us_max, stored_us)
        except LogPoisoned as error:
            self._committer.lost(log)
            self._setbacks.add(broker_id, self._clock.monotonic())
            raise BadFrame(f"the copy of {log.log_id} cannot be written: {error.text}") from error
        self.messages += run.count
        self._learn(run, log)
        if chunk.age_us < OLD_US:
            self._committer.wake()
        else:
            self._committer.wake_in_time(run.end - run.start)

    def _create(self, log_id: LogId) -> Log:
        try:
            check_topic(log_id.topic)
            log = self._store.create(log_id)
        except BadTopic as error:
            raise BadFrame(f"records of a log that cannot be: {error.text}") from error
        except StorageFailed as error:
            self._setbacks.add(log_id.broker_id, self._clock.monotonic())
            raise BadFrame(f"no room for a copy of {log_id}: {error.text}") from error
        self._router.add_log(log)
        if log_id.broker_id in self._ownership:
            # Ours, of an earlier life, and given back to us: our clients read it like any of ours.
            for listener in self._router.listeners(log):
                listener.read(log, 0)
        return log

    def _learn(self, run: CopiedRun, log: Log) -> None:
        """A producer that sends again here what its dead home has stored is not stored twice."""
        for producer_id, first_seq, first_no, ends in run.producer_runs:
            if first_seq:
                self._producers.get(producer_id).add(SeenRun(first_seq, ends, log, first_no))

    def committed(self, logs: list[Log]) -> list[Log]:
        """Of the logs that a commit has moved the copies; their origins are told."""
        moved: list[Log] = []
        rows: dict[BrokerId, list[tuple[Topic, int]]] = {}
        for log in logs:
            broker_id, topic = log.log_id
            if broker_id in self._writers:
                moved.append(log)
                rows.setdefault(broker_id, []).append((topic, log.committed_no))
        for broker_id, safe in rows.items():
            for at in range(0, len(safe), ROWS_A_FRAME):
                frame = encode_trusted(Mirrored, broker_id, safe[at : at + ROWS_A_FRAME])
                self._writers[broker_id].send(frame)
        return moved


def _behind(view: memoryview, run: CopiedRun, log: Log) -> CopiedRun | None:
    """The part of a run that a log does not have yet; None when it has it all."""
    at, number = record_from(view, run, log.next_no)
    if number > log.next_no:
        raise BadFrame(f"{log.log_id}: a record reaches over {log.next_no}, which comes next")
    copied = copied_log(log.log_id.broker_id, run.topic)
    return verify_copied(view, at, run.end, copied)
