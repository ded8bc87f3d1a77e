"""Who compares which copies, and what comes of it. Without IO."""

import enum
from collections.abc import Iterable

from busnode.wire.ids import BrokerId


class Verdict(enum.Enum):
    SAME = "same"
    LACKING = "lacking"
    """One of them does not have all of it, or not any more."""
    DIFFERENT = "different"
    """Both are good by their hashes, and they are not the same: nobody can tell which is right, so
    neither is ever overwritten."""


def partners(me: BrokerId, holders: Iterable[BrokerId]) -> list[BrokerId]:
    """Whom a node asks: of each two holders the one with the lower id asks the other, and both read
    their copies."""
    return sorted(node for node in holders if node > me)


def judge(mine: bytes, other: bytes) -> Verdict:
    if not mine or not other:
        return Verdict.LACKING
    return Verdict.SAME if mine == other else Verdict.DIFFERENT
