"""What a publisher gets for its messages: where they stand and how safe they are."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from busnode.wire.ids import BrokerId, MsgNo

RANGES_MAX: Final = 65_536
"""Ranges kept between two flushes. Messages that nobody else's stand between make one range, so
this is reached only by who shares a topic and never flushes; then the oldest are let go."""


class Receipt(NamedTuple):
    """One message is safe: here, under this number, at this level."""

    broker_id: BrokerId
    msg_no: MsgNo
    level: str
    """`mirrored` or `local`."""


class ReceiptRange(NamedTuple):
    """Messages with consecutive numbers in one log, at the same level."""

    broker_id: BrokerId
    first_no: MsgNo
    last_no: MsgNo
    level: str

    @property
    def messages(self) -> int:
        return self.last_no - self.first_no + 1


class Receipts:
    """The receipts of many messages, in the order of their acks: one log's stand in its order.

    `len` counts all messages that were acked. Iterating gives a Receipt for each, made as it is
    asked for; `ranges` are the same in short.
    """

    def __init__(self) -> None:
        self.ranges: list[ReceiptRange] = []
        self.forgotten = 0
        """Messages whose receipts were let go: see RANGES_MAX."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Receipt]:
        for broker_id, first_no, last_no, level in self.ranges:
            for msg_no in range(first_no, last_no + 1):
                yield Receipt(broker_id, MsgNo(msg_no), level)

    def __repr__(self) -> str:
        return f"<Receipts of {self._count} messages in {len(self.ranges)} ranges>"

    def add(self, broker_id: BrokerId, first_no: int, count: int, level: str) -> None:
        """These were acked."""
        self._count += count
        last_no = MsgNo(first_no + count - 1)
        if self.ranges:
            before = self.ranges[-1]
            if (before.broker_id, before.last_no + 1, before.level) == (broker_id, first_no, level):
                self.ranges[-1] = before._replace(last_no=last_no)
                return
        self.ranges.append(ReceiptRange(broker_id, MsgNo(first_no), last_no, level))
        if len(self.ranges) > RANGES_MAX:
            self._forget(RANGES_MAX // 4)

    def _forget(self, ranges: int) -> None:
        self.forgotten += sum(each.messages for each in self.ranges[:ranges])
        del self.ranges[:ranges]
