"""Acks that wait for their log to be committed."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from busnode.segments.store import Log
from busnode.wire import limits
from busnode.wire.control import Ack, Error, encode_control, encode_trusted
from busnode.wire.errors import BusnodeError, NotMirrored
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId

LOCAL: Final = "local"
"""The level of a message that is safe on this node's disk alone."""

RETRY_S: Final = 1.0
"""When to try again where a mirror was asked for and there is none."""

Safe = Callable[[Log], tuple[int, str]]
"""Up to which number a log may be acked, and with which level."""


def safe_here(log: Log) -> tuple[int, str]:
    """Without mirrors: what this node's disk has."""
    return log.committed_no, LOCAL


Row = tuple[int, int, int]
"""A receipt as it is told: first producerSeq, batches, first msgNo."""


class Acked(Protocol):
    """Who waits for an ack: a session, or a part of the node itself."""

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        """These batches are safe in logs of that incarnation."""
        ...

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        """These batches, by their producerSeq, were not taken, or not as it was asked for."""
        ...

    def committed(self, size_bytes: int) -> None:
        """So many bytes that it appended are durable."""
        ...


class Receipt(NamedTuple):
    """A run of a producer's batches, and where its last message stands."""

    session: Acked
    size_bytes: int
    """What was appended for it: 0 for a repeat."""
    first_seq: int
    batches: int
    first_no: int
    last_no: int
    must_be_mirrored: bool = False


class Receipts:
    """The receipts of all logs, in the order of their numbers."""

    def __init__(self) -> None:
        self.safe: Safe = safe_here
        self._waiting: dict[Log, deque[Receipt]] = {}

    @property
    def waiting(self) -> int:
        """Receipts of all logs together."""
        return sum(map(len, self._waiting.values()))

    def add(self, log: Log, receipt: Receipt) -> None:
        self._waiting.setdefault(log, deque()).append(receipt)

    def settle(self, logs: list[Log]) -> None:
        """These logs are committed further: ack what they cover, one frame for each session and
        incarnation, before anybody hears of the messages themselves."""
        due: dict[tuple[Acked, BrokerId, str], list[Row]] = {}
        for log in logs:
            waiting = self._waiting.get(log)
            if waiting is None:
                continue
            safe_no, level = self.safe(log)
            while waiting and waiting[0].last_no <= safe_no:
                receipt = waiting.popleft()
                session, size_bytes, first_seq, batches, first_no, _, must = receipt
                session.committed(size_bytes)
                if must and level == LOCAL:
                    _refuse(receipt, _not_mirrored())
                    continue
                rows = due.setdefault((session, log.log_id.broker_id, level), [])
                rows.append((first_seq, batches, first_no))
            if not waiting:
                del self._waiting[log]
        for (session, broker_id, level), rows in due.items():
            session.acked(broker_id, level, rows)

    def settle_waiting(self) -> None:
        """All logs may be acked further: only those are looked at for which somebody waits."""
        self.settle(list(self._waiting))

    def refuse(self, log: Log, error: BusnodeError) -> None:
        """The log is lost to writing: whoever waits for it must publish again, elsewhere."""
        for receipt in self._waiting.pop(log, ()):
            receipt.session.committed(receipt.size_bytes)
            _refuse(receipt, error)

    def forget(self, session: Acked) -> None:
        """The session is gone; its messages stay."""
        for log, waiting in list(self._waiting.items()):
            left = deque(receipt for receipt in waiting if receipt.session is not session)
            if left:
                self._waiting[log] = left
            else:
                del self._waiting[log]


def _refuse(receipt: Receipt, error: BusnodeError) -> None:
    seqs = range(receipt.first_seq, receipt.first_seq + receipt.batches)
    receipt.session.refused(error, seqs)


def _not_mirrored() -> NotMirrored:
    text = "the mirror was lost before it had the message, which is on this node's disk alone"
    return NotMirrored(text, retry_after_s=RETRY_S)


def encode_acks(broker_id: BrokerId, level: str, rows: list[Row]) -> bytes:
    """ACK frames, nearly always one."""
    most = limits.CONTROL_ELEMENTS_MAX
    return b"".join(
        encode_trusted(Ack, broker_id, level, rows[at : at + most])
        for at in range(0, len(rows), most)
    )


def encode_refusal(error: BusnodeError, refused: FrameType | None, about: int | None) -> bytes:
    """An ERROR frame for one of our errors."""
    kind = None if refused is None else int(refused)
    return encode_control(Error(error.code, _text(error), kind, about, error.retry_after_s))


def encode_refusals(error: BusnodeError, refused: FrameType, abouts: Iterable[int]) -> bytes:
    """ERROR frames for many of a kind at once: a buffer may hold thousands of bad batches."""
    text = _text(error)
    return b"".join(
        encode_trusted(Error, error.code, text, int(refused), about, error.retry_after_s)
        for about in abouts
    )


def _text(error: BusnodeError) -> str:
    return error.text.encode()[: limits.TEXT_BYTES_MAX].decode(errors="ignore")
