"""How a sink numbers what it publishes, so that what is published again is dropped by the bus.

    producerId    from query and partition
    producerSeq   batch of the query, 23 bits | batch of messages, 16 bits | their content, 24 bits

A micro-batch that is run again after a crash has the same rows in the same partitions, so its
batches of messages have the same numbers, and a node that has them acks and drops them. Should a
query not be deterministic, so that other rows come where some were published before, then their
content gives them another number: they may be there twice, but they are never taken for others.
"""

from typing import Final

from xxhash import xxh3_64_intdigest

EPOCH_BITS: Final = 23
PLACE_BITS: Final = 16
CONTENT_BITS: Final = 24


class Numbering:
    """The numbers of one task: of one partition in one batch of a query."""

    def __init__(self, query: str, epoch: int, partition: int) -> None:
        self._epoch = epoch & ((1 << EPOCH_BITS) - 1)
        self._place = 0
        # What does not fit into a number goes where there is room: such a query is years old.
        name = f"{query}/{partition}/{epoch >> EPOCH_BITS}"
        self.producer_id = xxh3_64_intdigest(name.encode())

    @property
    def is_full(self) -> bool:
        """Whether there are no more numbers for this task."""
        return self._place >= (1 << PLACE_BITS) - 1

    def next_seq(self, content: bytes) -> int:
        """The number of the next batch of messages; they rise."""
        assert not self.is_full
        self._place += 1
        digest = xxh3_64_intdigest(content) & ((1 << CONTENT_BITS) - 1)
        return (self._epoch << PLACE_BITS | self._place) << CONTENT_BITS | digest
