"""Messages as a consumer gets them, one by one or a batch at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from busnode.wire.batches import Columns
from busnode.wire.ids import BrokerId, MsgNo, Topic

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Message(NamedTuple):
    """One message. A tuple, because nothing else that has names is as cheap to make."""

    topic: Topic
    payload: bytes
    headers: Mapping[str, str]
    broker_id: BrokerId | None
    """Whose log it stands in; None when it is not persistent."""
    msg_no: MsgNo | None
    utc_us: int
    """When it was published, in microseconds since 1970 by the producer's clock. Messages that came
    one behind the other within a millisecond carry the time of the first."""
    id: str | None

    @property
    def utc(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.utc_us)

    @property
    def persistent(self) -> bool:
        return self.msg_no is not None


_MAKE: Final[Callable[[type[Message], Iterable[object]], Message]] = cast("Any", tuple).__new__
"""Unlike `Message._make` it is no Python function, and does not count the fields again."""


class MessageBatch:
    """Messages of one topic that came together, column by column.

    `payloads` is a list; the other columns are made when they are asked for. Iterating gives a
    Message for each.
    """

    __slots__ = ("_columns", "_skip", "_utc_us", "broker_id", "first_no", "payloads", "topic")

    def __init__(
        self,
        topic: Topic,
        broker_id: BrokerId | None,
        first_no: MsgNo | None,
        utc_us: int,
        columns: Columns,
        skip: int = 0,
    ) -> None:
        """`utc_us` is the header's; the first `skip` messages are left out, and `first_no` is the
        number of the first that is not."""
        self.topic = topic
        self.broker_id = broker_id
        self.first_no = first_no
        self.payloads: Sequence[bytes] = columns.payloads[skip:] if skip else columns.payloads
        self._utc_us = utc_us
        self._columns = columns
        self._skip = skip

    def __len__(self) -> int:
        return len(self.payloads)

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} messages of {self.topic} from {self.first_no}>"

    @property
    def last_no(self) -> MsgNo | None:
        return None if self.first_no is None else MsgNo(self.first_no + len(self.payloads) - 1)

    @property
    def headers(self) -> Sequence[Mapping[str, str]]:
        column = self._columns.headers
        if column is None:
            return [NO_HEADERS] * len(self.payloads)
        return [each or NO_HEADERS for each in column[self._skip :]]

    @property
    def ids(self) -> Sequence[str | None]:
        column = self._columns.ids
        return [None] * len(self.payloads) if column is None else column[self._skip :]

    @property
    def utc_us(self) -> Sequence[int]:
        column = self._columns.utc_deltas_us
        if column is None:
            return [self._utc_us] * len(self.payloads)
        return [self._utc_us - delta for delta in column[self._skip :]]

    @property
    def utc(self) -> Sequence[datetime]:
        return [EPOCH + timedelta(microseconds=each) for each in self.utc_us]

    def __iter__(self) -> Iterator[Message]:
        """All in C: a quarter of the cost of calling the class for each."""
        columns = self._columns
        first_no = self.first_no
        rows = zip(
            repeat(self.topic),
            self.payloads,
            repeat(NO_HEADERS) if columns.headers is None else self.headers,
            repeat(self.broker_id),
            repeat(None) if first_no is None else range(first_no, first_no + len(self.payloads)),
            repeat(self._utc_us) if columns.utc_deltas_us is None else self.utc_us,
            repeat(None) if columns.ids is None else self.ids,
            strict=False,
        )
        return map(_MAKE, repeat(Message), rows)
