"""Going on with the tasks of an incarnation that is no more, from the copy of its logs here.

What it has not finished, and its dead letters, are written again into this incarnation's logs with
all that is known of them. The queues here count each of them once, however often this is begun.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from busnode.node.batch_reader import BatchReader
from busnode.node.mended_hole import wait_mended
from busnode.node.own_messages import OwnMessages
from busnode.node.publishing import TASKS
from busnode.node.subscription import Mender
from busnode.node.task_carrying import Carrying
from busnode.node.task_log import decode_tasks
from busnode.node.task_queue import JOURNAL
from busnode.segments.damage import Hole
from busnode.segments.store import Log, Store
from busnode.tasks.journal import SnapshotBegun, SnapshotEnded, decode_record
from busnode.tasks.ranges import Numbers
from busnode.tasks.recovery import Recovery, carry_on
from busnode.tasks.rows import Row
from busnode.wire.batches import decode_columns
from busnode.wire.errors import BadBatch
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.limits import MIB
from busnode.world.clock import Clock
from busnode.world.files import Files

logger = logging.getLogger(__name__)

TAIL_BYTES: Final = 16 * MIB
"""How much of the end of a journal is read first: nearly always there is a snapshot in it."""


class Takeover:
    """Reads what is left of one incarnation, queue by queue."""

    def __init__(
        self,
        files: Files,
        store: Store,
        own: OwnMessages,
        clock: Clock,
        mender: Mender,
        known: Callable[[str, str], Row | None],
        is_finished: Callable[[str, str], bool],
        origin: BrokerId,
    ) -> None:
        self._files = files
        self._store = store
        self._own = own
        self._clock = clock
        self._mender = mender
        self._known = known
        """What is known here of a task, by its queue and id."""
        self._is_finished = is_finished
        """Whether a task is known to be finished, whoever had it, by its queue and id."""
        self.origin = origin
        self.count = 0
        """Tasks and dead letters that go on here."""
        self.unreadable = 0
        """Tasks that no copy here can give."""
        self.finished: dict[str, Numbers] = {}
        """By queue, what the origin had finished."""
        self.taken: dict[str, dict[BrokerId, Numbers]] = {}
        """By queue: what the origin itself had taken over of others, by number there."""

    @property
    def queues(self) -> list[str]:
        return sorted(
            log.log_id.topic.removeprefix(TASKS)
            for log in self._store.logs()
            if log.log_id.broker_id == self.origin and log.log_id.topic.startswith(TASKS)
        )

    async def run(self, but: Mapping[str, Numbers]) -> None:
        """Take over these queues but for some of their tasks. OSError, StorageError, or
        Unavailable, when that is not possible now."""
        for queue, done in but.items():
            log = self._store.get(LogId(self.origin, Topic(TASKS + queue)))
            if log is not None:
                await self._take_over(queue, log, done)

    async def look(self) -> None:
        """See what is finished, in all queues. OSError, or StorageError."""
        for queue in self.queues:
            await self._recovered(queue)

    async def _recovered(self, queue: str) -> Recovery:
        journal = self._store.get(LogId(self.origin, Topic(JOURNAL + queue)))
        recovery = Recovery(self.origin)
        if journal is not None:
            recovery = await self._recover(journal)
        log = self._store.get(LogId(self.origin, Topic(TASKS + queue)))
        # Where the copy of the tasks is behind that of the journal, what was taken over may be
        # among what is missing: then it is better taken twice than never.
        is_whole = log is not None and recovery.extent <= log.committed_no
        self.taken[queue] = recovery.taken if is_whole else {}
        finished = self.finished[queue] = Numbers()
        for first, last in recovery.finished:
            finished.add_run(first, last)
        for first, last in recovery.moved.runs():
            finished.discard_run(first, last)
        return recovery

    async def _take_over(self, queue: str, log: Log, done: Numbers) -> None:
        recovery = await self._recovered(queue)
        carrying = Carrying(queue, self._own, self._clock)
        reader = BatchReader(self._files, log, max(log.first_no, recovery.floor) - 1)
        while (found := await reader.read_or_wait()) is not None:
            if isinstance(found, Hole):
                if await self._is_mended(log, found):
                    reader = BatchReader(self._files, log, found.first_no - 1)
                else:
                    self._passed_over(found, recovery, done)
                continue
            for header, body in found.batches:
                try:
                    batch = decode_tasks(header, body)
                except BadBatch as error:
                    logger.error("tasks of queue %s cannot be read: %s", queue, error)
                    self.unreadable += header.count
                    continue
                headers = batch.columns.headers
                # A producer's clock may be ahead, and delays count from when it says it was.
                now_us = self._clock.utc_us()
                enqueued_us = [min(each, now_us) for each in batch.enqueued_us()]
                for each in recovery.unfinished(batch.first_no, enqueued_us, batch.options):
                    if each.number in done:
                        continue
                    if self._is_finished(queue, each.carried.id):
                        # Under another number, by who had it before the origin or beside it.
                        self.finished[queue].add(each.number)
                        continue
                    at = each.number - batch.first_no
                    said = None if headers is None else headers[at]
                    carried = carry_on(each.carried, self._known(queue, each.carried.id))
                    await carrying.add(batch.columns.payloads[at], said or {}, carried)
        await carrying.finish()
        self.count += carrying.count

    async def _recover(self, journal: Log) -> Recovery:
        """From the last whole snapshot on, if it is near the end, else from the beginning."""
        tail_bytes = TAIL_BYTES
        while True:
            after_no = journal.tail_after(tail_bytes)
            if after_no < journal.first_no or tail_bytes >= journal.size_bytes:
                after_no = MsgNo(journal.first_no - 1)
            recovery = Recovery(self.origin)
            is_whole = await self._apply(journal, after_no, recovery)
            if is_whole or after_no < journal.first_no:
                return recovery
            tail_bytes *= 4

    async def _apply(self, journal: Log, after_no: int, recovery: Recovery) -> bool:
        """Whether there was a whole snapshot."""
        has_begun = has_ended = False
        reader = BatchReader(self._files, journal, after_no)
        while (found := await reader.read_or_wait()) is not None:
            if isinstance(found, Hole):
                if await self._is_mended(journal, found):
                    reader = BatchReader(self._files, journal, found.first_no - 1)
                else:
                    logger.error("tasks may be done again: %s: %s", journal.log_id, found)
                continue
            for header, body in found.batches:
                try:
                    payloads = decode_columns(body, header.count).payloads
                    records = [decode_record(payload) for payload in payloads]
                except BadBatch as error:
                    logger.error("a record of %s cannot be read: %s", journal.log_id, error)
                    continue
                for record in records:
                    recovery.apply(record)
                    has_begun = has_begun or isinstance(record, SnapshotBegun)
                    has_ended = has_ended or (has_begun and isinstance(record, SnapshotEnded))
        return has_ended

    async def _is_mended(self, log: Log, hole: Hole) -> bool:
        return await wait_mended(self._mender, log, hole)

    def _passed_over(self, hole: Hole, recovery: Recovery, done: Numbers) -> None:
        numbers = range(hole.first_no, hole.last_no + 1)
        lost = sum(1 for n in numbers if not recovery.is_finished(n) and n not in done)
        self.unreadable += lost
        if lost:
            logger.error("%d tasks cannot be read: %s", lost, hole)
