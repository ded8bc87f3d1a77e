"""Which batches a subscription has had already, in whatever log they turned up (promise 4).

A publisher that got no ack sends again, perhaps to another node, and then the same batch stands in
two logs. It is recognised by (producerId, producerSeq). What is kept is the numbers that were seen,
64 of them to a mask, never a high-water mark: a number that was not seen is never taken for a
repeat, and forgetting can only let a repeat through.
"""

from typing import Final

MASKS_MAX: Final = 65_536
"""About 10 MB. From a producer whose every batch comes here that is the last four million batches,
at worst (one batch in 64, or producers that live for one message) the last 65,536. A repeat is at
most 4096 batches behind its producer when it is written, the window of un-acked ones; the rest is
for the time that a log may be out of reach."""


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
