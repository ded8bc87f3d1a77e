"""What a member of a queue group was sent and is not done with: others get it when the member goes.

A client gives credit back for what it has worked off, in the order in which it came. Another node,
whose members are not equally fast, names what one of them is done with.
"""

from typing import Final

from busnode.node.handed import Handed
from busnode.wire.ids import LogId

UNFINISHED_BYTES_MAX: Final = 1024 * 1024
"""What one member may have in hand: it is kept in memory for the others, and a slow one should not
hoard what they could do."""


class Unfinished:
    """By log and number, in the order of sending. Messages that are not persistent only count for
    credit: they are never sent again."""

    def __init__(self) -> None:
        self.size_bytes = 0
        """Of records alone: what is kept."""
        self._sent: dict[tuple[LogId, int] | int, tuple[int, Handed | None]] = {}
        self._live = 0
        self._paid_bytes = 0

    def sent(self, handed: Handed) -> None:
        size_bytes = len(handed.data)
        self._sent[handed.log_id, handed.first_no] = size_bytes, handed
        self.size_bytes += size_bytes

    def sent_live(self, size_bytes: int) -> None:
        self._live += 1
        self._sent[self._live] = size_bytes, None

    def credited(self, credit_bytes: int) -> list[Handed]:
        """So much was worked off, from the front; the records that are done."""
        self._paid_bytes += credit_bytes
        done: list[Handed] = []
        while self._sent:
            key, (size_bytes, handed) = next(iter(self._sent.items()))
            if size_bytes > self._paid_bytes:
                return done
            del self._sent[key]
            self._paid_bytes -= size_bytes
            if handed is not None:
                self.size_bytes -= size_bytes
                done.append(handed)
        self._paid_bytes = 0  # the rest is credit for more, not for what was sent
        return done

    def finished(self, log_id: LogId, first_no: int) -> Handed | None:
        """One that is done, or None when it was not sent."""
        size_bytes, handed = self._sent.pop((log_id, first_no), (0, None))
        self.size_bytes -= size_bytes
        return handed

    def take_back(self) -> list[Handed]:
        """All that is not done, when the member is gone."""
        left = [handed for _, handed in self._sent.values() if handed is not None]
        self._sent.clear()
        self.size_bytes = 0
        return left
