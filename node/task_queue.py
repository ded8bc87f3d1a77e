"""One queue of this incarnation: carries out what its machine decides.

What the machine wants written goes to the queue's journal, a log beside that of the tasks; what it
gives out is taken from the queue's log and handed to whoever polled.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, assert_never, cast

import trio

from busnode.node.carried_ids import CarriedIds
from busnode.node.own_messages import PERSISTENT, OwnMessages
from busnode.node.receipts import LOCAL, Row
from busnode.node.task_log import TaskBatch, TaskLog
from busnode.security.rules import Rights
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.tasks.events import (
    Action,
    Answer,
    Enqueued,
    Event,
    Journal,
    JournalCommitted,
    Lease,
    Polled,
    Ready,
    Report,
    Settled,
    SnapshotDue,
    Snapshotted,
    Ticked,
    Verb,
)
from busnode.tasks.intake import parts_of
from busnode.tasks.journal import SnapshotBegun, encode_record
from busnode.tasks.queue import TaskQueue
from busnode.tasks.ranges import Numbers
from busnode.wire.batches import Columns
from busnode.wire.errors import BadRecord, BusnodeError, StorageError
from busnode.wire.ids import BrokerId, MsgNo, Topic
from busnode.wire.limits import FRAME_BYTES_MAX, KIB, MIB, TASKS_MAX
from busnode.world.clock import Clock
from busnode.world.entropy import Entropy

logger = logging.getLogger(__name__)

JOURNAL: Final = "/$sys/task/journal/"

GIVEN_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * KIB
"""Payloads and headers of the tasks in one frame; the largest task that can be published fits."""

SNAPSHOT_EVERY_BYTES: Final = 4 * MIB
"""How much of a journal is written before the next snapshot begins, unless the last one was large:
to read it when the node comes back takes some tenths of a second."""

BATCH_BYTES_MAX: Final = 6 * MIB
"""Records in one batch of a journal; the largest take half a mebibyte each."""

BATCH_RECORDS_MAX: Final = 1024

SNAPSHOT_SHARE: Final = 4
"""Snapshots are at most this part of a journal."""

LOADS_MAX: Final = 3
RETRY_S: Final = 1.0
"""When a disk is asked again that could not read."""

UNREADABLE: Final = "the payload cannot be read any more: every copy of it is damaged"


class Given(NamedTuple):
    """Tasks for a worker, in the order of the fields of TASKS."""

    owner: BrokerId
    queue: str
    numbers: list[int]
    ids: list[str]
    fences: list[int]
    attempts: list[int]
    enqueued_us: list[int]
    headers: list[dict[str, str]] | None
    payloads: list[bytes]


def nothing(owner: BrokerId, queue: str) -> Given:
    return Given(owner, queue, [], [], [], [], [], None, [])


class Asker(Hashable, Protocol):
    """Who has polled, and waits for what it is given."""

    def given(self, tasks: Given) -> None:
        """There may be none."""
        ...


class Poll(NamedTuple):
    """One asking, as the machine knows it."""

    asker: Asker
    worker: int


class Settler(Hashable, Protocol):
    """Who has said what became of tasks, and waits for that to be durable."""

    def settled(self, level: str, refused: list[tuple[int, str]]) -> None: ...


class JournalWriter:
    """The journal of a queue as a publisher: told, in order, of what is durable."""

    is_client = False

    def __init__(self, acked: Callable[[int, str], None]) -> None:
        self.identity = ""
        self.rights: Rights | None = None
        self.uncommitted_bytes = 0
        self._acked = acked

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        del broker_id
        self._acked(len(rows), level)

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        """The log is lost. A new incarnation takes over what is durable of this one."""

    def committed(self, size_bytes: int) -> None:
        self.uncommitted_bytes -= size_bytes


Piece = tuple[TaskBatch | None, int, int]
"""A batch, and which numbers of a lease lie in it one behind the other: from where, how many."""


class OwnedQueue:
    """A queue whose tasks this incarnation has accepted or taken over."""

    def __init__(
        self,
        machine: TaskQueue,
        tasks: TaskLog,
        own: OwnMessages,
        clock: Clock,
        entropy: Entropy,
        ready: Callable[[str], None],
        report: Callable[["OwnedQueue", Report], None],
        mended: Callable[[Log, Hole], Awaitable[bool]],
    ) -> None:
        """`ready` is called when there is something to poll again; `report` with what was completed
        or became a dead letter; `mended` says whether another copy has filled a hole."""
        self.machine = machine
        self.name = machine.name
        self.tasks = tasks
        self._own = own
        self._clock = clock
        self._entropy = entropy
        self._ready = ready
        self._report = report
        self._mended = mended
        self._topic = Topic(JOURNAL + self.name)
        self._writer = JournalWriter(self._acked)
        self._unwritten: list[tuple[int, bytes]] = []
        """Records that go into the next batch of the journal, with their numbers."""
        self._writing: deque[int] = deque()
        """Batches of the journal that are not durable yet, by the number of their last record."""
        self._level = LOCAL
        self._journal_no = 0
        """Messages of the journal so far."""
        self.pinned_no: MsgNo = MsgNo(1)
        """From which of them on the journal is needed."""
        self._begun_no = MsgNo(1)
        """Where the snapshot begins that is being written, or was last."""
        self._written_bytes = 0
        """Since it began."""
        self._snapshot_bytes = SNAPSHOT_EVERY_BYTES // SNAPSHOT_SHARE
        self._is_snapshotting = False
        self.snapshot_at = clock.monotonic()
        self._ids = CarriedIds()
        self._loading: deque[Lease] = deque()
        self._woken = trio.Event()
        self.lost = False
        """Whether its logs take no more: then it says nothing more."""

    @property
    def owner(self) -> BrokerId:
        return self.tasks.log_id.broker_id

    def numbers(self, ids: Iterable[str]) -> dict[str, int]:
        """The numbers here of those tasks that are here, by id."""
        found: dict[str, int] = {}
        for task_id in ids:
            number = self._ids.find(task_id)
            if number is None:
                home, _, text = task_id.partition("-")
                if home == self.owner.hex() and text.isascii() and text.isdigit():
                    number = int(text[:20])
            if number is not None and self.machine.find(number) is not None:
                found[task_id] = number
        return found

    async def batch(self, number: int) -> TaskBatch | None:
        """The batch with a task; None where it cannot be read."""
        return self.tasks.find(number) or await self._load(number)

    # What happens to it ---------------------------------------------------------------------------

    def committed(self) -> None:
        """The log of tasks has moved."""
        found, are_all = self.tasks.committed()
        self.enqueued(found)
        if not are_all:
            self._woken.set()

    def enqueued(self, found: Sequence[TaskBatch | Hole]) -> None:
        now_us = self._clock.utc_us()
        actions: list[Action] = []
        for batch in found:
            match batch:
                case Hole():
                    count = batch.last_no + 1 - batch.first_no
                    actions += self.machine.handle(Enqueued(batch.first_no, count, None, now_us))
                case TaskBatch():
                    self._ids.note(batch)
                    count = len(batch.columns.payloads)
                    options = batch.options
                    actions += self.machine.handle(Enqueued(batch.first_no, count, options, now_us))
        self._do(actions)

    def poll(self, asker: Asker, worker: int, name: str, want: int, lease_s: float) -> None:
        """Give it what there is, up to so many."""
        clock = self._clock
        self.handle(
            Polled(
                Poll(asker, worker), worker, name, min(want, TASKS_MAX), lease_s,
                clock.monotonic(), clock.utc_us(),
            )
        )  # fmt: skip

    def settle(
        self,
        settler: Settler,
        worker: int,
        verb: Verb,
        numbers: Sequence[int],
        fences: Sequence[int],
        error: str = "",
        lease_s: float = 0.0,
    ) -> None:
        clock = self._clock
        self.handle(
            Settled(
                settler, worker, verb, numbers, fences, error, lease_s,
                clock.monotonic(), clock.utc_us(), self._entropy.random(),
            )
        )  # fmt: skip

    def tick(self) -> None:
        clock = self._clock
        self.handle(Ticked(clock.monotonic(), clock.utc_us(), self._entropy.random()))

    def handle(self, event: Event) -> None:
        self._do(self.machine.handle(event))

    # What is to be done ---------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        # First what is to be written, in its order: whoever is told something may come back with
        # the next event before this is done.
        for action in actions:
            if isinstance(action, Journal):
                if not self._unwritten:
                    self._own.write_with_next(self._write_out)
                self._journal_no += 1
                if isinstance(action.record, SnapshotBegun):
                    self._begun_no = MsgNo(self._journal_no)
                    self._written_bytes = 0
                self._unwritten.append((action.seq, encode_record(action.record)))
        for action in actions:
            match action:
                case Lease():
                    self._give(action)
                case Answer(done, refused):
                    cast("Settler", done).settled(self._level, refused)
                case Ready():
                    self._ready(self.name)
                case Report():
                    self._report(self, action)
                case Snapshotted():
                    self._snapshotted()
                case Journal():
                    pass
                case _:
                    assert_never(action)

    def _write_out(self) -> None:
        """What was decided while the disk was busy is one batch of the journal, nearly always."""
        unwritten, self._unwritten = self._unwritten, []
        batch: list[tuple[int, bytes]] = []
        size_bytes = 0
        for each in unwritten:
            size_bytes += len(each[1])
            if batch and (size_bytes > BATCH_BYTES_MAX or len(batch) == BATCH_RECORDS_MAX):
                self._write(batch)
                batch, size_bytes = [], len(each[1])
            batch.append(each)
        self._write(batch)
        self._own.flush()

    def _write(self, records: list[tuple[int, bytes]]) -> None:
        # It speaks of numbers in its own log: in that of a later incarnation they are other tasks.
        self.lost = self.lost or self._own.broker_id != self.owner
        if self.lost:
            return
        payloads = [record for _, record in records]
        self._written_bytes += sum(map(len, payloads))
        columns = Columns(payloads)
        try:
            self._own.publish(self._topic, columns, self._clock.utc_us(), PERSISTENT, self._writer)
        except BusnodeError as error:
            self.lost = True
            logger.error("queue %s cannot write its journal: %s", self.name, error)
            return
        self._writing.append(records[-1][0])

    def _acked(self, batches: int, level: str) -> None:
        self._level = level
        actions: list[Action] = []
        for _ in range(batches):
            actions += self.machine.handle(JournalCommitted(self._writing.popleft()))
        self._do(actions)
        if self._written_bytes > SNAPSHOT_SHARE * self._snapshot_bytes:
            self.snapshot()

    # Snapshots ------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Say again what still matters, so that the journal before it is not needed any more."""
        if not self._is_snapshotting:
            self._is_snapshotting = True
            self.handle(SnapshotDue())

    def _snapshotted(self) -> None:
        self.pinned_no = self._begun_no
        self.snapshot_at = self._clock.monotonic()
        self._snapshot_bytes = max(self._written_bytes, SNAPSHOT_EVERY_BYTES // SNAPSHOT_SHARE)
        self._written_bytes = 0
        self._is_snapshotting = False

    # Tasks of others ------------------------------------------------------------------------------

    async def carried_from(self, origin: BrokerId) -> dict[int, tuple[int, str]]:
        """Tasks that were carried here from another incarnation's log and not given up: their
        numbers here and their ids, by the numbers that they had there."""
        found: dict[int, tuple[int, str]] = {}
        renewed: dict[int, int] = {}
        async for batch in self.tasks.carried():
            for number, options in enumerate(batch.options or (), batch.first_no):
                carried = None if options is None else options.carried
                if carried is None:
                    continue
                if carried.origin == self.owner:
                    renewed[carried.number] = number
                is_here = self.machine.find(number) is not None
                if carried.origin == origin and (is_here or carried.number not in found):
                    found[carried.number] = number, carried.id
        taken = Numbers()
        for first, last in self.machine.taken_of(origin):
            taken.add_run(first, last)
        return {
            there: (self._now(here, renewed), task_id)
            for there, (here, task_id) in found.items()
            if there in taken
        }

    async def ways_of(self, task_ids: set[str]) -> dict[str, list[tuple[BrokerId, int]]]:
        """From which incarnations' logs these tasks were carried here, and their numbers there. One
        may have come from several: each of them says of itself that its task goes on here."""
        ways: dict[str, list[tuple[BrokerId, int]]] = {}
        async for batch in self.tasks.carried():
            for options in batch.options or ():
                carried = None if options is None else options.carried
                if carried is None or carried.origin in (None, self.owner):
                    continue
                if carried.id in task_ids:
                    ways.setdefault(carried.id, []).append((carried.origin, carried.number))
        return ways

    def _now(self, number: int, renewed: dict[int, int]) -> int:
        """The number of a task that may have been written again at the end of this log."""
        while number in renewed and self.machine.find(number) is None:
            number = renewed[number]
        return number

    async def done_from(self, origin: BrokerId) -> tuple[Numbers, bool]:
        """Tasks that were carried here from another incarnation's log and are done, by the numbers
        that they had there; and whether those are all. What is done of this incarnation's own, for
        itself."""
        done = Numbers()
        if origin == self.owner:
            for first, last in self.machine.finished_runs():
                done.add_run(first, last)
            for first, last in self.machine.moved.runs():
                done.discard_run(first, last)
            return done, False
        are_all = True
        fates = await self._fates()
        for there, (here, task_id) in (await self.carried_from(origin)).items():
            if self.machine.find(here) is not None:
                are_all = False
            elif self._is_done(here) or fates.get(task_id, False):
                done.add(there)
        for task_id, is_done in fates.items():
            home, number = parts_of(task_id)
            if is_done and home == origin.hex():
                done.add(number)  # it may have come from there on a longer way
        return done, are_all

    async def numbers_of(self, origin: BrokerId, numbers: Numbers) -> list[int]:
        """The numbers here of tasks with these numbers in an origin's log, on whatever way they
        came."""
        found: list[int] = []
        if origin == self.owner:
            for begin, end in numbers.runs():
                found += range(begin, min(end, self.machine.extent) + 1)
        async for batch in self.tasks.carried():
            for number, options in enumerate(batch.options or (), batch.first_no):
                carried = None if options is None else options.carried
                if carried is None:
                    continue
                home, first_no = parts_of(carried.id)
                if (carried.origin == origin and carried.number in numbers) or (
                    home == origin.hex() and first_no in numbers
                ):
                    found.append(number)
        return found

    async def _fates(self) -> dict[str, bool]:
        """Of each task that is or was here under some number, whether it is done: a copy that was
        dropped is not."""
        fates: dict[str, bool] = {}
        async for batch in self.tasks.carried():
            for number, options in enumerate(batch.options or (), batch.first_no):
                carried = None if options is None else options.carried
                if carried is None:
                    continue
                first, own_no = parts_of(carried.id)
                for each in (number, own_no) if first == self.owner.hex() else (number,):
                    if self.machine.find(each) is not None:
                        fates[carried.id] = False
                    elif self._is_done(each):
                        fates.setdefault(carried.id, True)
        return fates

    def _is_done(self, number: int) -> bool:
        machine = self.machine
        is_over = number <= machine.extent and machine.find(number) is None
        return is_over and number not in machine.moved

    # Handing out ----------------------------------------------------------------------------------

    def _give(self, lease: Lease) -> None:
        pieces = self._pieces(lease.numbers)
        if all(batch is not None for batch, _, _ in pieces):
            self._hand_over(lease, pieces)
        else:
            self._loading.append(lease)
            self._woken.set()

    def _pieces(self, numbers: list[int]) -> list[Piece]:
        """Runs of these that lie in one batch each; those in batches that are not in memory one by
        one."""
        pieces: list[Piece] = []
        at = 0
        while at < len(numbers):
            number = numbers[at]
            batch = self.tasks.find(number)
            count = 1
            if batch is not None:
                most = min(len(numbers) - at, batch.next_no - number)
                if numbers[at : at + most] == list(range(number, number + most)):
                    count = most
                else:
                    while numbers[at + count] == number + count:
                        count += 1
            pieces.append((batch, at, count))
            at += count
        return pieces

    async def run(self) -> None:
        """Read from the disk what was not in memory, and hand it over then."""
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            await self._read_committed()
            while self._loading:
                lease = self._loading.popleft()
                pieces: list[Piece] = []
                # What is found is held on to: while others are read it may leave the memory.
                for batch, at, count in self._pieces(lease.numbers):
                    pieces.append((batch or await self._load(lease.numbers[at]), at, count))
                self._hand_over(lease, pieces)

    async def _read_committed(self) -> None:
        try:
            while found := await self.tasks.wait_committed():
                if isinstance(found[0], Hole) and await self._mended(self.tasks.log, found[0]):
                    self.tasks.read_again(found[0].first_no)
                else:
                    self.enqueued(found)
        except (OSError, BadRecord) as error:
            logger.warning("queue %s cannot be read, and is tried again: %s", self.name, error)
            await self._clock.sleep(RETRY_S)
            self._woken.set()

    async def _load(self, number: int) -> TaskBatch | None:
        """None where no copy can be read."""
        if (read := self.tasks.find(number)) is not None:
            return read  # with one before it
        for _ in range(LOADS_MAX):
            try:
                found = await self.tasks.load(number)
            except (OSError, StorageError) as error:
                logger.warning("task %d of queue %s cannot be read: %s", number, self.name, error)
                await self._clock.sleep(RETRY_S)
                continue
            if not isinstance(found, Hole):
                return found
            if not await self._mended(self.tasks.log, found):
                break
        return None

    def _hand_over(self, lease: Lease, pieces: list[Piece]) -> None:
        """One frame: what does not fit into it goes back, and what cannot be read any more becomes
        a dead letter."""
        poll = cast("Poll", lease.poll)
        owner = self.tasks.log_id.broker_id
        given = nothing(owner, self.name)
        headers: list[dict[str, str]] = []
        too_many: list[int] = []
        lost: list[int] = []
        room_bytes = GIVEN_BYTES_MAX
        for batch, at, count in pieces:
            if batch is None:
                lost.append(at)
                continue
            rows = batch.tasks(lease.numbers[at], count, owner)
            sizes_bytes = rows.sizes_bytes
            room_bytes -= sum(sizes_bytes)
            fitting = count
            while room_bytes < 0 and fitting > (0 if given.numbers else 1):
                fitting -= 1
                room_bytes += sizes_bytes[fitting]
            too_many += range(at + fitting, at + count)
            rows = rows.cut(fitting) if fitting < count else rows
            end = at + fitting
            given.numbers.extend(lease.numbers[at:end])
            given.ids.extend(rows.ids)
            given.fences.extend(lease.fences[at:end])
            given.attempts.extend(lease.attempts[at:end])
            given.enqueued_us.extend(rows.enqueued_us)
            headers.extend(rows.headers)
            given.payloads.extend(rows.payloads)
            self.tasks.handed_out(batch, fitting)
        poll.asker.given(given._replace(headers=headers if any(headers) else None))
        self._return(poll, lease, too_many, "release", "")
        self._return(poll, lease, lost, "reject", UNREADABLE)

    def _return(self, poll: Poll, lease: Lease, places: list[int], verb: Verb, error: str) -> None:
        if places:
            numbers = [lease.numbers[at] for at in places]
            fences = [lease.fences[at] for at in places]
            self.settle(NOBODY, poll.worker, verb, numbers, fences, error)


class _Nobody:
    def settled(self, level: str, refused: list[tuple[int, str]]) -> None:
        pass


NOBODY: Final = _Nobody()
"""Settles what nobody waits for."""
