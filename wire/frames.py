"""The bytes of a frame: layout, prefix, batch header, hashes.

Every frame begins with the same eight bytes, so that a reader can tell its length, type and
version before it trusts anything else:

     0  u32  length      of the whole frame, these bytes included
     4  u8   type
     5  u8   version
     6  u8   transport   FORWARDED, REPLAY, LAST: state of this hop, in no hash; 0 on disk
     7  u8   0

A batch goes on with a header in two halves. The first half belongs to the node that stamps it,
the second to the producer:

     8  16s  brokerId      zero until stamped
    24  u64  first msgNo   zero until stamped
    32  u64  header hash   xxh3_64 of bytes 40 to 79, seed = first msgNo XOR xxh3_64(brokerId)
    40  u64  body hash     xxh3_64 of bytes 48 to the end: what follows here, topic and body
    48  u32  count         messages
    52  u8   flags         PERSISTENT and the scope: the message's own
    53  u8   topic length
    54  u16  0
    56  u64  utc           µs, the producer's clock, of the newest message
    64  u64  producerId
    72  u64  producerSeq
    80  topic, then the body (see `batches`)

The body hash covers everything that the producer says, so one hash call verifies a published
batch. The header hash takes brokerId and msgNo as its seed rather than as bytes: a stamp is then
one hash of 40 bytes and one write. Measured in turns: a fifth less for small batches than a layout
whose header hash covers the stamped bytes and must be checked and made anew (docs/adr/0001).

A control frame has eight bytes of hash after the prefix and then one msgpack array:

     8  u64  hash    xxh3_64 of the array, seed = the first eight bytes as a number
    16  array

All numbers are little-endian.
"""

import enum
import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.errors import BadFrame, BadVersion, FrameTooLarge
from busnode.wire.ids import NO_BROKER, BrokerId, MsgNo, ProducerId


class FrameType(enum.IntEnum):
    """What a frame is. Numbers are never reused."""

    BATCH = 1
    HELLO = 16
    WELCOME = 17
    ERROR = 18
    GOODBYE = 19
    PING = 20
    PONG = 21
    ACK = 22
    NODES = 23
    SUBSCRIBE = 32
    SUBSCRIBED = 33
    UNSUBSCRIBE = 34
    CREDIT = 35
    CHUNK = 36
    GAP = 37
    DROPPED = 38
    POSITION = 39
    DAMAGED = 40
    PROVIDE = 48
    UNPROVIDE = 49
    ASK = 50
    BID = 51
    REQUEST = 52
    REPLY = 53
    PEER_HELLO = 64
    PEER_WELCOME = 65
    INTEREST = 66
    EXTENTS = 67
    REPLAY = 68
    MIRROR = 69
    MIRRORED = 70
    MEMBERS = 71
    HOLDINGS = 72
    FIND_REGISTRATION = 73
    REGISTRATION = 74
    FINISHED = 75
    COMPARE = 76
    COMPARED = 77
    PEER_CHALLENGE = 78
    PEER_PROOF = 79
    TASK_POLL = 80
    TASKS = 81
    TASK_DONE = 82
    TASK_SETTLED = 83
    TASK_READY = 84
    TASK_CLAIM = 85
    TASK_FINISHED = 86


class Flags(enum.IntFlag):
    """The message's own flags; they are hashed and stay with it for good."""

    PERSISTENT = 0x01
    LOCAL = 0x02
    """Reaches clients of the node that it was published to."""
    REMOTE = 0x04
    """Reaches clients of other nodes."""
    GLOBAL = LOCAL | REMOTE
    MIRROR_REQUIRED = 0x08
    """A persistent message that its publisher wants acked as mirrored or refused."""


class Transport(enum.IntFlag):
    """State of one hop; changed without touching hashed bytes."""

    NONE = 0
    FORWARDED = 0x01
    """The one hop between nodes is used up."""
    REPLAY = 0x02
    LAST = 0x04


PREFIX: Final = struct.Struct("<IBBBB")
PREFIX_BYTES: Final = PREFIX.size
HEADER: Final = struct.Struct("<II16sQQQIBBxxQQQ")
HEADER_BYTES: Final = HEADER.size
CONTROL_PREFIX: Final = struct.Struct("<QQ")
CONTROL_PREFIX_BYTES: Final = CONTROL_PREFIX.size

BATCH_KIND: Final = FrameType.BATCH | limits.PROTOCOL_VERSION << 8
"""Type, version, transport and the zero byte of a plain batch as one number: one comparison."""

TYPE_AT: Final = 4
PRODUCER: Final = struct.Struct("<QQ")
"""producerId and producerSeq, at `PRODUCER_AT`."""
PRODUCER_AT: Final = 64

TRANSPORT_AT: Final = 6
STAMP_AT: Final = 8
HASHED_HEADER_AT: Final = 40
HASHED_BODY_AT: Final = 48

_OWN_LIMITS: Final[dict[int, int]] = {
    FrameType.BATCH: limits.FRAME_BYTES_MAX,
    FrameType.HELLO: limits.HELLO_BYTES_MAX,
    FrameType.PEER_HELLO: limits.HELLO_BYTES_MAX,
    FrameType.PEER_CHALLENGE: limits.HELLO_BYTES_MAX,
    FrameType.PEER_PROOF: limits.HELLO_BYTES_MAX,
    FrameType.SUBSCRIBE: limits.SUBSCRIBE_BYTES_MAX,
    FrameType.SUBSCRIBED: limits.SUBSCRIBE_BYTES_MAX,
    FrameType.POSITION: limits.SUBSCRIBE_BYTES_MAX,
    FrameType.REGISTRATION: limits.SUBSCRIBE_BYTES_MAX,
    FrameType.REQUEST: limits.REQUEST_BYTES_MAX,
    FrameType.REPLY: limits.REQUEST_BYTES_MAX,
    FrameType.TASKS: limits.FRAME_BYTES_MAX,
}
FRAME_LIMITS: Final[dict[int, int]] = {
    kind: _OWN_LIMITS.get(kind, limits.CONTROL_BYTES_MAX) for kind in FrameType
}
"""The longest frame of each type."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header in the order of the layout."""

    length: int
    kind: int
    broker_id: BrokerId
    first_no: MsgNo
    header_hash: int
    body_hash: int
    count: int  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]
    flags: int
    topic_bytes: int
    utc_us: int
    producer_id: ProducerId
    producer_seq: int

    @property
    def last_no(self) -> MsgNo:
        return MsgNo(self.first_no + self.count - 1)

    @property
    def persistent(self) -> bool:
        return bool(self.flags & Flags.PERSISTENT)

    @property
    def transport(self) -> Transport:
        return Transport(self.kind >> 16 & 0xFF)


def read_header(view: memoryview, at: int) -> BatchHeader:
    """The header of the batch at `at`, unverified. The caller knows that it is all there."""
    return BatchHeader._make(HEADER.unpack_from(view, at))


def read_topic(view: memoryview, at: int) -> str:
    """The topic of the batch at `at`, unverified."""
    topic_bytes = read_header(view, at).topic_bytes
    return str(view[at + HEADER_BYTES : at + HEADER_BYTES + topic_bytes], "utf-8", "replace")


def broker_seed(broker_id: BrokerId) -> int:
    """What a brokerId adds to the seed of its header hashes: computed once for each log."""
    return xxh3_64_intdigest(broker_id)


def header_hash(view: memoryview, at: int, broker_id: BrokerId, first_no: int) -> int:
    """The header hash that the batch at `at` must have."""
    half = view[at + HASHED_HEADER_AT : at + HEADER_BYTES]
    return xxh3_64_intdigest(half, first_no ^ broker_seed(broker_id))


def check_prefix(view: memoryview, at: int) -> tuple[int, int]:
    """Length and type of the frame at `at`, whose first eight bytes are there.

    Raises BadVersion, BadFrame or FrameTooLarge before anything else is read or allocated.
    """
    length, kind, version, transport, zero = PREFIX.unpack_from(view, at)
    limit = FRAME_LIMITS.get(kind)
    if limit is None or zero:
        raise BadFrame(
            f"frame of type {kind} begins with {bytes(view[at : at + PREFIX_BYTES]).hex()}: "
            "not a frame of this protocol"
        )
    if version != limits.PROTOCOL_VERSION:
        raise BadVersion(
            f"frame of protocol version {version}; this side speaks {limits.PROTOCOL_VERSION}"
        )
    least = HEADER_BYTES if kind == FrameType.BATCH else CONTROL_PREFIX_BYTES
    if length < least:
        raise BadFrame(f"{FrameType(kind).name} frame of {length} bytes; the least is {least}")
    if length > limit:
        raise FrameTooLarge(f"{FrameType(kind).name} frame of {length} bytes; the limit is {limit}")
    if transport and kind != FrameType.BATCH:
        raise BadFrame(f"{FrameType(kind).name} frame with transport flags {transport:#x}")
    return length, kind


def encode_batch_frame(
    *,
    topic: bytes,
    body: bytes,
    count: int,
    flags: int,
    utc_us: int,
    producer_id: int,
    producer_seq: int,
) -> bytes:
    """A batch as a producer sends it: verified by its body hash, not stamped yet."""
    length = HEADER_BYTES + len(topic) + len(body)
    frame = bytearray(length)
    HEADER.pack_into(
        frame, 0, length, BATCH_KIND, NO_BROKER, 0, 0, 0,
        count, flags, len(topic), utc_us, producer_id, producer_seq,
    )  # fmt: skip
    frame[HEADER_BYTES : HEADER_BYTES + len(topic)] = topic
    frame[HEADER_BYTES + len(topic) :] = body
    with memoryview(frame) as view:
        struct.pack_into("<Q", frame, HASHED_HEADER_AT, xxh3_64_intdigest(view[HASHED_BODY_AT:]))
    return bytes(frame)
