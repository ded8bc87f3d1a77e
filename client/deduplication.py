"""Which batches a subscription has had already, in whatever log they turned up (promise 4).

A publisher that got no ack sends again, perhaps to another node, and then the same batch stands in
two logs. It is recognised by (producerId, producerSeq). What is kept is the numbers that were seen,
64 of them to a mask, never a high-water mark: a number that was not seen is never taken for a
repeat, and forgetting can only let a repeat through.
"""

from collections.abc import Iterable
from typing import Final

Seen = tuple[tuple[int, int, int], ...]
"""Numbers that were seen, as they are kept: producerId, a 64th of the number, mask."""

MASKS_MAX: Final = 65_536
"""About 10 MB. From a producer whose every batch comes here that is the last four million batches,
at worst (one batch in 64, or producers that live for one message) the last 65,536. A repeat is at
most 4096 batches behind its producer when it is written, the window of un-acked ones; the rest is
for the time that a log may be out of reach."""


KEPT_MASKS_MAX: Final = 256
"""Masks that are kept with a position: for a producer whose every batch comes here its last 16,384
batches, which is more than it sends again, and some 10 kB in a file."""


class Deduplication:
    """The seen numbers of all producers; the masks begun first are forgotten first."""

    __slots__ = ("_masks", "_masks_max")

    def __init__(self, masks_max: int = MASKS_MAX) -> None:
        self._masks: dict[tuple[int, int], int] = {}
        self._masks_max = masks_max

    def is_repeat(self, producer_id: int, producer_seq: int) -> bool:
        """Whether this batch was seen before; it is from now on. 0 numbers nothing."""
        if not producer_seq:
            return False
        key = (producer_id, producer_seq >> 6)
        bit = 1 << (producer_seq & 63)
        masks = self._masks
        mask = masks.get(key, 0)
        if mask & bit:
            return True
        masks[key] = mask | bit
        if not mask and len(masks) > self._masks_max:
            del masks[next(iter(masks))]
        return False

    def remember(self, seen: Iterable[tuple[int, int, int]]) -> None:
        """Numbers that were seen before this began."""
        for producer_id, block, mask in seen:
            key = (producer_id, block)
            self._masks[key] = self._masks.get(key, 0) | mask
        while len(self._masks) > self._masks_max:
            del self._masks[next(iter(self._masks))]

    def seen(self) -> Seen:
        """All that is remembered."""
        return tuple((producer_id, block, m) for (producer_id, block), m in self._masks.items())
