"""What the tests of the wire are fed with: frames, messages and streams, good and broken.

Builders make one thing, exactly as asked, valid or not. Strategies draw valid things of all sizes.
Kinds of field are known here by the words that docs/protocol.md has for them; a kind without a
sample stops every test that needs one.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, get_type_hints

import msgpack
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import CONTROLS, Chunk, Control, encode_control
from busnode.wire.fields import kind
from busnode.wire.frames import (
    CONTROL_PREFIX,
    CONTROL_PREFIX_BYTES,
    HASHED_BODY_AT,
    HASHED_HEADER_AT,
    Flags,
    FrameType,
    encode_batch_frame,
)
from busnode.wire.ids import BrokerId
from busnode.wire.reader import FrameReader, Runs

# By default Hypothesis fails a test whose examples are slow; on a busy machine any can be.
settings.register_profile(
    "wire", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("wire")

BROKER: Final = BrokerId(bytes.fromhex("00112233445566778899aabbccddeeff"))
OTHER_BROKER: Final = BrokerId(bytes.fromhex("ffeeddccbbaa99887766554433221100"))

U64: Final = 2**64 - 1

M = TypeVar("M", bound=Control)

SCOPES: Final = (Flags.LOCAL, Flags.REMOTE, Flags.GLOBAL)
KINDS: Final = (Flags(0), Flags.PERSISTENT, Flags.PERSISTENT | Flags.MIRROR_REQUIRED)
FLAGS: Final = tuple(scope | kind for scope in SCOPES for kind in KINDS)


# Batches ------------------------------------------------------------------------------------------


def batch(
    topic: str | bytes = "/plant/north/temp",
    payloads: Iterable[bytes] = (b"20.5", b"20.7"),
    *,
    body: bytes | None = None,
    count: int | None = None,
    flags: int = Flags.GLOBAL | Flags.PERSISTENT,
    utc_us: int = 1_800_000_000_000_000,
    producer_id: int = 0x0123456789ABCDEF,
    producer_seq: int = 7,
) -> bytes:
    """A batch as a producer sends it; `body` and `count` in place of the true ones to break it."""
    columns = Columns(list(payloads))
    return encode_batch_frame(
        topic=topic.encode() if isinstance(topic, str) else topic,
        body=encode_columns(columns) if body is None else body,
        count=len(columns.payloads) if count is None else count,
        flags=flags,
        utc_us=utc_us,
        producer_id=producer_id,
        producer_seq=producer_seq,
    )


def resealed_batch(frame: bytes | bytearray) -> bytes:
    """The batch with the length and the body hash that its bytes should have."""
    sealed = bytearray(frame)
    struct.pack_into("<I", sealed, 0, len(sealed))
    struct.pack_into("<Q", sealed, HASHED_HEADER_AT, xxh3_64_intdigest(sealed[HASHED_BODY_AT:]))
    return bytes(sealed)


def patched(frame: bytes, at: int, value: bytes) -> bytes:
    """The frame with other bytes at one place."""
    return frame[:at] + value + frame[at + len(value) :]


def flipped(frame: bytes, bit: int) -> bytes:
    """The frame with one bit changed, counted from the first bit of its first byte."""
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


levels = st.text(
    st.sampled_from("abcxyz019-_.é☃"), min_size=1, max_size=6
).filter(lambda level: level not in (".", ".."))  # fmt: skip
topics = st.lists(levels, min_size=1, max_size=5).map(lambda path: "/" + "/".join(path))
u64s = st.integers(0, U64) | st.integers(0, 3)
flags = st.sampled_from(FLAGS)


@st.composite
def columns(draw: st.DrawFn, messages_max: int = 8) -> Columns:
    """Columns as a producer may make them."""
    payloads = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=messages_max))

    def column(of: st.SearchStrategy[Any]) -> Any:
        whole = st.lists(of, min_size=len(payloads), max_size=len(payloads))
        return draw(st.none() | whole)

    return Columns(
        payloads,
        column(st.integers(-(2**63), U64)),
        column(st.none() | st.text(max_size=20)),
        column(st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)),
    )


@st.composite
def batches(draw: st.DrawFn, topic: st.SearchStrategy[str] = topics) -> bytes:
    """Batches as a producer may send them."""
    content = draw(columns())
    return encode_batch_frame(
        topic=draw(topic).encode(),
        body=encode_columns(content),
        count=len(content.payloads),
        flags=draw(flags),
        utc_us=draw(u64s),
        producer_id=draw(u64s),
        producer_seq=draw(u64s),
    )


# Control messages ---------------------------------------------------------------------------------


def control_frame(kind: int, array: bytes, *, version: int = limits.PROTOCOL_VERSION) -> bytes:
    """A control frame with the hash that fits, whatever stands in the array."""
    prefix = CONTROL_PREFIX_BYTES + len(array) | kind << 32 | version << 40
    return CONTROL_PREFIX.pack(prefix, xxh3_64_intdigest(array, prefix)) + array


def control_values(kind: int, values: object) -> bytes:
    """A control frame with these values, whether or not they are what its fields take."""
    array = msgpack.packb(values)
    assert isinstance(array, bytes)
    return control_frame(kind, array)


def kinds_of(message: type[Control]) -> dict[str, str]:
    """Each field of a message and the words for its kind."""
    hints = get_type_hints(message, include_extras=True)
    return {field.name: kind(hints[field.name])[1] for field in fields(message)}


texts = st.text(max_size=30)
brokers = st.binary(min_size=16, max_size=16)

STRATEGIES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "u64": u64s,
    "seconds": st.floats(0, 1e9),
    "bool": st.booleans(),
    "name": texts,
    "text": texts | st.text(max_size=250),
    "secret": texts | st.text(max_size=120),
    "topic or pattern": texts | topics,
    "brokerId": brokers,
    "bytes": st.binary(max_size=200),
    '"latest", "earliest", utc µs': st.sampled_from(["latest", "earliest"]) | u64s,
    "[host:port]": st.lists(texts, max_size=3),
    "{text: text}": st.dictionaries(texts, texts, max_size=4),
    "{brokerId: {topic: msgNo}}": st.dictionaries(
        brokers, st.dictionaries(topics, u64s, max_size=3), max_size=3
    ),
    "[[u64, u64, u64]]": st.lists(st.tuples(u64s, u64s, u64s), max_size=4),
    "[[brokerId, topic, first msgNo, last msgNo]]": st.lists(
        st.tuples(brokers, topics, u64s, u64s), max_size=4
    ),
    "[[topic, msgNo]]": st.lists(st.tuples(topics, u64s), max_size=4),
    "[[brokerId, u64, u64, u64, bool]]": st.lists(
        st.tuples(brokers, u64s, u64s, u64s, st.booleans()), max_size=4
    ),
    "[[brokerId, name, [host:port]]]": st.lists(
        st.tuples(brokers, texts, st.lists(texts, max_size=3)), max_size=4
    ),
    "[u64]": st.lists(u64s, max_size=4),
    "[name]": st.lists(texts, max_size=4),
    "[bytes]": st.lists(st.binary(max_size=40), max_size=4),
    "[{text: text}]": st.lists(st.dictionaries(texts, texts, max_size=3), max_size=4),
    "[[u64, name]]": st.lists(st.tuples(u64s, texts), max_size=4),
    "[[u64, u64]]": st.lists(st.tuples(u64s, u64s), max_size=4),
    "[[name, u64]]": st.lists(st.tuples(texts, u64s), max_size=4),
}

EXAMPLES: Final[Mapping[str, Any]] = {
    "u64": 7,
    "seconds": 2.5,
    "bool": True,
    "name": "north",
    "text": "the node is leaving",
    "secret": "billing.ZmVlZA",
    "topic or pattern": "/plant/+/temp",
    "brokerId": BROKER,
    "bytes": b"20.5",
    '"latest", "earliest", utc µs': "latest",
    "[host:port]": ["north:4250", "south:4250"],
    "{text: text}": {"trace": "1f"},
    "{brokerId: {topic: msgNo}}": {BROKER: {"/plant/north/temp": 12, "/a": 1}, OTHER_BROKER: {}},
    "[[u64, u64, u64]]": [(1, 2, 3), (4, 5, 6)],
    "[[brokerId, topic, first msgNo, last msgNo]]": [(BROKER, "/plant/north/temp", 1, 12)],
    "[[topic, msgNo]]": [("/plant/north/temp", 12), ("/a", 1)],
    "[[brokerId, u64, u64, u64, bool]]": [(BROKER, 3, 120, 77, False)],
    "[[brokerId, name, [host:port]]]": [(BROKER, "north", ["north:4251"]), (OTHER_BROKER, "s", [])],
    "[u64]": [7, 8],
    "[name]": ["north", "south"],
    "[bytes]": [b"20.5", b""],
    "[{text: text}]": [{"trace": "1f"}, {}],
    "[[u64, name]]": [(0, "LEASE_EXPIRED")],
    "[[u64, u64]]": [(1, 12), (14, 14)],
    "[[name, u64]]": [("emails", 12)],
}

OR_NIL: Final = " or nil"


def values_of(words: str) -> st.SearchStrategy[Any]:
    """All that a field of this kind takes."""
    if words.endswith(OR_NIL):
        return st.none() | values_of(words.removesuffix(OR_NIL))
    return STRATEGIES[words]


def messages_of(message: type[Control]) -> st.SearchStrategy[Control]:
    """All messages of one type."""
    return st.builds(
        message, **{name: values_of(words) for name, words in kinds_of(message).items()}
    )


def example(message: type[M]) -> M:
    """One plain message of a type, with every field filled in."""
    return message(
        **{name: EXAMPLES[words.removesuffix(OR_NIL)] for name, words in kinds_of(message).items()}
    )


def array_of(message: Control) -> list[Any]:
    """The values of a message in the order of its fields."""
    return [getattr(message, field.name) for field in fields(message)]


MESSAGES: Final = tuple(CONTROLS.values())
messages = st.sampled_from([m for m in MESSAGES if m is not Chunk]).flatmap(messages_of)


# Streams ------------------------------------------------------------------------------------------


def chunk(content: bytes = b"", *, length: int | None = None, last: bool = False) -> bytes:
    """A CHUNK with what it announces behind it; another `length` to break it."""
    announced = len(content) if length is None else length
    message = Chunk(1, 2, BROKER, "/plant/north/temp", 1, 12, announced, last)
    return encode_control(message) + content


some_topics = st.sampled_from(["/a", "/b", "/plant/north/temp"])
streams = st.lists(
    batches(some_topics)
    | st.lists(batches(some_topics), max_size=3).map(b"".join).map(chunk)
    | messages.map(encode_control),
    max_size=10,
).map(b"".join)
"""Whole frames of all kinds, some batches inside of chunks, one behind the other."""


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """One batch that a reader handed on, and the chunk that had announced it."""

    frame: bytes
    topic: bytes
    count: int
    chunk: Chunk | None


def flattened(reader: FrameReader) -> list[BatchEvent | Control]:
    """All that the reader has to say now, batch by batch, copied.

    Each event must take bytes off the reader, and one pass must take all that it can.
    """
    found: list[BatchEvent | Control] = []
    buffered = reader.buffered_bytes
    for event in reader.events():
        assert reader.buffered_bytes < buffered, "an event that took nothing off the reader"
        buffered = reader.buffered_bytes
        if isinstance(event, Runs):
            assert event.runs
            for run in event.runs:
                found.extend(_batch_events(reader.view, run, event.chunk))
        else:
            found.append(event)
    assert reader.buffered_bytes == buffered
    return found


def _batch_events(view: memoryview, run: Any, chunk: Chunk | None) -> list[BatchEvent]:
    starts = [each.at for each in run]
    ends = [*starts[1:], run.end]
    assert starts[0] == run.start
    return [
        BatchEvent(bytes(view[each.at : end]), run.topic, each.count, chunk)
        for each, end in zip(run, ends, strict=True)
    ]


def fed(reader: FrameReader, data: bytes, sizes: Iterable[int] = ()) -> list[BatchEvent | Control]:
    """What the reader makes of the bytes when they come in pieces of these sizes, then at once."""
    found: list[BatchEvent | Control] = []
    at = 0
    pieces = iter(sizes)
    while at < len(data):
        space = reader.space()
        assert len(space), "a reader without space can never go on"
        size = min(next(pieces, len(data)), len(data) - at, len(space))
        space[:size] = data[at : at + size]
        reader.received(size)
        at += size
        found.extend(flattened(reader))
    return found


def opening(kind: FrameType, length: int) -> bytes:
    """The first eight bytes of a frame of this type and length, for streams that stop there."""
    return struct.pack("<IBBBB", length, kind, limits.PROTOCOL_VERSION, 0, 0)
