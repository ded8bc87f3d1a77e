"""Damage in this node's logs: looked at when somebody complains, and mended from other copies.

A reader that meets a hole waits here for a moment before its consumer hears of a gap: another node
may have the range. What comes from there is checked with both hashes and put in its place on the
disk (`segments.mending`), and the reader reads on.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import trio

from busnode.node.event_kinds import (
    DAMAGE_FOUND,
    DAMAGE_MENDED,
    DAMAGE_QUARANTINED,
    LOG_UNREADABLE,
)
from busnode.node.events import Tell, log_only
from busnode.node.handed import Handed
from busnode.node.logs import fields
from busnode.node.peer_link import PeerLink
from busnode.node.steps import carry_out
from busnode.replication.mending import HoleKey, MendPlan
from busnode.replication.remote_cursor import PIECE_BYTES
from busnode.segments.damage import EXPIRED, Hole, Patch
from busnode.segments.mending import PATCH_BYTES_MAX, check_records, records_within
from busnode.segments.records import LogKey
from busnode.segments.store import Log, Store
from busnode.wire.errors import BadRecord, BusnodeError
from busnode.wire.ids import BrokerId, LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Files

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""How long a reader waits for a range that another node may have: longer than a node takes to
answer, shorter than a consumer's patience."""

FETCH_S: Final = 4.0
"""How long one node may take for a patch."""

SETTLE_S: Final = 0.05
SETTLES_MAX: Final = 20
"""A segment that was just written to is mended when it is durable: a commit or two."""

LOOK_EVERY_S: Final = 30.0
LOGS_BEFORE_YIELD: Final = 500

DOUBTS_MAX: Final = 64
"""Complaints that wait to be looked at. One that is not taken comes again."""

IDLE_SHARE: Final = 4.0
"""Looking at a complaint takes up to a fifth of the time: who complains without a cause must not be
able to keep a node busy."""

MENDER: Final = 1 << 63
"""Stands where a client's number stands in a REPLAY: no client has it."""


class Holders(Protocol):
    """Who else has logs."""

    def holders_of(self, broker_id: BrokerId) -> list[PeerLink]:
        """Links to those who may hold logs of an incarnation, in the order in which to ask."""
        ...

    def expects_holders(self) -> bool:
        """Whether some who were there before are likely to come soon."""
        ...


class _Waiting(NamedTuple):
    until: float
    then: Callable[[bool], None]


class Refetch:
    """Records that another node was asked for, to mend a hole: see `peer_link.Fetching`."""

    def __init__(self, number: int) -> None:
        self.whom = MENDER, number
        self.closed = False
        self.records = bytearray()
        self.answered = trio.Event()
        self.is_lost = False
        self.lacked_no = 0
        """Up to which number who was asked has nothing."""

    def fetched(self, handed: Handed) -> None:
        self.records += handed.data

    def placed(self, log_id: LogId, after_no: int) -> None:
        del log_id, after_no

    def ended(self, log_id: LogId, end_no: int | None) -> None:
        del log_id, end_no
        self.answered.set()

    def lacked(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        del log_id, first_no, reason
        self.lacked_no = last_no
        self.answered.set()

    def lost(self, log_id: LogId) -> None:
        del log_id
        self.is_lost = True
        self.answered.set()

    def pump(self) -> None:
        pass


class Mending:
    """All damage that this node knows of, and what is done about it. `run` it."""

    def __init__(
        self, files: Files, store: Store, clock: Clock, holders: Holders, tell: Tell = log_only
    ) -> None:
        self.examined = 0
        """Segments that were looked at because somebody complained."""
        self.mended = 0
        """Messages that were damaged or missing and are there again."""
        self.on_whole: Callable[[LogId], None] = _nobody
        """Told of a log of which something can be read that could not be before."""
        self._files = files
        self._store = store
        self._clock = clock
        self._holders = holders
        self._tell_event = tell
        self._plan = MendPlan()
        self._waiting: dict[HoleKey, list[_Waiting]] = {}
        self._doubts: dict[tuple[LogId, MsgNo], None] = {}
        self._doubted = trio.Event()
        self._due = trio.Event()
        self._someone_waits = trio.Event()
        self._number = 0

    @property
    def known(self) -> int:
        """Holes that are being tried, now or later."""
        return len(self._plan)

    # What others tell -----------------------------------------------------------------------------

    def ask(self, log: Log, hole: Hole, then: Callable[[bool], None]) -> bool:
        """A reader has met a hole. Unless it is known that nobody has it, `then` is called once:
        with True when it is worth reading again, with False when nobody has it."""
        key = self.noticed(log, hole)
        if key is None:
            return False
        until = self._clock.monotonic() + WAIT_S
        self._waiting.setdefault(key, []).append(_Waiting(until, then))
        self._someone_waits.set()
        return True

    def noticed(self, log: Log, hole: Hole) -> HoleKey | None:
        """A hole was met; None when nothing can be done about it now."""
        if hole.reason == EXPIRED or not hole.last_no:
            return None
        first_no, is_known = hole.first_no, False
        for known in log.holes():
            if known.first_no <= first_no <= known.last_no:
                first_no, is_known = known.first_no, True  # a reader may have begun in the middle
                break
        key = HoleKey(log.log_id, first_no)
        is_tried = self._plan.met(key, self._clock.monotonic(), is_known=is_known)
        self._wake()
        return key if is_tried else None

    def doubt(self, log_id: LogId, first_no: int) -> None:
        """Somebody was sent records that are not what was written."""
        if len(self._doubts) < DOUBTS_MAX:
            self._doubts[log_id, MsgNo(first_no)] = None
            self._doubted.set()

    def came(self) -> None:
        """Another node has come, or holds logs that it did not hold before."""
        self._plan.came(self._clock.monotonic())
        self._wake()

    def _wake(self) -> None:
        self._due.set()
        self._due = trio.Event()

    # What is done ---------------------------------------------------------------------------------

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._examine_again_and_again)
            nursery.start_soon(self._try_again_and_again, True)
            nursery.start_soon(self._try_again_and_again, False)
            nursery.start_soon(self._give_up_in_time)
            nursery.start_soon(self._look_around)

    async def _examine_again_and_again(self) -> None:
        while True:
            await self._doubted.wait()
            self._doubted = trio.Event()
            while self._doubts:
                log_id, first_no = next(iter(self._doubts))
                began = self._clock.monotonic()
                log = self._store.get(log_id)
                if log is not None:
                    await self.examine(log, first_no)
                del self._doubts[log_id, first_no]
                await self._clock.sleep(IDLE_SHARE * (self._clock.monotonic() - began))

    async def examine(self, log: Log, msg_no: int) -> None:
        """Check the records around a number; what is damaged is a hole from then on."""
        self.examined += 1
        try:
            found = await carry_out(self._files, log.examine_steps(msg_no))
        except OSError as error:
            self._tell_event(LOG_UNREADABLE, log=log.log_id, error=error)
            return
        for hole in found:
            first_no, last_no = hole.first_no, hole.last_no
            self._tell_event(
                DAMAGE_FOUND, log=log.log_id, first_no=first_no, last_no=last_no, why=hole
            )
            self.noticed(log, hole)

    async def _try_again_and_again(self, is_known: bool) -> None:
        while True:
            key = self._plan.take(self._clock.monotonic(), is_known=is_known)
            if key is None:
                due = self._due
                with trio.move_on_after(1.0):
                    await due.wait()
                continue
            try:
                await self._try(key)
            except (OSError, BusnodeError) as error:
                facts = fields(log=key.log_id, first_no=key.first_no, error=error)
                logger.error("damage could not be mended", extra=facts)
                self._give_up(key)
            # With nobody to ask a try waits for nothing, and there may be thousands of holes.
            await trio.lowlevel.checkpoint()

    async def _try(self, key: HoleKey) -> None:
        log = self._store.get(key.log_id)
        hole = None if log is None else _hole_at(log, key.first_no)
        if log is not None and hole is None and key.first_no >= log.first_no:
            # Something could not be read there: what it is shows when it is looked at.
            await self.examine(log, key.first_no)
            readable = True  # up to what is damaged, which may be less
            is_whole = _hole_at(log, key.first_no) is None
            if key not in self._waiting:
                self._plan.gone(key)
                if is_whole:
                    self.on_whole(key.log_id)
            elif is_whole:
                readable = self._plan.unconfirmed(key, self._clock.monotonic())
            self._tell(key, readable=readable)
            return
        if log is None or hole is None:
            self._plan.gone(key)
            self._tell(key, readable=True)
            return
        links = self._holders.holders_of(key.log_id.broker_id)
        some_lost = self._holders.expects_holders()
        for link in links:
            records, is_lost = await self._fetch(link, log.log_id, hole)
            some_lost = some_lost or is_lost
            if records and await self._put(log, Patch(hole, records), link.name):
                self._is_whole(key)
                return
        if hole.may_pass:  # nobody else has it; the disk may have hesitated
            await self.examine(log, hole.first_no)
            if _hole_at(log, key.first_no) is None:
                self._is_whole(key)
                return
        if some_lost:  # it comes back, and who waits may wait for it
            self._plan.postponed(key, self._clock.monotonic())
        else:
            self._give_up(key)

    async def _fetch(self, link: PeerLink, log_id: LogId, hole: Hole) -> tuple[bytes, bool]:
        """The records of a hole, or the first piece of it that a node has, and whether the link was
        lost: it may have met other damage there, which that node looks at now."""
        found = bytearray()
        is_lost = False
        next_no = int(hole.first_no)
        with trio.move_on_after(FETCH_S):
            while next_no <= hole.last_no and len(found) < PATCH_BYTES_MAX:
                self._number += 1
                asked = Refetch(self._number)
                try:
                    link.fetch(asked, log_id, next_no - 1, None, PIECE_BYTES)
                    await asked.answered.wait()
                finally:
                    asked.closed = True
                is_lost = asked.is_lost
                length, beyond = records_within(asked.records, next_no, hole.last_no)
                if length:
                    found += asked.records[:length]
                    next_no = beyond
                elif not found and asked.lacked_no >= next_no:
                    next_no = asked.lacked_no + 1
                else:
                    break
        return bytes(found), is_lost

    async def _put(self, log: Log, patch: Patch, name: str) -> bool:
        try:
            check_records(LogKey.of(log.log_id), *patch)
        except BadRecord as error:
            facts = fields(log=log.log_id, node=name, error=error)
            logger.warning("a node has sent records that are damaged", extra=facts)
            return False
        for _ in range(SETTLES_MAX):
            for mended in await carry_out(self._files, log.mend([patch])):
                if mended.quarantine is not None:
                    self._tell_event(
                        DAMAGE_QUARANTINED, log=log.log_id, first_no=mended.hole.first_no,
                        last_no=mended.hole.last_no, path=mended.quarantine,
                    )  # fmt: skip
                first_no, last_no = mended.first_no, mended.last_no
                self.mended += last_no + 1 - first_no
                self._tell_event(
                    DAMAGE_MENDED, log=log.log_id, first_no=first_no, last_no=last_no, source=name
                )
                return True
            await self._clock.sleep(SETTLE_S)
        return False

    def _is_whole(self, key: HoleKey) -> None:
        self._plan.gone(key)
        self._tell(key, readable=True)
        self.on_whole(key.log_id)

    def _give_up(self, key: HoleKey) -> None:
        self._plan.failed(key, self._clock.monotonic())
        self._tell(key, readable=False)

    def _tell(self, key: HoleKey, *, readable: bool) -> None:
        for waiting in self._waiting.pop(key, ()):
            waiting.then(readable)

    async def _give_up_in_time(self) -> None:
        """Let go of those who have waited for too long."""
        while True:
            await self._someone_waits.wait()
            self._someone_waits = trio.Event()
            while self._waiting:
                await self._clock.sleep(WAIT_S / 10)
                now = self._clock.monotonic()
                for key, waiting in list(self._waiting.items()):
                    late = [each for each in waiting if each.until <= now]
                    self._waiting[key] = [each for each in waiting if each.until > now]
                    if not self._waiting[key]:
                        del self._waiting[key]
                    for each in late:
                        each.then(False)

    async def _look_around(self) -> None:
        """Mend also what nobody reads: all that is known to be missing."""
        while True:
            for step, log in enumerate(self._store.logs(), start=1):
                for hole in log.holes():
                    self.noticed(log, hole)
                if step % LOGS_BEFORE_YIELD == 0:
                    await trio.lowlevel.checkpoint()
            await self._clock.sleep(LOOK_EVERY_S)


def _hole_at(log: Log, first_no: MsgNo) -> Hole | None:
    return next((hole for hole in log.holes() if hole.first_no == first_no), None)


def _nobody(log_id: LogId) -> None:
    del log_id
