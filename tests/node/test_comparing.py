"""Copies are compared now and then, in the simulator: none rots or drifts unseen."""

import pytest
import trio

from busnode.segments.store import Range
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import Compare
from busnode.wire.frames import (
    HEADER_BYTES,
    Flags,
    broker_seed,
    encode_batch_frame,
    read_header,
)
from busnode.wire.ids import LogId
from busnode.wire.runs import stamp_run, verify_runs

from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster
from .test_mending import damage, filled, flip

EVERY_S = 10.0


def compared(cluster: SimulatedCluster) -> int:
    return sum(node.node.peers.comparing.compared for node in cluster.nodes.values())


def different(cluster: SimulatedCluster) -> int:
    return sum(node.node.peers.comparing.different for node in cluster.nodes.values())


@pytest.mark.parametrize("damaged", ["a", "b"])
@pytest.mark.parametrize("seed", range(3))
def test_damage_that_nobody_reads_is_found_and_mended(seed: int, damaged: str) -> None:
    @on_cluster(seed, "a", "b", compare_every_s=EVERY_S)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 60)
        flip(cluster[damaged], log_id, 17)
        assert damage(cluster[damaged]) == [(17, 17)]
        await cluster.until(lambda: not damage(cluster[damaged]), "a whole disk")
        before = compared(cluster)
        await cluster.until(lambda: compared(cluster) >= before + 60, "a round without damage")
        assert different(cluster) == 0


def test_copies_that_are_both_damaged_in_the_same_place_stay_as_they_are() -> None:
    @on_cluster(0, "a", "b", compare_every_s=EVERY_S)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        for name in ("a", "b"):
            flip(cluster[name], log_id, 5)
        await trio.sleep(3 * EVERY_S)
        for name in ("a", "b"):
            assert damage(cluster[name]) == [(5, 5)]
            log = cluster[name].node.store.get(log_id)
            assert log is not None
            assert [(hole.first_no, hole.last_no) for hole in log.holes()] == [(5, 5)]


def forge(node: SimulatedNode, log_id: LogId, msg_no: int) -> None:
    """Put another record in the place of one: just as long, and with good hashes."""
    log = node.node.store.get(log_id)
    assert log is not None
    found = log.reader(msg_no - 1).next_range(1)
    assert isinstance(found, Range)
    contents = node.disk._tree.file(found.file.path).contents.cached
    old = read_header(memoryview(contents), found.offset)
    overhead = HEADER_BYTES + len(log_id.topic) + len(encode_columns(Columns([b""])))
    frame = bytearray(
        encode_batch_frame(
            topic=log_id.topic.encode(),
            body=encode_columns(Columns([b"?" * (old.length - overhead)])),
            count=1,
            flags=Flags(old.flags),
            utc_us=old.utc_us,
            producer_id=old.producer_id,
            producer_seq=old.producer_seq,
        )
    )
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        stamp_run(view, run, log_id.broker_id, broker_seed(log_id.broker_id), msg_no)
    assert len(frame) == old.length
    contents[found.offset : found.offset + old.length] = frame


def test_copies_that_are_good_and_not_the_same_are_told_of_and_never_overwritten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @on_cluster(0, "a", "b", compare_every_s=EVERY_S)
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        forge(cluster["b"], log_id, 9)
        images = [bytes_of(cluster[name], log_id) for name in ("a", "b")]
        assert images[0] != images[1]
        await cluster.until(lambda: different(cluster) > 0, "an error")
        await trio.sleep(EVERY_S)
        assert [bytes_of(cluster[name], log_id) for name in ("a", "b")] == images

    assert "copies differ" in caplog.text


def bytes_of(node: SimulatedNode, log_id: LogId) -> bytes:
    log = node.node.store.get(log_id)
    assert log is not None
    found = log.reader(0).next_range(1 << 20)
    assert isinstance(found, Range)
    data = bytearray(found.length)
    found.file.read_into(memoryview(data), found.offset)
    return bytes(data)


def test_questions_without_sense_are_answered_with_nothing() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        log_id = await filled(cluster, 20)
        (link,) = cluster["b"].node.peers.links.values()
        comparing = cluster["b"].node.peers.comparing
        answers: list[bytes] = []
        comparing.answered = lambda message: answers.append(message.digest)  # type: ignore[method-assign]
        questions = [(0, 5), (5, 4), (1, 2**64 - 1), (1, 21), (21, 21), (1, 20)]
        for number, (first_no, last_no) in enumerate(questions):
            link.tell(Compare(number, *log_id, first_no, last_no))
        link.tell(Compare(99, log_id.broker_id, "/none", 1, 1))
        await cluster.until(lambda: len(answers) == 7, "answers")
        assert sorted(map(len, answers)) == [0] * 6 + [16]
