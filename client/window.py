"""Persistent batches that were written and not acked: kept until they are, to be sent again."""

from collections.abc import Iterable
from typing import Final

from busnode.client.batch import Batch
from busnode.wire.errors import BadControl, BusnodeError
from busnode.wire.ids import BrokerId

BATCHES_MAX: Final = 4096
"""A node remembers as many numbers of each producer, so that every repeat is known for one."""


class Window:
    """Un-acked batches by their number, in the order in which they were written."""

    def __init__(self, batches_max: int = BATCHES_MAX) -> None:
        self._batches: dict[int, Batch] = {}
        self._batches_max = batches_max
        self._next_seq = 1
        self.messages = 0
        """In all batches that are not acked."""

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def full(self) -> bool:
        return len(self._batches) >= self._batches_max

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def add(self, batch: Batch) -> None:
        """It is on its way under `next_seq`, or under a higher number."""
        assert batch.seq >= self._next_seq
        self._next_seq = batch.seq + 1
        self._batches[batch.seq] = batch
        self.messages += batch.count

    def acked(
        self, broker_id: BrokerId, level: str, receipts: Iterable[tuple[int, int, int]]
    ) -> list[Batch]:
        """What an ACK settles. A number that is not waited for was acked before: the ack of a
        batch that was sent again may come twice."""
        settled: list[Batch] = []
        for first_seq, batches, first_no in receipts:
            if first_seq + batches > self._next_seq:
                raise BadControl(
                    f"ACK of batches {first_seq} to {first_seq + batches - 1}; "
                    f"the last that was sent is {self._next_seq - 1}"
                )
            number = first_no
            for seq in range(first_seq, first_seq + batches):
                batch = self._batches.pop(seq, None)
                if batch is None:
                    self._check_none_left(seq, first_seq + batches)
                    break
                batch.broker_id, batch.level, batch.first_no = broker_id, level, number
                number += batch.count
                self.messages -= batch.count
                settled.append(batch)
        return settled

    def _check_none_left(self, seq: int, end: int) -> None:
        """Behind a batch whose count is forgotten the numbers of others cannot be known."""
        left = [each for each in self._batches if seq < each < end]
        if left:
            raise BadControl(f"ACK of batch {seq} for the second time, together with {left[0]}")

    def refused(self, seq: int, error: BusnodeError) -> Batch | None:
        """A batch was refused and nothing of it appended."""
        batch = self._batches.pop(seq, None)
        if batch is not None:
            batch.error = error
            self.messages -= batch.count
        return batch

    def unacked(self) -> list[Batch]:
        """What is to be sent again, in order, byte for byte."""
        return list(self._batches.values())
