"""Writing tasks again at the end of this incarnation's own log, with all that is known of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from busnode.node.own_messages import PERSISTENT, OwnMessages, OwnPublisher
from busnode.node.publishing import TASKS
from busnode.node.receipts import Row
from busnode.wire.batches import Columns
from busnode.wire.carried_task import CARRIED, CARRIED_BYTES_MAX, Carried, encode_carried
from busnode.wire.errors import BusnodeError, Unavailable
from busnode.wire.ids import BrokerId, Topic
from busnode.wire.limits import HEADERS_BYTES_MAX, HEADERS_MAX, MIB
from busnode.world.clock import Clock

BATCH_BYTES: Final = 1 * MIB
BATCH_TASKS: Final = 1000

WINDOW_BYTES: Final = 16 * MIB
"""What may be written and not durable: publishers on the same disk wait for it too."""


class Carrier(OwnPublisher):
    """The node as one that carries tasks: it waits until they are as safe as they can be now."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: BusnodeError | None = None
        self.unacked = 0
        """Batches."""
        self._moved = trio.Event()

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        del broker_id, level
        self.unacked -= sum(batches for _, batches, _ in rows)
        self._moved.set()

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        del seqs
        self.lost = error
        self._moved.set()

    def committed(self, size_bytes: int) -> None:
        super().committed(size_bytes)
        self._moved.set()

    async def wait_for_room(self) -> None:
        """Until little enough waits to be durable. Unavailable when the log is lost."""
        await self._wait(lambda: self.uncommitted_bytes <= WINDOW_BYTES)

    async def wait_for_acks(self) -> None:
        """Until all is on a mirror's disk too, while there is one. Unavailable likewise."""
        await self._wait(lambda: not self.unacked)

    async def _wait(self, is_so: Callable[[], bool]) -> None:
        while self.lost is None and not is_so():
            self._moved = trio.Event()
            await self._moved.wait()
        if self.lost is not None:
            raise Unavailable(f"tasks were not carried: {self.lost.text}")


class Carrying:
    """Tasks of one queue on their way into this incarnation's log."""

    def __init__(self, queue: str, own: OwnMessages, clock: Clock) -> None:
        self.count = 0
        self._topic = Topic(TASKS + queue)
        self._own = own
        self._clock = clock
        self._carrier = Carrier()
        self._payloads: list[bytes] = []
        self._headers: list[dict[str, str]] = []
        self._size_bytes = 0

    async def add(self, payload: bytes, headers: Mapping[str, str], carried: Carried) -> None:
        """One task; `headers` are those that it came with. Raises Unavailable."""
        if self._payloads and (
            self._size_bytes + len(payload) > BATCH_BYTES or len(self._payloads) == BATCH_TASKS
        ):
            await self.flush()
        said = headers_with(headers, carried)
        self._payloads.append(payload)
        self._headers.append(said)
        self._size_bytes += len(payload) + sum(len(k) + len(v) for k, v in said.items())
        self.count += 1

    async def flush(self) -> None:
        """Write what was added, no faster than the disk."""
        if self._payloads:
            columns = Columns(self._payloads, headers=self._headers)
            self._payloads, self._headers, self._size_bytes = [], [], 0
            now_us = self._clock.utc_us()
            self._carrier.unacked += 1
            self._own.publish(self._topic, columns, now_us, PERSISTENT, self._carrier)
            self._own.flush()
            await self._carrier.wait_for_room()
        await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Write the rest, and wait until all of it is acked: whoever had the tasks before may let
        go of them then."""
        await self.flush()
        await self._carrier.wait_for_acks()


def headers_with(headers: Mapping[str, str], carried: Carried) -> dict[str, str]:
    """The headers of a task when it is carried. Ours come first: of a task with more than there is
    room for, which no client library makes, the user's last ones are left out."""
    kept = {name: value for name, value in headers.items() if name != CARRIED}
    while len(kept) >= HEADERS_MAX or _size(kept) > HEADERS_BYTES_MAX - CARRIED_BYTES_MAX // 2:
        kept.popitem()
    room = min(CARRIED_BYTES_MAX, HEADERS_BYTES_MAX - _size(kept) - len(CARRIED))
    return {**kept, CARRIED: encode_carried(carried, room)}


def _size(headers: dict[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
