"""Whose a producerId is: its upper 16 bits are made from the identity.

Repeats are known by (producerId, producerSeq), here and at every consumer. One who could publish
under another's producerId could have the other's messages dropped as repeats of its own, at nodes
that have never seen the other. With the tag each node can see, without asking anybody, that a batch
is not of whom it was authorised for, and a batch carries that with it over every hop and onto
disks.
"""

import hashlib
from functools import lru_cache
from typing import Final

TAG_BITS: Final = 16
"""An attacker would need an identity with the same tag, and identities are made by who runs the
bus. The other 48 bits are drawn at random: 10,000 producers of one identity have two alike once in
5 million times."""

TAG_SHIFT: Final = 64 - TAG_BITS
_REST: Final = (1 << TAG_SHIFT) - 1


@lru_cache(maxsize=4096)
def tag_of(identity: str) -> int:
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[: TAG_BITS // 8], "big")


def tagged(producer_id: int, identity: str) -> int:
    """A producerId as one that is the identity's; unchanged for who has none."""
    return (tag_of(identity) << TAG_SHIFT) | (producer_id & _REST) if identity else producer_id
