"""Bugs in the client library."""

from typing import Any

from busnode.client.consumer import Consumer
from busnode.client.cursor_store import FileCursorStore
from busnode.client.deduplication import Deduplication
from busnode.client.inbox import Inbox
from busnode.client.outgoing import Outgoing
from busnode.client.positions import Position
from busnode.testing.sim.mutants.mutant import CALM, HOMES, IN_FLIGHT, LINKS, Patch, mutant


@mutant("repeats across logs are known by a high-water mark", HOMES)
def watermark_deduplication(patch: Patch) -> None:
    def is_repeat(self: Any, producer_id: int, producer_seq: int) -> bool:
        if not producer_seq:
            return False
        mark = self._masks.get((producer_id, 0), 0)
        self._masks[producer_id, 0] = max(mark, producer_seq)
        return bool(producer_seq <= mark)

    patch.set(Deduplication, "is_repeat", is_repeat)


@mutant("repeats across logs are not dropped", IN_FLIGHT)
def no_deduplication(patch: Patch) -> None:
    def is_repeat(self: Any, producer_id: int, producer_seq: int) -> bool:
        del self, producer_id, producer_seq
        return False

    patch.set(Deduplication, "is_repeat", is_repeat)


@mutant("a position is what was received, not what was worked off", CALM)
def position_before_delivery(patch: Patch) -> None:
    def position(self: Any) -> Position:
        return Position(self._inbox.received)

    patch.set(Consumer, "position", property(position))


@mutant("what was not acked is not sent again after a reconnect", IN_FLIGHT)
def unacked_not_resent(patch: Patch) -> None:
    def arrived(self: Any) -> list[bytes]:
        del self
        return []

    patch.set(Outgoing, "arrived", arrived)


@mutant("a batch that came is lost in the library now and then", LINKS)
def batch_lost(patch: Patch) -> None:
    before = Inbox.__dict__["_take_log"]
    taken = 0

    def take_log(self: Any, raw: bytes, run: Any, chunk: Any) -> None:
        nonlocal taken
        taken += 1
        log = (chunk.broker_id, chunk.topic)
        if taken % 50 == 0 and log in self.received:
            self.received[log] = max(self.received[log], chunk.last_no)
            return
        before(self, raw, run, chunk)

    patch.set(Inbox, "_take_log", take_log)


@mutant("cursors are written without a sync", HOMES)
def cursors_not_synced(patch: Patch) -> None:
    async def replace(self: Any, data: bytes) -> None:
        scratch = self._path + ".new"
        if self._files.exists(scratch):
            self._files.remove(scratch)
        file = self._files.append_to(scratch)
        file.append(data)
        file.close()
        self._files.rename(scratch, self._path)

    patch.set(FileCursorStore, "_replace", replace)
