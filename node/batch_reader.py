"""Reading the batches of a log, verified, without ever letting the loop wait for a disk."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from busnode.node.steps import carry_out
from busnode.segments.batch_iterator import batches_of
from busnode.segments.damage import Hole
from busnode.segments.records import LogKey
from busnode.segments.store import Cold, Log, Range
from busnode.wire.errors import BadRecord
from busnode.wire.frames import BatchHeader
from busnode.wire.ids import MsgNo
from busnode.world.files import Files

PIECE_BYTES: Final = 512 * 1024
"""What is read in one step; to verify and decode it takes about a millisecond."""


class Batches(NamedTuple):
    """Batches one behind the other, each as its header and its body."""

    batches: Sequence[tuple[BatchHeader, memoryview]]


class Waiting:
    """The disk has to be waited for."""


WAITING: Final = Waiting()


class BatchReader:
    """A place in a log, for a part of the node that looks into messages."""

    def __init__(self, files: Files, log: Log, after_no: int) -> None:
        self._files = files
        self._log = log
        self._key = LogKey.of(log.log_id)
        self._reader = log.reader(after_no)
        self._cold: Cold | None = None
        self._doubted_no: MsgNo | None = None
        """A record that does not read as it was written: it has to be examined."""
        self._examined_no = MsgNo(0)

    @property
    def next_no(self) -> MsgNo:
        return self._reader.next_no

    def read(self) -> Batches | Hole | Waiting | None:
        """What comes next, of what is committed; None when there is no more yet. After an OSError
        it is what came next before."""
        if self._cold is not None or self._doubted_no is not None:
            return WAITING
        found = self._reader.next_in_memory(PIECE_BYTES, 0)
        match found:
            case Cold():
                self._cold = found
                return WAITING
            case Range():
                try:
                    return self._verified(found)
                except OSError:
                    self._reader = self._log.reader(found.first_no - 1)
                    raise
            case _:
                return found

    async def read_or_wait(self) -> Batches | Hole | None:
        """The same, with the disk waited for. BadRecord for a record that is damaged each time it
        is read and good each time it is examined."""
        while True:
            found = self.read()
            if not isinstance(found, Waiting):
                return found
            if self._cold is not None:
                await self._fetch(self._cold)
            if self._doubted_no is not None:
                await self._examine(self._doubted_no)

    def _verified(self, found: Range) -> Batches | Waiting:
        reading = batches_of(found, self._key)
        batches: list[tuple[BatchHeader, memoryview]] = []
        next_no = found.first_no
        while True:
            try:
                batches.append(next(reading))
            except StopIteration as end:
                next_no = end.value
                break
        if next_no <= found.last_no:
            self._doubted_no = next_no
        return Batches(batches) if batches else WAITING

    async def _fetch(self, cold: Cold) -> None:
        failure: OSError | None = None
        try:
            await cold.range.file.fetch(cold.range.offset, cold.range.length)
        except OSError as error:
            failure = error
        self._cold = None
        self._reader.fetched(cold, failure)

    async def _examine(self, doubted_no: MsgNo) -> None:
        if doubted_no == self._examined_no:
            raise BadRecord(f"message {doubted_no} of {self._log.log_id} reads differently")
        await carry_out(self._files, self._log.examine_steps(doubted_no))
        self._examined_no, self._doubted_no = doubted_no, None
        self._reader = self._log.reader(doubted_no - 1)
