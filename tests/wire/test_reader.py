"""Bytes in, events out: any split gives the same, and memory follows what really came."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire import limits
from busnode.wire.control import Chunk, Control, Ping, Pong, encode_control
from busnode.wire.errors import (
    BadControl,
    BadFrame,
    BadHash,
    BadVersion,
    FrameTooLarge,
    ProtocolError,
)
from busnode.wire.frames import HEADER_BYTES, TRANSPORT_AT, FrameType, Transport
from busnode.wire.reader import SPACE_BYTES_FIRST, SPACE_BYTES_MAX, FrameReader, Runs
from busnode.wire.runs import DELIVERED_KINDS, FORWARDED_KINDS, PLAIN_KINDS

from .samples import (
    BatchEvent,
    batch,
    chunk,
    control_values,
    fed,
    flattened,
    flipped,
    opening,
    patched,
    streams,
)


def forwarded(frame: bytes) -> bytes:
    return patched(frame, TRANSPORT_AT, bytes([Transport.FORWARDED]))


def large(size_bytes: int, topic: str = "/a") -> bytes:
    """A batch whose whole frame has this size."""
    return batch(topic, body=bytes(size_bytes - HEADER_BYTES - len(topic)), count=1)


# Splits -------------------------------------------------------------------------------------------


@given(streams, st.lists(st.integers(1, 60), max_size=60))
def test_any_split_of_the_same_bytes_gives_the_same_events(data: bytes, sizes: list[int]) -> None:
    whole = fed(FrameReader(), data)
    assert fed(FrameReader(), data, sizes) == whole
    # Nothing is lost or made up: what was not in a control frame is in a batch.
    controls = sum(len(encode_control(event)) for event in whole if isinstance(event, Control))
    inside = sum(len(event.frame) for event in whole if isinstance(event, BatchEvent))
    assert controls + inside == len(data)


def test_one_byte_at_a_time_gives_the_same_events() -> None:
    data = b"".join(
        [
            batch("/a"),
            encode_control(Ping(1)),
            chunk(batch("/b") + batch("/c"), last=True),
            chunk(last=True),
            batch("/a") * 2,
            encode_control(Pong(2)),
        ]
    )
    events = fed(FrameReader(), data, [1] * len(data))
    assert events == fed(FrameReader(), data)
    assert [
        (event.topic, bool(event.chunk)) if isinstance(event, BatchEvent) else event.TYPE.name
        for event in events
    ] == [
        (b"/a", False),
        "PING",
        "CHUNK",
        (b"/b", True),
        (b"/c", True),
        "CHUNK",
        (b"/a", False),
        (b"/a", False),
        "PONG",
    ]


def test_what_is_complete_is_told_at_once() -> None:
    reader = FrameReader()
    first, second = batch("/a"), encode_control(Ping(7))
    assert len(fed(reader, first + second[:-1])) == 1
    assert reader.buffered_bytes == len(second) - 1
    assert fed(reader, second[-1:]) == [Ping(7)]
    assert reader.buffered_bytes == 0
    assert flattened(reader) == []


def test_batches_that_came_together_are_one_event_with_a_run_for_each_topic() -> None:
    reader = FrameReader()
    data = batch("/a") * 3 + batch("/b")
    reader.space()[: len(data)] = data
    reader.received(len(data))
    [event] = reader.events()
    assert isinstance(event, Runs)
    assert [(run.topic, len(run.batches)) for run in event.runs] == [(b"/a", 3), (b"/b", 1)]
    assert event.chunk is None


def test_a_run_points_into_the_buffer_that_the_reader_shows() -> None:
    reader = FrameReader()
    frame = batch("/a")
    reader.space()[: len(frame)] = frame
    reader.received(len(frame))
    [event] = reader.events()
    assert isinstance(event, Runs)
    run = event.runs[0]
    assert reader.view[run.start : run.end] == frame
    reader.view[run.start + 8] = 0xFF  # stamped in place
    assert reader.view[run.start : run.end] != frame


# Memory -------------------------------------------------------------------------------------------


def test_an_idle_connection_costs_little() -> None:
    assert len(FrameReader().view) == SPACE_BYTES_FIRST == 4096


@pytest.mark.parametrize("size", [limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX - 1, 5_000_003])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_the_largest_frame_goes_through_and_its_memory_is_given_back(
    size: int, before: int
) -> None:
    reader = FrameReader()
    frame = large(size)
    small = batch("/b")
    events = fed(reader, small * before + frame, [65536] * 200)
    assert events[-1] == BatchEvent(frame, b"/a", 1, None)
    assert len(events) == before + 1
    assert len(reader.view) <= 2 * limits.FRAME_BYTES_MAX
    reader.space()
    assert len(reader.view) == SPACE_BYTES_MAX


def test_memory_is_given_back_though_the_next_frame_has_begun() -> None:
    reader = FrameReader()
    small = batch("/b")
    fed(reader, large(5_000_000) + small[:50], [65536] * 200)
    assert reader.buffered_bytes == 50
    reader.space()
    assert len(reader.view) == SPACE_BYTES_MAX
    assert fed(reader, small[50:]) == [BatchEvent(small, b"/b", 2, None)]


def test_memory_is_kept_for_a_large_frame_that_follows_another() -> None:
    reader = FrameReader()
    frame = large(3_000_000)
    fed(reader, frame + frame[:50], [65536] * 200)
    size = len(reader.view)
    reader.space()
    assert len(reader.view) == size
    assert fed(reader, frame[50:], [65536] * 200) == [BatchEvent(frame, b"/a", 1, None)]


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (FrameType.BATCH, limits.FRAME_BYTES_MAX),
        (FrameType.SUBSCRIBE, limits.SUBSCRIBE_BYTES_MAX),
        (FrameType.REQUEST, limits.REQUEST_BYTES_MAX),
    ],
)
def test_memory_grows_with_the_bytes_that_came_and_not_with_the_length_announced(
    kind: FrameType, length: int
) -> None:
    reader = FrameReader()
    assert fed(reader, opening(kind, length)) == []
    received = 8
    while received < length - limits.KIB:
        assert len(reader.view) <= max(SPACE_BYTES_FIRST, 2 * received)
        received += 1000
        assert fed(reader, bytes(1000)) == []
        assert reader.buffered_bytes == received


def test_a_chunk_that_announces_the_most_there_is_costs_nothing() -> None:
    reader = FrameReader()
    [announced] = fed(reader, chunk(length=2**64 - 1))
    assert isinstance(announced, Chunk)
    events = fed(reader, batch() * 100, [100] * 200)
    assert [isinstance(event, BatchEvent) and event.chunk for event in events] == [announced] * 100
    assert len(reader.view) == SPACE_BYTES_FIRST


def test_a_busy_connection_gets_a_large_buffer_and_no_more() -> None:
    reader = FrameReader()
    frame = batch("/a", [bytes(1000)])
    fed(reader, frame * 5000)
    assert len(reader.view) == SPACE_BYTES_MAX


@given(st.lists(st.integers(1, 3 * SPACE_BYTES_MAX // 2), min_size=1, max_size=6), st.data())
def test_there_is_always_space(lengths: list[int], data: st.DataObject) -> None:
    reader = FrameReader()
    frames = [batch("/a", [bytes(length)]) for length in lengths]
    sizes = data.draw(st.lists(st.integers(1, 200_000), max_size=10))
    events = fed(reader, b"".join(frames), sizes)  # which asserts that there is
    assert [event.frame for event in events if isinstance(event, BatchEvent)] == frames


# Transport flags ----------------------------------------------------------------------------------


def test_a_batch_with_transport_flags_is_refused_where_they_are_not_taken() -> None:
    for transport in range(1, 256):
        frame = patched(batch(), TRANSPORT_AT, bytes([transport]))
        with pytest.raises(BadFrame, match="transport flags"):
            fed(FrameReader(PLAIN_KINDS), frame)
    with pytest.raises(BadFrame, match="transport flags"):
        fed(FrameReader(PLAIN_KINDS), batch() + forwarded(batch()))
    with pytest.raises(BadFrame, match="transport flags"):
        fed(FrameReader(FORWARDED_KINDS), batch())


def test_a_batch_with_transport_flags_is_taken_where_it_is_expected() -> None:
    one, other = forwarded(batch("/a")), batch("/b")
    assert len(fed(FrameReader(FORWARDED_KINDS), one * 3)) == 3
    assert len(fed(FrameReader(DELIVERED_KINDS), one + other + one)) == 3


@pytest.mark.parametrize("kinds", [PLAIN_KINDS, FORWARDED_KINDS, DELIVERED_KINDS])
def test_a_chunk_holds_what_the_connection_takes_and_what_lies_on_disk(
    kinds: frozenset[int],
) -> None:
    assert len(fed(FrameReader(kinds), chunk(batch() * 2))) == 3
    if kinds != PLAIN_KINDS:
        assert len(fed(FrameReader(kinds), chunk(forwarded(batch()) + batch()))) == 3
    for transport in (Transport.REPLAY, Transport.LAST, *([1] if kinds == PLAIN_KINDS else [])):
        with pytest.raises(BadFrame, match="transport flags"):
            fed(FrameReader(kinds), chunk(patched(batch(), TRANSPORT_AT, bytes([transport]))))


def test_the_connection_takes_its_own_kind_again_behind_a_chunk() -> None:
    data = forwarded(batch()) + chunk(batch()) + forwarded(batch())
    assert len(fed(FrameReader(FORWARDED_KINDS), data)) == 4
    with pytest.raises(BadFrame, match="transport flags"):
        fed(FrameReader(FORWARDED_KINDS), data + batch())


# Chunks -------------------------------------------------------------------------------------------


def test_a_chunk_without_bytes_is_only_said() -> None:
    events = fed(FrameReader(), chunk(last=True) + batch())
    assert isinstance(events[0], Chunk)
    assert events[0].last
    assert isinstance(events[1], BatchEvent)
    assert events[1].chunk is None


def test_live_frames_stand_between_chunks() -> None:
    first, second = batch("/a"), batch("/b")
    ping = encode_control(Ping(1))
    events = fed(FrameReader(), chunk(first) + ping + second + chunk(first, last=True) + second)
    assert [event.chunk is not None for event in events if isinstance(event, BatchEvent)] == [
        True,
        False,
        True,
        False,
    ]


def test_every_chunk_that_cuts_a_batch_is_refused() -> None:
    whole = batch("/a")
    data = whole * 2
    for length in range(1, len(data)):
        if length == len(whole):
            continue
        stream = chunk(data, length=length) + whole * 2
        with pytest.raises(BadFrame, match="not whole batches"):
            fed(FrameReader(), stream)
        with pytest.raises(BadFrame, match="not whole batches"):
            fed(FrameReader(), stream, [7] * 200)


def test_a_chunk_with_a_control_frame_in_it_is_refused() -> None:
    ping = encode_control(Ping(1))
    for inside in (ping, batch() + ping, ping + batch(), chunk(batch())):
        with pytest.raises(BadFrame, match="not whole batches"):
            fed(FrameReader(), chunk(inside))
        with pytest.raises(BadFrame, match="not whole batches"):
            fed(FrameReader(), chunk(inside), [5] * 200)


def test_a_chunk_with_something_else_in_it_is_refused() -> None:
    with pytest.raises(BadFrame):
        fed(FrameReader(), chunk(b"GET / HTTP/1.1\r\n"))
    with pytest.raises(BadHash):
        fed(FrameReader(), chunk(flipped(batch(), 8 * 100)))
    with pytest.raises(FrameTooLarge):
        fed(FrameReader(), chunk(opening(FrameType.BATCH, limits.FRAME_BYTES_MAX + 1) + bytes(99)))


# Streams that break the protocol ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (b"GET / HTTP/1.1\r\n", BadFrame),
        (patched(batch(), 5, b"\x02"), BadVersion),
        (opening(FrameType.BATCH, limits.FRAME_BYTES_MAX + 1), FrameTooLarge),
        (opening(FrameType.HELLO, limits.HELLO_BYTES_MAX + 1), FrameTooLarge),
        (opening(FrameType.BATCH, 79), BadFrame),
        (patched(batch(), 0, struct.pack("<I", 0)), BadFrame),
        (flipped(batch(), 8 * 100), BadHash),
        (flipped(encode_control(Ping(7)), 8 * 17), BadHash),
        (control_values(FrameType.PING, []), BadControl),
        (control_values(FrameType.PING, ["7"]), BadControl),
    ],
)
def test_what_breaks_the_protocol_is_named_and_what_came_before_is_told(
    broken: bytes, error: type[ProtocolError]
) -> None:
    reader = FrameReader()
    ping = encode_control(Ping(1))
    reader.space()[: len(ping + broken)] = ping + broken
    reader.received(len(ping + broken))
    events = reader.events()
    assert next(events) == Ping(1)
    with pytest.raises(error):
        next(events)


def test_a_length_over_the_limit_is_refused_when_its_first_eight_bytes_are_there() -> None:
    for kind in FrameType:
        reader = FrameReader()
        assert fed(reader, opening(kind, 2**32 - 1)[:7]) == []
        with pytest.raises(FrameTooLarge):
            fed(reader, b"\0")


def test_the_owner_cannot_claim_more_than_the_space() -> None:
    reader = FrameReader()
    with pytest.raises(AssertionError):
        reader.received(len(reader.space()) + 1)
