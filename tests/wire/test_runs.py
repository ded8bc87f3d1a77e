"""Verifying and stamping runs of batches in place."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.batches import decode_columns
from busnode.wire.errors import BadBatch, BadFrame, BadHash, BusnodeError, ProtocolError
from busnode.wire.frames import (
    HEADER_BYTES,
    TRANSPORT_AT,
    Flags,
    FrameType,
    Transport,
    broker_seed,
    header_hash,
    read_header,
)
from busnode.wire.ids import BrokerId, MsgNo
from busnode.wire.reader import FrameReader
from busnode.wire.runs import (
    DELIVERED_KINDS,
    FORWARDED_KINDS,
    PLAIN_KINDS,
    Run,
    stamp_run,
    verify_runs,
)

from .samples import (
    BROKER,
    U64,
    batch,
    batches,
    brokers,
    fed,
    flipped,
    opening,
    patched,
    resealed_batch,
    some_topics,
)

BATCHES = st.lists(batches(some_topics), min_size=1, max_size=8)


def verified(
    data: bytes, kinds: frozenset[int] = PLAIN_KINDS, start: int = 0
) -> tuple[bytearray, list[Run], int]:
    buffer = bytearray(data)
    runs, reached = verify_runs(buffer, memoryview(buffer), start, len(buffer), kinds)
    return buffer, runs, reached


def stamped(
    data: bytes, broker_id: BrokerId = BROKER, first_no: int = 1
) -> tuple[bytearray, list[Run], MsgNo]:
    buffer, runs, _ = verified(data)
    following = MsgNo(first_no)
    for run in runs:
        following = stamp_run(memoryview(buffer), run, broker_id, broker_seed(broker_id), following)
    return buffer, runs, following


def header_is_good(frame: bytes | bytearray, at: int = 0) -> bool:
    view = memoryview(frame)
    header = read_header(view, at)
    return header.header_hash == header_hash(view, at, header.broker_id, header.first_no)


# Grouping -----------------------------------------------------------------------------------------


@given(BATCHES, st.binary(max_size=20))
def test_batches_of_one_topic_and_with_the_same_flags_that_stand_together_are_one_run(
    frames: list[bytes], before: bytes
) -> None:
    data = before + b"".join(frames)
    buffer, runs, reached = verified(data, start=len(before))
    assert reached == len(data)
    assert buffer == data, "verifying changes nothing"
    expected: list[tuple[tuple[bytes, int], list[int]]] = []
    at = len(before)
    for frame in frames:
        header = read_header(memoryview(frame), 0)
        alike = (frame[HEADER_BYTES : HEADER_BYTES + header.topic_bytes], header.flags)
        if not expected or expected[-1][0] != alike:
            expected.append((alike, []))
        expected[-1][1].append(at)
        at += len(frame)
    assert [((run.topic, run.flags), [each.at for each in run]) for run in runs] == expected
    assert [run.start for run in runs] == [starts[0] for _, starts in expected]
    assert [run.end for run in runs] == [*(run.start for run in runs[1:]), len(data)]


@given(BATCHES)
def test_a_run_says_what_its_headers_say(frames: list[bytes]) -> None:
    buffer, runs, _ = verified(b"".join(frames))
    for run in runs:
        headers = [read_header(memoryview(buffer), each.at) for each in run]
        assert run.count == sum(header.count for header in headers)
        assert run.utc_us_max == max(header.utc_us for header in headers)
        for each, header in zip(run, headers, strict=True):
            assert each.count == header.count
            assert each.flags == header.flags
            assert (each.producer_id, each.producer_seq) == (
                header.producer_id,
                header.producer_seq,
            )


def test_a_topic_that_begins_like_another_is_another_run() -> None:
    frames = [batch(topic) for topic in ("/ab", "/abc", "/ab", "/ac", "/ac")]
    _, runs, _ = verified(b"".join(frames))
    assert [(run.topic, len(run.batches)) for run in runs] == [
        (b"/ab", 1),
        (b"/abc", 1),
        (b"/ab", 1),
        (b"/ac", 2),
    ]


def test_a_run_stops_before_a_frame_that_is_not_all_there() -> None:
    first, second = batch(producer_seq=1), batch(producer_seq=2)
    for cut in range(len(second)):
        _, runs, reached = verified(first + second[:cut])
        assert reached == len(first)
        assert [each.producer_seq for run in runs for each in run] == [1]


def test_a_run_stops_before_a_control_frame_and_before_what_is_no_frame() -> None:
    first = batch()
    for other in (opening(FrameType.PING, 100), b"GET / HTTP/1.1\r\n"):
        _, runs, reached = verified(first + other.ljust(200, b"\0"))
        assert (len(runs), reached) == (1, len(first))


def test_a_run_stops_before_a_frame_over_the_limit_even_if_it_is_all_there() -> None:
    first = batch()
    over = batch("/a", body=bytes(limits.FRAME_BYTES_MAX - HEADER_BYTES - 1), count=1)
    assert len(over) == limits.FRAME_BYTES_MAX + 1
    _, runs, reached = verified(first + over)
    assert (len(runs), reached) == (1, len(first))


def test_nothing_is_no_run() -> None:
    assert verified(b"")[1:] == ([], 0)
    assert verified(bytes(HEADER_BYTES - 1))[1:] == ([], 0)


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        (PLAIN_KINDS, {Transport.NONE}),
        (FORWARDED_KINDS, {Transport.FORWARDED}),
        (DELIVERED_KINDS, {Transport.NONE, Transport.FORWARDED}),
    ],
)
def test_only_transport_flags_that_this_side_takes_are_run_through(
    kinds: frozenset[int], taken: set[int]
) -> None:
    for transport in range(256):
        frame = patched(batch(), TRANSPORT_AT, bytes([transport]))
        _, runs, reached = verified(frame, kinds)
        assert bool(runs) == (reached == len(frame)) == (transport in taken)


# Stamping -----------------------------------------------------------------------------------------


@given(BATCHES, brokers, st.integers(1, 2**63))
def test_a_stamp_gives_numbers_without_holes_and_hashes_that_hold(
    frames: list[bytes], broker: bytes, first_no: int
) -> None:
    before = b"".join(frames)
    buffer, runs, following = stamped(before, BrokerId(broker), first_no)
    number = first_no
    for run in runs:
        for each in run:
            header = read_header(memoryview(buffer), each.at)
            assert header.broker_id == broker
            assert header.first_no == number
            assert header_is_good(buffer, each.at)
            number += header.count
            assert header.last_no == number - 1
            assert buffer[each.at : each.at + 8] == before[each.at : each.at + 8]
    assert following == number
    assert verified(bytes(buffer))[2] == len(buffer), "the body hash still holds"
    at = 0
    for frame in frames:  # nothing but bytes 8 to 39 has changed
        assert buffer[at + 40 : at + len(frame)] == frame[40:]
        at += len(frame)


def test_a_stamp_covers_what_the_producer_wrote_into_the_stamped_bytes() -> None:
    lying = patched(batch(), 8, bytes(range(1, 33)))
    assert bytes(stamped(lying)[0]) == bytes(stamped(batch())[0])


def test_the_last_number_of_all_can_be_stamped() -> None:
    buffer, _, _ = stamped(batch(), BROKER, U64 - 1)
    assert header_is_good(buffer)
    assert read_header(memoryview(buffer), 0).last_no == U64


# Damage -------------------------------------------------------------------------------------------

STAMP_BITS = range(8 * 8, 40 * 8)
SMALL = batch("/a", [b"x"])
FOLLOWING = batch("/b", [bytes(limits.FRAME_BYTES_MAX - limits.MIB // 2)])
"""Stands behind a damaged frame so that one that claims to be longer gets what it waits for."""


def outcome(data: bytes) -> str | list[bytes]:
    """The name of the error that a reader of published batches finds, or the batches."""
    try:
        return [event.frame for event in fed(FrameReader(), data)]  # type: ignore[union-attr]
    except ProtocolError as error:
        return type(error).__name__


def test_a_batch_without_a_body_is_refused() -> None:
    """Its messages would be none, and a log takes such a record for damage."""
    with pytest.raises(BadBatch, match="body"):
        verified(batch("/a", body=b"", count=1))


def test_every_flipped_bit_of_a_published_batch_is_found_or_is_stamped_over() -> None:
    found: dict[str, set[int]] = {}
    for bit in range(len(SMALL) * 8):
        damaged = flipped(SMALL, bit)
        result = outcome(damaged)
        if not result:  # it claims to be longer than it is, and the reader waits
            assert bit < 32
            result = outcome(damaged + FOLLOWING + FOLLOWING)
        if bit in STAMP_BITS:
            assert result == [damaged]
            assert stamped(damaged)[0] == stamped(SMALL)[0]
        else:
            assert isinstance(result, str), f"bit {bit % 8} of byte {bit // 8} was not found"
            found.setdefault(result, set()).add(bit // 8)
    assert found["BadVersion"] == {5}
    assert found["FrameTooLarge"] <= {2, 3, 4}
    assert found["BadFrame"] <= {0, 4, 6, 7}
    assert found["BadBatch"] <= {0, 48, 49, 50, 51, 52, 53}
    assert found["BadHash"] >= {*range(40, 48), *range(54, len(SMALL))}
    assert set(found) == {"BadVersion", "FrameTooLarge", "BadFrame", "BadBatch", "BadHash"}


def test_every_flipped_bit_of_a_stamped_batch_is_found_by_one_of_its_hashes() -> None:
    good = bytes(stamped(SMALL, BROKER, 41)[0])
    assert header_is_good(good)
    for bit in range(8 * 8, len(good) * 8):
        damaged = flipped(good, bit)
        (body_hash,) = struct.unpack_from("<Q", damaged, 40)
        body_is_good = body_hash == xxh3_64_intdigest(damaged[48:])
        where = f"bit {bit % 8} of byte {bit // 8}"
        if bit < 80 * 8:
            assert not header_is_good(damaged), f"{where} escaped the header hash"
        if bit >= 40 * 8:
            assert not body_is_good, f"{where} escaped the body hash"


def test_a_batch_damaged_behind_a_good_one_is_found_wherever_it_stands() -> None:
    damaged = flipped(batch(), len(batch()) * 8 - 1)
    with pytest.raises(BadHash, match="batch 7 of producer 0123456789abcdef"):
        verified(batch() * 3 + damaged)


# Headers that make no sense -----------------------------------------------------------------------


def refused(frame: bytes) -> BusnodeError:
    with pytest.raises(ProtocolError) as caught:
        verified(frame)
    return caught.value


@pytest.mark.parametrize("count", [0, limits.BATCH_MESSAGES_MAX + 1, 2**32 - 1])
def test_a_count_outside_of_the_limit_is_a_bad_batch(count: int) -> None:
    error = refused(batch(count=count))
    assert type(error) is BadBatch
    assert f"with {count} messages" in error.text


def test_counts_up_to_the_limit_are_fine() -> None:
    for count in (1, limits.BATCH_MESSAGES_MAX):
        assert verified(batch(count=count))[1][0].count == count


def test_a_batch_needs_a_scope_and_no_flag_that_nobody_knows() -> None:
    good = {2, 3, 4, 5, 6, 7, 11, 13, 15}
    assert good == {
        scope | kind
        for scope in (Flags.LOCAL, Flags.REMOTE, Flags.GLOBAL)
        for kind in (0, Flags.PERSISTENT, Flags.PERSISTENT | Flags.MIRROR_REQUIRED)
    }
    for flags in range(256):
        frame = batch(flags=flags)
        if flags in good:
            assert verified(frame)[2] == len(frame)
        else:
            error = refused(frame)
            assert type(error) is BadBatch
            assert f"flags {flags:#x} " in error.text


def test_a_topic_of_less_than_two_bytes_is_a_bad_batch() -> None:
    for topic in (b"", b"/"):
        for before in (b"", batch("/a")):
            assert type(refused(before + batch(topic))) is BadBatch


def test_a_topic_that_reaches_beyond_its_frame_is_a_bad_batch() -> None:
    bare = batch("/abc", body=b"x")
    assert verified(bare)[2] == len(bare)
    for length in (5, 6, 255):
        error = refused(resealed_batch(patched(bare, 53, bytes([length]))))
        assert type(error) is BadBatch
        assert f"a topic of {length} bytes" in error.text


def test_a_topic_length_that_is_wrong_and_not_hashed_anew_is_found() -> None:
    for length in range(256):
        frame = patched(batch(), 53, bytes([length]))
        if length == 17:
            assert verified(frame)[1]
        else:
            assert type(refused(frame)) in (BadBatch, BadHash)


def test_a_length_that_cannot_hold_the_header_is_a_bad_frame_and_no_endless_loop() -> None:
    for length in (0, 1, 8, HEADER_BYTES - 1):
        error = refused(batch() + patched(batch(), 0, struct.pack("<I", length)))
        assert type(error) is BadFrame
        assert f"of {length} bytes" in error.text


def test_the_node_verifies_a_body_without_decoding_it() -> None:
    frame = batch(body=b"anything")
    _, [run], _ = verified(frame)
    assert run.count == 2
    with pytest.raises(BadBatch):
        decode_columns(frame[HEADER_BYTES + 17 :], 2)
