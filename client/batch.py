"""A batch on its way: open, then packed into a frame, then settled."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from busnode.client.bell import Bell
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.errors import BusnodeError
from busnode.wire.frames import Flags, encode_batch_frame
from busnode.wire.ids import BrokerId, Topic

T = TypeVar("T")


class Owner:
    """Whoever appends to a lane."""

    __slots__ = ("append", "room")

    def __init__(self) -> None:
        self.room = 0
        """What is left of its grant. Charge a message against it, then `append`."""
        self.append: Callable[[bytes], None] = no_grant

    def settled(self) -> None:
        """A batch that holds messages of ours is acked, refused or sent; told once or more."""


class Batch:
    """Messages of one lane: open, then packed and on its way, then settled."""

    __slots__ = (
        "bell",
        "broker_id",
        "charge",
        "count",
        "error",
        "first_no",
        "frame",
        "headers",
        "ids",
        "lane",
        "level",
        "payloads",
        "seq",
        "settled",
        "shares",
        "stamps",
    )

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane
        self.payloads: list[bytes] = []
        self.ids: list[str | None] | None = None
        self.headers: list[Mapping[str, str] | None] | None = None
        self.stamps: list[tuple[int, int]] = []
        """(index, utc µs) wherever the time has changed."""
        self.shares: list[tuple[int, Owner]] = []
        """(index, owner) wherever the owner has changed."""
        self.charge = 0
        self.count = 0
        self.seq = 0
        """Given when it is packed, unless its publisher has."""
        self.frame = b""
        self.bell = Bell()
        self.settled = False
        self.error: BusnodeError | None = None
        """Why it was refused."""
        self.broker_id = BrokerId(b"")
        self.first_no = 0
        self.level = ""

    def add(
        self, payload: bytes, headers: Mapping[str, str] | None, message_id: str | None
    ) -> None:
        if headers is not None:
            self.headers = _padded(self.headers, len(self.payloads))
            self.headers.append(headers)
        if message_id is not None:
            self.ids = _padded(self.ids, len(self.payloads))
            self.ids.append(message_id)
        self.payloads.append(payload)

    def add_many(self, payloads: list[bytes], headers: Mapping[str, str] | None) -> None:
        if headers is not None:
            self.headers = _padded(self.headers, len(self.payloads))
            self.headers += [headers] * len(payloads)
        self.payloads += payloads

    def pack(self, producer_id: int, seq: int) -> None:
        """Make the frame; the lists are not needed any more."""
        count = self.count = len(self.payloads)
        utc_us = max(stamp[1] for stamp in self.stamps)
        columns = Columns(
            self.payloads,
            self._deltas(utc_us) if len(self.stamps) > 1 else None,
            None if self.ids is None else _padded(self.ids, count),
            None if self.headers is None else _padded(self.headers, count),
        )
        self.frame = encode_batch_frame(
            topic=self.lane.topic_bytes,
            body=encode_columns(columns),
            count=count,
            flags=self.lane.flags,
            utc_us=utc_us,
            producer_id=producer_id,
            producer_seq=seq,
        )
        self.seq = seq
        self.payloads, self.ids, self.headers = [], None, None

    def _deltas(self, utc_us: int) -> list[int]:
        deltas: list[int] = []
        ends = [index for index, _ in self.stamps[1:]] + [self.count]
        for (index, stamp_us), end in zip(self.stamps, ends, strict=True):
            deltas += [utc_us - stamp_us] * (end - index)
        return deltas

    def settle(self) -> None:
        """Its outcome is known: tell the owners, and whoever waits."""
        self.settled = True
        self.frame = b""
        for _, owner in self.shares:
            owner.settled()
        self.bell.ring()

    def shares_of(self, owner: Owner) -> list[tuple[int, int]]:
        """(index of the first, count) of each stretch of messages that are this owner's."""
        ends = [index for index, _ in self.shares[1:]] + [self.count or len(self.payloads)]
        return [
            (index, end - index)
            for (index, each), end in zip(self.shares, ends, strict=True)
            if each is owner
        ]


class Lane:
    """Where messages of one topic with the same flags are put."""

    __slots__ = ("flags", "granted", "holder", "open", "persistent", "plain", "topic_bytes")

    def __init__(self, topic: Topic, flags: Flags) -> None:
        self.topic_bytes = topic.encode()
        self.flags = int(flags)
        self.persistent = bool(flags & Flags.PERSISTENT)
        self.open: Batch | None = None
        self.holder: Owner | None = None
        self.granted = 0
        self.plain = Owner()
        """The owner of what comes from `publish` rather than from a publisher."""


def _padded(column: list[T | None] | None, length: int) -> list[T | None]:
    """A column as long as the payloads: messages that came without such a thing left it behind."""
    column = [] if column is None else column
    column += [None] * (length - len(column))
    return column


def no_grant(payload: bytes) -> None:
    raise AssertionError(f"{len(payload)} bytes appended without a grant")
