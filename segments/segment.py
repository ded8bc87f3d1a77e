"""One file of a log: a header that names the log, then records.

    0    8s   magic "BUSNSEG1"
    8    16s  brokerId
    24   u64  first msgNo
    32   u64  created, µs since 1970
    40   u32  log number, as in the file name
    44   u8   topic length, then the topic, then zeros
    504  u64  xxh3_64 of bytes 0 to 503
    512  records

The header is not needed for reading: the name of the file tells the first msgNo, and every record
names brokerId and topic. File names are numbers and never come from topics.
"""

import re
import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from busnode.segments.damage import Flaw, Hole
from busnode.segments.index import Index, Point
from busnode.wire.errors import BadTopic
from busnode.wire.ids import BrokerId, LogId, MsgNo
from busnode.wire.topics import decode_topic

MAGIC: Final = b"BUSNSEG1"
_FIELDS: Final = struct.Struct("<8s16sQQIB")
RECORDS_AT: Final = 512
_HASH_AT: Final = RECORDS_AT - 8
_NAME: Final = re.compile(r"([0-9]{8})-([0-9]{20})\.seg")


class SegmentName(NamedTuple):
    """What the name of a segment file says."""

    log_no: int
    first_no: MsgNo

    def __str__(self) -> str:
        return f"{self.log_no:08d}-{self.first_no:020d}.seg"

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), MsgNo(int(match[2]))) if match else None


def index_path(segment_path: str) -> str:
    return segment_path.removesuffix(".seg") + ".idx"


class SegmentHeader(NamedTuple):
    log_id: LogId
    first_no: MsgNo
    created_us: int
    log_no: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    topic = header.log_id.topic.encode()
    fields = _FIELDS.pack(
        MAGIC,
        header.log_id.broker_id,
        header.first_no,
        header.created_us,
        header.log_no,
        len(topic),
    )
    block = (fields + topic).ljust(_HASH_AT, b"\0")
    return block + xxh3_64_intdigest(block).to_bytes(8, "little")


def decode_segment_header(block: bytes) -> SegmentHeader | None:
    """The header, or None when it is damaged."""
    if len(block) < RECORDS_AT or not block.startswith(MAGIC):
        return None
    if xxh3_64_intdigest(block[:_HASH_AT]) != int.from_bytes(block[_HASH_AT:RECORDS_AT], "little"):
        return None
    _, broker_id, first_no, created_us, log_no, topic_length = _FIELDS.unpack_from(block)
    try:
        topic = decode_topic(block[_FIELDS.size : _FIELDS.size + topic_length])
    except BadTopic:
        return None
    return SegmentHeader(LogId(BrokerId(broker_id), topic), MsgNo(first_no), created_us, log_no)


@dataclass(slots=True)
class Segment:
    """What is known of one segment file. `Log` owns it; its file is opened when needed."""

    path: str
    first_no: MsgNo
    created_us: int
    size_bytes: int
    """Where the good records end and the next append goes."""
    next_no: MsgNo
    index: Index = field(default_factory=Index)
    utc_us_max: int = 0
    stored_us: int = 0
    """When the newest of it was stored, by this node's clock."""
    copied_us: int | None = 0
    """In a copy, when its origin stored the newest of it; None when something is of now."""
    holes: list[Hole] = field(default_factory=list[Hole])
    flaws: list[Flaw] = field(default_factory=list[Flaw])
    torn: Flaw | None = None
    pending: list[Point] = field(default_factory=list[Point])
    """Boundaries that become points of the index once they are durable."""
    pointed_bytes: int = RECORDS_AT
    """Where the last of them stands."""
    suspect: bool = False
    """Whether some of it could not be read: from then on all of it is fetched before it is sent."""
    replaced: bool = False
    """Whether another one has taken its place: who has a place in its file seeks again."""
    indexed: bool = True
    """Whether the index file says all that `index` does. False once it could not be written."""

    @property
    def empty(self) -> bool:
        return self.next_no == self.first_no

    @property
    def end(self) -> Point:
        """The boundary behind the last record."""
        return Point(self.next_no, self.size_bytes, self.utc_us_max, self.stored_us)
