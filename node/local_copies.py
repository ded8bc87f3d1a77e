"""This node as a holder of other nodes' logs, for its own clients: fetching from its own disk."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import trio

from busnode.node.handed import Handed
from busnode.node.mending import Mending
from busnode.node.peer_link import PeerLink
from busnode.node.queue_group import read_range
from busnode.node.remote_reading import RemoteReading
from busnode.segments.damage import Hole
from busnode.segments.store import Cold, Log, Range
from busnode.wire.fields import U64_MAX
from busnode.wire.frames import read_header
from busnode.wire.ids import LogId

logger = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""When a copy that could not be read is tried again."""

Elsewhere = Callable[[RemoteReading, LogId, int, int, PeerLink | None], bool]


class _Fetch(NamedTuple):
    reading: RemoteReading
    log: Log
    after_no: int
    since_us: int | None
    length: int


class LocalCopies:
    """Answers fetches like another node would, in their order. `run` it."""

    def __init__(self, elsewhere: Elsewhere, mending: Mending) -> None:
        """`elsewhere` asks somebody else for what this node lacks, if there is somebody."""
        self._mending = mending
        self._elsewhere = elsewhere
        self._waiting: deque[_Fetch] = deque()
        self._woken = trio.Event()

    def fetch(
        self, reading: RemoteReading, log: Log, after_no: int, since_us: int | None, length: int
    ) -> None:
        self._waiting.append(_Fetch(reading, log, after_no, since_us, length))
        self._woken.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                while self._waiting:
                    asked = self._waiting.popleft()
                    try:
                        await self._answer(asked)
                    except Exception:
                        # One log that cannot be read must not take the node along.
                        logger.exception("copy %s cannot be read", asked.log.log_id)
                        nursery.start_soon(self._try_later, asked)

    async def _try_later(self, asked: _Fetch) -> None:
        """This disk has a fault. Somebody else may have the log, or it passes."""
        if asked.reading.closed:
            return
        if self._elsewhere(asked.reading, asked.log.log_id, asked.after_no, U64_MAX, None):
            return
        await trio.sleep(AGAIN_S)
        if not asked.reading.closed:
            asked.reading.lost(asked.log.log_id)

    async def _answer(self, asked: _Fetch) -> None:
        reading, log, after_no, since_us, length = asked
        await trio.lowlevel.checkpoint()
        found = await _read(log, after_no, length) if length else None
        if reading.closed:  # while others had their turn
            return
        log_id = log.log_id
        if not length:
            reading.placed(log_id, after_no if since_us is None else log.first_at(since_us) - 1)
        elif found is None:
            reading.ended(log_id, log.committed_no)
        elif isinstance(found, Hole):
            self._mending.noticed(log, found)
            if self._elsewhere(reading, log_id, found.first_no - 1, found.last_no, None):
                return
            # Nobody is known to have it; but what is known of others is a little behind.
            if self._mending.ask(log, found, partial(self._looked_at, asked, found)):
                return
            reading.lacked(log_id, found.first_no, found.last_no, found.told)
        else:
            data = read_range(found)
            first_no = read_header(memoryview(data), 0).first_no
            reading.fetched(Handed(log_id, first_no, found.last_no, data, is_remote=True))
            reading.ended(log_id, found.last_no if found.last_no >= log.committed_no else None)
        reading.subscription.pump()

    def _looked_at(self, asked: _Fetch, hole: Hole, readable: bool) -> None:
        reading = asked.reading
        if reading.closed:
            return
        if readable:
            self.fetch(*asked)
        else:
            reading.lacked(asked.log.log_id, hole.first_no, hole.last_no, hole.told)
            reading.subscription.pump()


async def _read(log: Log, after_no: int, length: int) -> Range | Hole | None:
    """What comes after a number; fetched from the disk in a thread where it is not in memory."""
    reader = log.reader(after_no)
    while isinstance(found := reader.next_in_memory(length, length), Cold):
        try:
            await found.range.file.fetch(found.range.offset, found.range.length)
            reader.fetched(found, None)
        except OSError as error:
            reader.fetched(found, error)
    return found
