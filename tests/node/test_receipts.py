"""Acks: after the commit, in order, together, and for nobody who is gone."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from busnode.node.receipts import (
    Receipt,
    Receipts,
    Row,
    encode_acks,
    encode_refusal,
    encode_refusals,
)
from busnode.segments.memory_store import MemoryLog
from busnode.testing.sim.clock import SimClock
from busnode.wire.control import Ack, Control, Error, decode_control
from busnode.wire.errors import BusnodeError, LogPoisoned, Unavailable
from busnode.wire.frames import PREFIX, FrameType
from busnode.wire.ids import BrokerId, LogId, MsgNo

from ..segments.samples import OTHER_BROKER, PRESSURE, TEMPERATURE


@dataclass(eq=False)
class Publisher:
    """Notes what it is sent."""

    got: list[Control] = field(default_factory=list[Control])
    frames: int = 0
    uncommitted_bytes: int = 0

    def acked(self, broker_id: BrokerId, level: str, rows: list[Row]) -> None:
        self.send(encode_acks(broker_id, level, rows))

    def refused(self, error: BusnodeError, seqs: Iterable[int]) -> None:
        self.send(encode_refusals(error, FrameType.BATCH, seqs))

    def send(self, frame: bytes) -> None:
        self.frames += 1
        with memoryview(frame) as view:
            at = 0
            while at < len(view):
                length = PREFIX.unpack_from(view, at)[0]
                self.got.append(decode_control(view[at : at + length]))
                at += length

    def committed(self, size_bytes: int) -> None:
        self.uncommitted_bytes -= size_bytes

    def rows(self) -> list[tuple[int, int, int]]:
        return [row for ack in self.got if isinstance(ack, Ack) for row in ack.receipts]


def a_log(log_id: LogId = TEMPERATURE, committed_no: int = 0) -> MemoryLog:
    log = MemoryLog(log_id, SimClock())
    log.committed_no = MsgNo(committed_no)
    return log


def add(
    receipts: Receipts, log: MemoryLog, publisher: Publisher, seq: int, first_no: int, last_no: int
) -> None:
    publisher.uncommitted_bytes += 100
    receipts.add(log, Receipt(publisher, 100, seq, 1, first_no, last_no))


def test_only_what_a_commit_covers_is_acked() -> None:
    receipts, log, publisher = Receipts(), a_log(), Publisher()
    for seq in range(1, 6):
        add(receipts, log, publisher, seq, 10 * seq - 9, 10 * seq)
    receipts.settle([log])
    assert publisher.got == []
    log.committed_no = MsgNo(39)
    receipts.settle([log])
    assert publisher.rows() == [(1, 1, 1), (2, 1, 11), (3, 1, 21)]
    assert publisher.uncommitted_bytes == 200
    log.committed_no = MsgNo(50)
    receipts.settle([log])
    assert publisher.rows()[3:] == [(4, 1, 31), (5, 1, 41)]
    assert publisher.uncommitted_bytes == 0
    receipts.settle([log])
    assert publisher.frames == 2


def test_one_frame_for_each_publisher_and_incarnation() -> None:
    receipts = Receipts()
    logs = [a_log(TEMPERATURE, 9), a_log(PRESSURE, 9)]
    old = a_log(LogId(OTHER_BROKER, TEMPERATURE.topic), 9)
    one, other = Publisher(), Publisher()
    for seq, log in enumerate([*logs, old], 1):
        add(receipts, log, one, seq, 1, 1)
        add(receipts, log, other, seq, 2, 2)
    receipts.settle([*logs, old])
    for publisher in (one, other):
        brokers = [(ack.broker_id, len(ack.receipts)) for ack in publisher.got]  # type: ignore[attr-defined]
        assert brokers == [(TEMPERATURE.broker_id, 2), (OTHER_BROKER, 1)]


def test_more_receipts_than_a_frame_holds_are_sent_in_several() -> None:
    receipts, log, publisher = Receipts(), a_log(committed_no=5000), Publisher()
    for seq in range(1, 3001):
        add(receipts, log, publisher, seq, seq, seq)
    receipts.settle([log])
    assert [len(ack.receipts) for ack in publisher.got] == [1024, 1024, 952]  # type: ignore[attr-defined]
    assert publisher.rows() == [(seq, 1, seq) for seq in range(1, 3001)]


def test_a_repeat_of_an_old_batch_behind_a_new_one_is_acked_with_it() -> None:
    receipts, log, publisher = Receipts(), a_log(committed_no=5), Publisher()
    add(receipts, log, publisher, 9, 6, 6)
    receipts.add(log, Receipt(publisher, 0, 2, 1, 3, 3))
    receipts.settle([log])
    assert publisher.got == []
    log.committed_no = MsgNo(6)
    receipts.settle([log])
    assert publisher.rows() == [(9, 1, 6), (2, 1, 3)]
    assert publisher.uncommitted_bytes == 0


def test_all_that_waits_for_a_lost_log_is_refused_by_name() -> None:
    receipts, log, other, publisher = Receipts(), a_log(), a_log(PRESSURE), Publisher()
    publisher.uncommitted_bytes = 300
    receipts.add(log, Receipt(publisher, 200, 5, 3, 1, 9))
    receipts.add(other, Receipt(publisher, 100, 8, 1, 1, 1))
    receipts.refuse(log, LogPoisoned("the disk", retry_after_s=0.0))
    errors = [(e.code, e.refused, e.about) for e in publisher.got]  # type: ignore[attr-defined]
    assert errors == [("LOG_POISONED", FrameType.BATCH, seq) for seq in (5, 6, 7)]
    assert publisher.uncommitted_bytes == 100
    log.committed_no = other.committed_no = MsgNo(9)
    receipts.settle([log, other])
    assert publisher.rows() == [(8, 1, 1)]


def test_who_is_gone_is_acked_no_more_and_others_are() -> None:
    receipts, log, gone, here = Receipts(), a_log(), Publisher(), Publisher()
    add(receipts, log, gone, 1, 1, 1)
    add(receipts, log, here, 1, 2, 2)
    add(receipts, log, gone, 2, 3, 3)
    only_gone = a_log(PRESSURE)
    add(receipts, only_gone, gone, 3, 1, 1)
    receipts.forget(gone)
    log.committed_no = only_gone.committed_no = MsgNo(3)
    receipts.settle([log, only_gone])
    assert gone.got == []
    assert here.rows() == [(1, 1, 2)]
    assert not receipts._waiting


@pytest.mark.parametrize("text", ["short", "x" * 5000, "é" * 1000])
def test_an_error_of_any_length_becomes_a_frame(text: str) -> None:
    error = Unavailable(text, retry_after_s=1.5)
    one = decode_control(memoryview(encode_refusal(error, FrameType.BATCH, 7)))
    assert isinstance(one, Error)
    assert (one.code, one.about, one.retry_after_s) == ("UNAVAILABLE", 7, 1.5)
    assert text.startswith(one.text)
    publisher = Publisher()
    publisher.send(encode_refusals(error, FrameType.BATCH, [7, 8]))
    assert publisher.got[0] == one
    assert len(publisher.got) == 2
