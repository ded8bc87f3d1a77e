"""The layout of a frame, byte by byte, and the errors of its first eight."""

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from busnode.wire import frames, limits
from busnode.wire.control import Ping, encode_control
from busnode.wire.errors import BadFrame, BadVersion, FrameTooLarge
from busnode.wire.frames import (
    FRAME_LIMITS,
    HEADER_BYTES,
    Flags,
    FrameType,
    Transport,
    broker_seed,
    check_prefix,
    encode_batch_frame,
    header_hash,
    read_header,
)
from busnode.wire.ids import NO_BROKER, BrokerId
from busnode.wire.runs import stamp_run, verify_runs

from .samples import BROKER, batch, flags, opening, patched, topics, u64s

# Made once and pinned. If one of these goes red the format has changed, and with it every log on
# every disk: that takes a new protocol version, not a new string here.
PUBLISHED = bytes.fromhex(
    "72000000 01 01 00 00"  # 114 bytes, BATCH, version 1, no transport flags, 0
    "00000000000000000000000000000000"  # brokerId, not stamped yet
    "0000000000000000"  # first msgNo, not stamped yet
    "0000000000000000"  # header hash, not stamped yet
    "534865cfe0eaecf5"  # body hash
    "02000000 07 11 0000"  # 2 messages, PERSISTENT and GLOBAL, a topic of 17 bytes, 0
    "0080982817650600"  # utc
    "efcdab8967452301"  # producerId
    "0700000000000000"  # producerSeq
    "2f706c616e742f6e6f7274682f74656d70"  # /plant/north/temp
    "94 c0 c0 c0 92 c40432302e35 c40432302e37"  # nil, nil, nil, [20.5, 20.7]
)
STAMPED = (
    bytes.fromhex(
        "72000000 01 01 00 00"
        "00112233445566778899aabbccddeeff"  # brokerId
        "2900000000000000"  # first msgNo 41
        "3127a593f0040bf3"  # header hash
    )
    + PUBLISHED[40:]
)
PING = bytes.fromhex(
    "1a000000 14 01 00 00"  # 26 bytes, PING, version 1, 0, 0
    "20138e86b12c17a8"  # hash
    "91 cf 0000010000000000"  # [2^40]: msgpack's own numbers are big-endian
)


def test_a_published_batch_has_exactly_these_bytes() -> None:
    frame = batch(
        "/plant/north/temp",
        [b"20.5", b"20.7"],
        flags=Flags.PERSISTENT | Flags.GLOBAL,
        utc_us=1_800_000_000_000_000,
        producer_id=0x0123456789ABCDEF,
        producer_seq=7,
    )
    assert frame.hex() == PUBLISHED.hex()


def test_a_stamped_batch_has_exactly_these_bytes() -> None:
    buffer = bytearray(PUBLISHED)
    view = memoryview(buffer)
    [run], _ = verify_runs(buffer, view, 0, len(buffer))
    stamp_run(view, run, BROKER, broker_seed(BROKER), 41)
    assert buffer.hex() == STAMPED.hex()


def test_a_control_frame_has_exactly_these_bytes() -> None:
    assert encode_control(Ping(2**40)).hex() == PING.hex()


def test_the_hashes_cover_the_bytes_that_the_layout_names() -> None:
    (body_hash,) = struct.unpack_from("<Q", STAMPED, 40)
    assert body_hash == xxh3_64_intdigest(STAMPED[48:])
    (stamped_hash,) = struct.unpack_from("<Q", STAMPED, 32)
    assert stamped_hash == xxh3_64_intdigest(STAMPED[40:80], 41 ^ xxh3_64_intdigest(BROKER))
    (prefix, control_hash) = struct.unpack_from("<QQ", PING)
    assert control_hash == xxh3_64_intdigest(PING[16:], prefix)


def test_every_field_of_the_header_stands_where_the_layout_says() -> None:
    header = read_header(memoryview(STAMPED), 0)
    by_offset = {
        "length": struct.unpack_from("<I", STAMPED, 0)[0],
        "kind": struct.unpack_from("<I", STAMPED, 4)[0],
        "broker_id": STAMPED[8:24],
        "first_no": struct.unpack_from("<Q", STAMPED, 24)[0],
        "header_hash": struct.unpack_from("<Q", STAMPED, 32)[0],
        "body_hash": struct.unpack_from("<Q", STAMPED, 40)[0],
        "count": struct.unpack_from("<I", STAMPED, 48)[0],
        "flags": STAMPED[52],
        "topic_bytes": STAMPED[53],
        "utc_us": struct.unpack_from("<Q", STAMPED, 56)[0],
        "producer_id": struct.unpack_from("<Q", STAMPED, 64)[0],
        "producer_seq": struct.unpack_from("<Q", STAMPED, 72)[0],
    }
    assert header._asdict() == by_offset
    assert STAMPED[80 : 80 + header.topic_bytes] == b"/plant/north/temp"
    assert header.last_no == 42
    assert header.persistent


def test_the_layout_drawn_in_the_module_is_the_layout_of_its_structures() -> None:
    drawn = re.findall(r"^ +(\d+)  (u8|u16|u32|u64|16s)  ", frames.__doc__ or "", re.MULTILINE)
    sizes = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "16s": 16}
    prefix, header, control = drawn[:5], drawn[5:-1], drawn[-1:]
    for rows, start, end in (
        (prefix, 0, frames.PREFIX_BYTES),
        (header, frames.PREFIX_BYTES, HEADER_BYTES),
        (control, frames.PREFIX_BYTES, frames.CONTROL_PREFIX_BYTES),
    ):
        at = start
        for offset, words in rows:
            assert int(offset) == at
            at += sizes[words]
        assert at == end


def test_transport_flags_are_in_no_hash_and_out_of_the_way_of_type_and_version() -> None:
    forwarded = patched(STAMPED, frames.TRANSPORT_AT, bytes([Transport.FORWARDED]))
    header = read_header(memoryview(forwarded), 0)
    assert header.transport is Transport.FORWARDED
    assert header.kind & 0xFFFF == frames.BATCH_KIND
    assert header.header_hash == header_hash(memoryview(forwarded), 0, BROKER, 41)
    assert header.body_hash == xxh3_64_intdigest(forwarded[48:])


def test_the_header_hash_depends_on_broker_and_number() -> None:
    view = memoryview(STAMPED)
    others = {
        header_hash(view, 0, BROKER, 41),
        header_hash(view, 0, BROKER, 42),
        header_hash(view, 0, BrokerId(BROKER[::-1]), 41),
        header_hash(view, 0, NO_BROKER, 0),
    }
    assert len(others) == 4


@given(
    topics,
    st.binary(max_size=100),
    st.fixed_dictionaries(
        {
            "count": st.integers(0, 2**32 - 1),
            "flags": flags,
            "utc_us": u64s,
            "producer_id": u64s,
            "producer_seq": u64s,
        }
    ),
)
def test_what_a_producer_says_is_read_back(topic: str, body: bytes, said: dict[str, int]) -> None:
    raw = topic.encode()
    frame = encode_batch_frame(topic=raw, body=body, **said)
    header = read_header(memoryview(bytes(5) + frame), 5)
    assert header.length == len(frame) == HEADER_BYTES + len(raw) + len(body)
    assert {name: getattr(header, name) for name in said} == said
    assert (header.broker_id, header.first_no, header.header_hash) == (NO_BROKER, 0, 0)
    assert header.transport is Transport.NONE
    assert header.topic_bytes == len(raw)
    assert frame[HEADER_BYTES:] == raw + body


# The prefix ---------------------------------------------------------------------------------------

LEAST = {kind: 80 if kind == FrameType.BATCH else 16 for kind in FrameType}


def prefix(
    length: int, kind: int, version: int = 1, transport: int = 0, zero: int = 0
) -> memoryview:
    return memoryview(struct.pack("<IBBBB", length, kind, version, transport, zero))


@pytest.mark.parametrize("kind", FrameType)
def test_lengths_from_the_least_to_the_limit_of_a_type_are_taken(kind: FrameType) -> None:
    for length in (LEAST[kind], FRAME_LIMITS[kind]):
        view = memoryview(bytes(3) + opening(kind, length))
        assert check_prefix(view, 3) == (length, kind)


@pytest.mark.parametrize("kind", FrameType)
def test_a_length_over_the_limit_of_its_type_is_too_large(kind: FrameType) -> None:
    for length in (FRAME_LIMITS[kind] + 1, 2**32 - 1):
        with pytest.raises(FrameTooLarge, match=f"{kind.name} frame of {length} bytes"):
            check_prefix(prefix(length, kind), 0)


@pytest.mark.parametrize("kind", FrameType)
def test_a_length_that_cannot_hold_its_own_header_is_a_bad_frame(kind: FrameType) -> None:
    for length in (0, 8, LEAST[kind] - 1):
        with pytest.raises(BadFrame, match=f"the least is {LEAST[kind]}"):
            check_prefix(prefix(length, kind), 0)


def test_a_type_that_nobody_has_is_a_bad_frame() -> None:
    for kind in set(range(256)) - set(FrameType):
        with pytest.raises(BadFrame, match=f"type {kind} "):
            check_prefix(prefix(100, kind), 0)


def test_a_byte_that_must_be_zero_and_is_not_is_a_bad_frame() -> None:
    for zero in (1, 0x80, 0xFF):
        with pytest.raises(BadFrame, match="not a frame of this protocol"):
            check_prefix(prefix(100, FrameType.BATCH, zero=zero), 0)


@pytest.mark.parametrize("kind", FrameType)
def test_another_version_is_named(kind: FrameType) -> None:
    for version in set(range(256)) - {limits.PROTOCOL_VERSION}:
        with pytest.raises(BadVersion, match=f"version {version}; this side speaks 1"):
            check_prefix(prefix(100, kind, version), 0)


def test_the_version_is_told_before_a_length_that_a_newer_one_may_allow() -> None:
    with pytest.raises(BadVersion):
        check_prefix(prefix(2**32 - 1, FrameType.HELLO, version=2), 0)


@pytest.mark.parametrize("kind", [kind for kind in FrameType if kind != FrameType.BATCH])
def test_only_a_batch_has_transport_flags(kind: FrameType) -> None:
    assert check_prefix(prefix(100, FrameType.BATCH, transport=1), 0) == (100, FrameType.BATCH)
    for transport in (1, 2, 4, 0xFF):
        with pytest.raises(BadFrame, match=f"{kind.name} frame with transport flags"):
            check_prefix(prefix(100, kind, transport=transport), 0)


def test_what_speaks_another_protocol_is_told_so() -> None:
    for greeting in (b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"INFO {}\r\n"):
        with pytest.raises(BadFrame, match=greeting[:8].hex()):
            check_prefix(memoryview(greeting), 0)


def test_every_type_has_a_limit_and_a_stranger_gets_little() -> None:
    assert set(FRAME_LIMITS) == set(FrameType)
    assert FRAME_LIMITS[FrameType.HELLO] == FRAME_LIMITS[FrameType.PEER_HELLO] == 1024
    assert max(FRAME_LIMITS.values()) == limits.FRAME_BYTES_MAX
