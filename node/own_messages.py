"""The node itself as a publisher: of durable positions, events, and what becomes of tasks."""

from collections.abc import Callable, Iterable
from typing import Final

from busnode.node.publishing import OWN_PRODUCER, Publisher, Publishing
from busnode.node.receipts import Row
from busnode.security.rules import Rights
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.errors import BusnodeError
from busnode.wire.frames import Flags, encode_batch_frame
from busnode.wire.ids import BrokerId, Topic
from busnode.wire.runs import verify_runs

PERSISTENT: Final = Flags.PERSISTENT | Flags.LOCAL
"""How the node keeps messages of its own."""


class OwnPublisher:
    """A part of the node that publishes. This one waits for no acks."""

    is_client = False

    def __init__(self) -> None:
        self.identity = ""
        self.rights: Rights | None = None
        self.uncommitted_bytes = 0

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        """The commit that it tells of has happened."""

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        """The log is lost; a new incarnation begins, and what is to be kept is kept there."""

    def committed(self, size_bytes: int) -> None:
        self.uncommitted_bytes -= size_bytes


class OwnMessages:
    """Publishes messages of the system's own."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self._nobody = OwnPublisher()

    @property
    def broker_id(self) -> BrokerId:
        """The incarnation under which they are kept now."""
        return self._publishing.broker_id

    def publish(
        self,
        topic: Topic,
        columns: Columns,
        utc_us: int,
        flags: Flags,
        publisher: Publisher | None = None,
    ) -> None:
        """One batch, for which `publisher` gets the ack. Refused or Unavailable as for anybody. It
        is sent with the next `flush`."""
        frame = encode_batch_frame(
            topic=topic.encode(),
            body=encode_columns(columns),
            count=len(columns.payloads),
            flags=flags,
            utc_us=utc_us,
            producer_id=OWN_PRODUCER,
            producer_seq=0,
        )
        buffer = bytearray(frame)
        view = memoryview(buffer)
        for run in verify_runs(buffer, view, 0, len(buffer))[0]:
            self._publishing.publish(publisher or self._nobody, view, run, system=True)

    def write_with_next(self, write: Callable[[], None]) -> None:
        """Have it called when the next commit begins: what it publishes then is a part of that."""
        self._publishing.write_with_next(write)

    def flush(self) -> None:
        """Send what was published."""
        self._publishing.flush()
