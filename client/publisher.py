"""The fast way to publish to one topic: pipelined, in a bounded window, with receipts in bulk."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from busnode.client.batch import Batch, Lane, Owner
from busnode.client.batching import MESSAGE_CHARGE
from busnode.client.outgoing import Outgoing
from busnode.client.payloads import Payload, checked_many
from busnode.client.receipts import Receipts
from busnode.client.refusal import refusal
from busnode.wire.batches import Columns
from busnode.wire.errors import BusnodeError, Disconnected

MANY: Final = 1024
"""Messages that `send_many` hands on at once: most of a batch of small ones."""

REFUSALS_MAX: Final = 1000
"""Rows that are kept of what was refused between two flushes: enough to see what is wrong."""

SHOWN: Final = 5


class NotAcked(NamedTuple):
    """Messages that were refused: the `first`th to the `last`th sent since the flush before."""

    first: int
    last: int
    error: BusnodeError

    def follows_on(self, first: int, error: BusnodeError) -> bool:
        """Whether a refusal from `first` on is one with this."""
        return self.last + 1 == first and self.error.code == error.code


class Publisher(Owner):
    """`async with bus.publisher(topic, persistent=True) as out: await out.send(payload)`

    Order is kept, also with `bus.publish` to the same topic. Leaving the block flushes; leaving it
    by an exception does not wait: what was sent stays on its way.
    """

    __slots__ = (
        "_batches",
        "_counted",
        "_lane",
        "_outgoing",
        "_receipts",
        "_refused",
        "not_acked",
        "topic",
    )

    def __init__(self, topic: str, lane: Lane, outgoing: Outgoing) -> None:
        super().__init__()
        self.topic = topic
        self.not_acked: list[NotAcked] = []
        """What was refused, as of the last flush: at most REFUSALS_MAX rows."""
        self._lane = lane
        self._outgoing = outgoing
        self._batches: dict[Batch, None] = {}
        """Those that hold messages of ours, in the order of sending."""
        self._counted = 0
        """Messages since the last flush whose outcome is known, and that of all before them."""
        self._receipts = Receipts()
        self._refused: list[NotAcked] = []

    async def __aenter__(self) -> "Publisher":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *args: object) -> None:
        if kind is None:
            await self.flush()

    async def send(
        self,
        payload: Payload,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> None:
        """Put a message on its way; waits only while the window is full.

        When it is cancelled the message was not taken. It does not raise for what became of
        earlier messages: `flush` does.
        """
        if headers is None and message_id is None and type(payload) is bytes:
            room = self.room - len(payload) - MESSAGE_CHARGE
            if room >= 0:
                self.room = room
                self.append(payload)
                return
        batch = await self._outgoing.admit(self._lane, self, payload, headers, message_id)
        self._batches[batch] = None

    async def send_many(
        self, payloads: Sequence[Payload], *, headers: Mapping[str, str] | None = None
    ) -> None:
        """As `send` for each of them, all with the same headers, at a fraction of the cost.

        Refused when one cannot be sent, and then none is taken. When it is cancelled the first
        ones were taken, in order.
        """
        ready = checked_many(payloads)
        headers = None if headers is None else dict(headers)
        for at in range(0, len(ready), MANY):
            part = list(ready[at : at + MANY])
            await self._outgoing.admit_many(self._lane, self, part, self._note, headers)

    async def send_numbered(self, columns: Columns, seq: int) -> None:
        """Put a batch on its way whose number is given: whoever publishes the same again, after a
        crash say, under the same producer_id and number, publishes nothing.

        Numbers rise from batch to batch. Their times are not taken: all messages are of now.
        """
        batch = await self._outgoing.admit_numbered(self._lane, self, columns, seq)
        self._batches[batch] = None

    def _note(self, batch: Batch) -> None:
        self._batches[batch] = None

    async def flush(self) -> Receipts:
        """Wait until all that was sent is acked (not persistent: taken by the socket).

        Raises the first refusal, with a text that names the messages which were not acked;
        `not_acked` lists them. Disconnected leaves them on their way: flush again.
        """
        for batch in list(self._batches):
            try:
                await self._outgoing.wait(batch)
            except Disconnected as error:
                raise Disconnected(
                    f"{self._on_their_way()} messages to {self.topic} are not acked and still on "
                    f"their way: {error.text}"
                ) from error
            except BusnodeError:
                if not batch.settled:
                    raise
        self._count_settled()
        receipts, self._receipts = self._receipts, Receipts()
        self.not_acked, self._refused = self._refused, []
        self._counted = 0
        if self.not_acked:
            raise self._failure()
        return receipts

    def settled(self) -> None:
        self._count_settled()

    def _count_settled(self) -> None:
        """Take account of what is settled, in the order of sending."""
        while self._batches:
            batch = next(iter(self._batches))
            if not batch.settled:
                return
            del self._batches[batch]
            for first, count in batch.shares_of(self):
                self._counted += count
                if batch.error is not None:
                    self._note_refusal(count, batch.error)
                elif self._lane.persistent:
                    number = batch.first_no + first
                    self._receipts.add(batch.broker_id, number, count, batch.level)

    def _note_refusal(self, count: int, error: BusnodeError) -> None:
        first = self._counted - count + 1
        if self._refused and self._refused[-1].follows_on(first, error):
            self._refused[-1] = self._refused[-1]._replace(last=self._counted)
        elif len(self._refused) < REFUSALS_MAX:
            self._refused.append(NotAcked(first, self._counted, error))

    def _failure(self) -> BusnodeError:
        error = self.not_acked[0].error
        rows = [f"{row.first} to {row.last}" for row in self.not_acked[:SHOWN]]
        more = "" if len(self.not_acked) <= SHOWN else " and more"
        return refusal(
            error.code,
            f"of the messages to {self.topic} since the last flush, numbers {', '.join(rows)}"
            f"{more} were not acked: {error.text}",
            error.retry_after_s,
        )

    def _on_their_way(self) -> int:
        return sum(count for batch in self._batches for _, count in batch.shares_of(self))
