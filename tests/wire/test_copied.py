"""Records that a mirror is sent: all that their origin wrote is taken, and nothing else."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import Chunk, encode_control
from busnode.wire.copied import CopiedRun, copied_log, record_from, verify_copied
from busnode.wire.errors import BadFrame, ProtocolError
from busnode.wire.frames import (
    HEADER_BYTES,
    STAMP_AT,
    TRANSPORT_AT,
    Flags,
    Transport,
    broker_seed,
    encode_batch_frame,
)
from busnode.wire.ids import BrokerId
from busnode.wire.reader import FrameReader, Runs
from busnode.wire.runs import FLAGS_TAKEN, stamp_run, verify_runs

from .samples import BROKER, flipped, patched

TOPIC = b"/plant/north/temp"
OTHER = BrokerId(bytes(16))
LOG = copied_log(BROKER, TOPIC)

Published = tuple[int, int, int]
"""Messages, producer and its number."""


def record(
    first_no: int,
    messages: int = 1,
    *,
    producer_id: int = 7,
    seq: int = 0,
    topic: bytes = TOPIC,
    broker_id: BrokerId = BROKER,
    flags: int = Flags.PERSISTENT | Flags.GLOBAL,
    utc_us: int = 1,
) -> bytes:
    frame = bytearray(
        encode_batch_frame(
            topic=topic,
            body=encode_columns(Columns([b"%d" % first_no] * messages)),
            count=messages,
            flags=flags,
            utc_us=utc_us,
            producer_id=producer_id,
            producer_seq=seq,
        )
    )
    with memoryview(frame) as view:
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        stamp_run(view, run, broker_id, broker_seed(broker_id), first_no)
    return bytes(frame)


def records(published: list[Published], first_no: int = 1) -> list[bytes]:
    made: list[bytes] = []
    for messages, producer_id, seq in published:
        made.append(record(first_no, messages, producer_id=producer_id, seq=seq, utc_us=first_no))
        first_no += messages
    return made


def verified(data: bytes) -> CopiedRun | None:
    return verify_copied(memoryview(data), 0, len(data), LOG)


some_published = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=12
)


# What is taken ------------------------------------------------------------------------------------


@given(some_published, st.integers(1, 2**63), st.data())
def test_whole_records_are_taken_and_the_rest_is_left(
    published: list[Published], first_no: int, data: st.DataObject
) -> None:
    made = records(published, first_no)
    stream = b"".join(made)
    end = data.draw(st.integers(0, len(stream)))
    run = verify_copied(memoryview(stream), 0, end, LOG)
    whole = 0
    while whole < len(made) and len(b"".join(made[: whole + 1])) <= end:
        whole += 1
    if not whole:
        assert run is None
        return
    assert run is not None
    messages = sum(each[0] for each in published[:whole])
    assert (run.start, run.end) == (0, len(b"".join(made[:whole])))
    assert (run.first_no, run.count, run.next_no) == (first_no, messages, first_no + messages)
    assert run.topic == TOPIC
    assert run.utc_us_max == first_no + messages - published[whole - 1][0]


@given(some_published)
def test_the_numbers_of_its_producers_are_told_as_they_are(published: list[Published]) -> None:
    run = verified(b"".join(records(published)))
    assert run is not None
    told: list[Published] = []
    next_no = 1
    for producer_id, first_seq, first_no, ends in run.producer_runs:
        assert first_no == next_no
        next_no += ends[-1]
        assert first_seq or len(ends) == 1, "what has no number stands alone"
        counts = [end - before for before, end in pairwise([0, *ends])]
        told += [(count, producer_id, first_seq + place) for place, count in enumerate(counts)]
    assert told == published
    assert next_no == run.next_no


def test_a_producer_that_goes_on_is_told_once() -> None:
    run = verified(b"".join(records([(2, 7, 5), (3, 7, 6), (1, 7, 7)])))
    assert run is not None
    assert run.producer_runs == [(7, 5, 1, [2, 5, 6])]


@pytest.mark.parametrize("flags", sorted(flags for flags in FLAGS_TAKEN if flags & 1))
def test_flags_divide_nothing(flags: int) -> None:
    run = verified(record(1) + record(2, flags=flags) + record(3))
    assert run is not None
    assert run.count == 3


@given(some_published, st.integers(0, 40))
def test_the_first_record_from_a_number_on_is_found(published: list[Published], no: int) -> None:
    made = records(published)
    stream = b"".join(made)
    run = verified(stream)
    assert run is not None
    at, number = record_from(memoryview(stream), run, no)
    assert number >= min(no, run.next_no)
    if at < run.end:
        rest = verify_copied(memoryview(stream), at, run.end, LOG)
        assert rest is not None
        assert rest.first_no == number
        before = max((r for r in (1, *_firsts(published)) if r < number), default=0)
        assert before < no or at == 0
    else:
        assert number == run.next_no


def _firsts(published: list[Published]) -> list[int]:
    firsts = [1]
    for messages, _, _ in published:
        firsts.append(firsts[-1] + messages)
    return firsts


# What is refused ----------------------------------------------------------------------------------

BEFORE = b"".join(record(number, seq=number) for number in range(1, 20))
BEHIND = b"".join(record(number, seq=number) for number in range(21, 40))

BAD = {
    "a flipped header hash": flipped(record(20), (STAMP_AT + 24) * 8),
    "a flipped number": flipped(record(20), (STAMP_AT + 16) * 8),
    "a flipped body": flipped(record(20), len(record(20)) * 8 - 1),
    "a number twice": record(19),
    "a number left out": record(21),
    "another brokerId": record(20, broker_id=OTHER),
    "another topic": record(20, topic=b"/plant/south/temp"),
    "a longer topic": record(20, topic=TOPIC + b"s"),
    "a shorter topic": record(20, topic=TOPIC[:-1]),
}


@pytest.mark.parametrize("what", BAD)
def test_one_bad_record_in_the_middle_takes_all_with_it(what: str) -> None:
    assert verified(BEFORE + record(20) + BEHIND) is not None
    with pytest.raises(ProtocolError) as caught:
        verified(BEFORE + BAD[what] + BEHIND)
    assert "record" in caught.value.text


@given(st.data())
def test_no_flipped_bit_is_taken(data: st.DataObject) -> None:
    """A flip in the length or kind may make a record one that is not all there, or another frame;
    never one that is taken."""
    good = record(2, 3, seq=4)
    bad = flipped(good, data.draw(st.integers(0, len(good) * 8 - 1)))
    first = record(1)
    try:
        run = verified(first + bad + record(5) * 3)
    except ProtocolError:
        return
    assert run is not None
    assert run.end == len(first)


@pytest.mark.parametrize("count", [0, 4097])
def test_a_record_whose_number_of_messages_cannot_be_is_refused(count: int) -> None:
    """Though its hashes fit: its origin is not what it should be."""
    frame = bytearray(record(1))
    struct.pack_into("<I", frame, 48, count)
    whole = encode_again(bytes(frame))
    with pytest.raises(ProtocolError, match="messages"):
        verified(whole)


def encode_again(frame: bytes) -> bytes:
    """The same with hashes that fit."""
    body = xxh3_64_intdigest(frame[48:])
    frame = patched(frame, 40, body.to_bytes(8, "little"))
    number = int.from_bytes(frame[24:32], "little")
    stamp = xxh3_64_intdigest(frame[40:HEADER_BYTES], number ^ broker_seed(BROKER))
    return patched(frame, 32, stamp.to_bytes(8, "little"))


# In a reader --------------------------------------------------------------------------------------


def chunk(content: bytes, first_no: int = 1) -> bytes:
    head = Chunk(0, 0, BROKER, TOPIC.decode(), first_no, first_no, len(content), False, True)
    return encode_control(head) + content


def copied(data: bytes, sizes: list[int]) -> bytes:
    """All records that a mirror's reader hands on when the bytes come in such parts."""
    reader = FrameReader(copies=True)
    found = bytearray()
    next_no = 1
    while data:
        size = min(sizes.pop(0) if sizes else len(data), len(data))
        space = reader.space()
        size = min(size, len(space))
        space[:size] = data[:size]
        reader.received(size)
        data = data[size:]
        for event in reader.events():
            if isinstance(event, Runs):
                (run,) = event.runs
                assert isinstance(run, CopiedRun)
                assert run.first_no == next_no
                next_no = run.next_no
                found += reader.view[run.start : run.end]
    return bytes(found)


@given(some_published, some_published, st.lists(st.integers(1, 300), max_size=40))
def test_any_split_of_chunks_gives_the_same_records(
    first: list[Published], second: list[Published], sizes: list[int]
) -> None:
    one = b"".join(records(first))
    next_no = 1 + sum(each[0] for each in first)
    two = b"".join(records(second, next_no))
    assert copied(chunk(one) + chunk(two, next_no), sizes) == one + two


def test_a_record_with_transport_flags_is_refused() -> None:
    forwarded = patched(record(2), TRANSPORT_AT, bytes([Transport.FORWARDED]))
    with pytest.raises(BadFrame):
        copied(chunk(record(1) + forwarded), [])


def test_a_chunk_that_ends_in_the_middle_of_a_record_is_refused() -> None:
    with pytest.raises(BadFrame):
        copied(chunk(record(1) + record(2)[:-1]) + record(3), [])
