"""The records of a log: scanning, checking, finding the next good one behind damage.

A record is a stamped batch. All of it is pure: bytes in a buffer, numbers out.
"""

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.errors import BadTopic
from busnode.wire.frames import (
    BATCH_KIND,
    HASHED_BODY_AT,
    HASHED_HEADER_AT,
    HEADER_BYTES,
    STAMP_AT,
    BatchHeader,
    broker_seed,
    read_header,
)
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.topics import decode_topic

_SCANNED: Final = "<II16sQQQIxBxxQ16x{}s"
"""The header as a scan needs it, and the topic of so many bytes: unpacking it with the rest costs
half of what slicing and comparing it would."""


class LogKey(NamedTuple):
    """What a record must carry to belong to a log, with what is derived from it once."""

    broker_id: BrokerId
    seed: int
    topic: bytes

    @classmethod
    def of(cls, log_id: LogId) -> "LogKey":
        return cls(log_id.broker_id, broker_seed(log_id.broker_id), log_id.topic.encode())


class Scanned(NamedTuple):
    """Where a scan stands: the byte behind the last good record, and the number that comes next."""

    at: int
    next_no: int
    utc_us_max: int


def scan(view: memoryview, stop: int, end: int, key: LogKey, start: Scanned) -> Scanned:
    """Go over good records from `start` until one ends at or behind `stop`.

    Only bytes before `end` are there. It stops early at the first record that is not all there,
    is not good, or does not have the next number: `diagnose` tells which. Two hash calls, two
    slices and one unpack a record; nothing is decoded.
    """
    broker_id, seed, topic = key
    topic_length = len(topic)
    unpack = struct.Struct(_SCANNED.format(topic_length)).unpack_from
    digest = xxh3_64_intdigest
    at, number, utc_us_max = start
    least = HEADER_BYTES + topic_length
    while at < stop and end - at > least:
        (length, kind, broker, first, header_hash, body_hash, count, topic_bytes, utc_us, named) = (
            unpack(view, at)
        )
        after = at + length
        if (
            first != number
            or after > end
            or kind != BATCH_KIND
            or length <= least
            or digest(view[at + HASHED_BODY_AT : after]) != body_hash
            or digest(view[at + HASHED_HEADER_AT : at + HEADER_BYTES], first ^ seed) != header_hash
            or broker != broker_id
            or topic_bytes != topic_length
            or named != topic
        ):
            break
        number += count
        if utc_us > utc_us_max:
            utc_us_max = utc_us
        at = after
    return Scanned(at, number, utc_us_max)


def good_header(view: memoryview, at: int, end: int, key: LogKey) -> BatchHeader | None:
    """The header at `at` if it is one of this log and undamaged; its body may still be damaged."""
    header = hashed_header(view, at, end, key)
    return header if header is not None and has_length(header, key) else None


def has_length(header: BatchHeader, key: LogKey) -> bool:
    """Whether its length is one that a record may have: it is the one field that no hash covers."""
    return HEADER_BYTES + len(key.topic) < header.length <= limits.FRAME_BYTES_MAX


def hashed_header(view: memoryview, at: int, end: int, key: LogKey) -> BatchHeader | None:
    """The header at `at` if it is one of this log and all of it is good but perhaps its length."""
    if end - at < HEADER_BYTES:
        return None
    header = read_header(view, at)
    if (
        header.broker_id != key.broker_id
        or header.kind != BATCH_KIND
        or header.topic_bytes != len(key.topic)
        or not 0 < header.count <= limits.BATCH_MESSAGES_MAX
    ):
        return None
    half = view[at + HASHED_HEADER_AT : at + HEADER_BYTES]
    if xxh3_64_intdigest(half, header.first_no ^ key.seed) != header.header_hash:
        return None
    return header


def good_record(view: memoryview, at: int, end: int, key: LogKey) -> BatchHeader | None:
    """The header at `at` if the whole record is there and undamaged."""
    header = good_header(view, at, end, key)
    if header is None or at + header.length > end:
        return None
    if xxh3_64_intdigest(view[at + HASHED_BODY_AT : at + header.length]) != header.body_hash:
        return None
    topic_end = at + HEADER_BYTES + len(key.topic)
    return header if bytes(view[at + HEADER_BYTES : topic_end]) == key.topic else None


def true_length(
    buffer: bytearray, view: memoryview, end: int, key: LogKey, header: BatchHeader
) -> int | None:
    """The length of the record at 0 if nothing but the one in its header is damaged: then the body
    hash fits the bytes up to the next record, or up to `end`."""
    body = xxh3_64()
    hashed = HASHED_BODY_AT
    for at in chain(_marks(buffer, HEADER_BYTES, end, key.broker_id), (end,)):
        body.update(view[hashed:at])
        hashed = at
        if body.intdigest() == header.body_hash:
            return at
    return None


def find_record(
    buffer: bytearray, view: memoryview, start: int, end: int, key: LogKey, least_no: int
) -> tuple[int, BatchHeader] | None:
    """The next good record at or behind `start` whose number is at least `least_no`.

    One that goes on behind `end` counts by its header: else the search would go on inside of it. A
    payload may hold bytes that look like a record of this log, and they are believed here: the
    caller first tries where the damaged record says that it ends.
    """
    for at in _marks(buffer, start, end, key.broker_id):
        header = good_header(view, at, end, key)
        if header is None or header.first_no < least_no:
            continue
        if at + header.length > end or good_record(view, at, end, key) is not None:
            return at, header
    return None


def find_topic(buffer: bytearray, view: memoryview, end: int, broker_id: BrokerId) -> Topic | None:
    """The topic of the first good record of an incarnation, whichever it is."""
    for at in _marks(buffer, 0, end, broker_id):
        if end - at < HEADER_BYTES:
            return None
        topic_at = at + HEADER_BYTES
        try:
            topic = decode_topic(
                bytes(view[topic_at : topic_at + read_header(view, at).topic_bytes])
            )
        except BadTopic:
            continue
        if good_record(view, at, end, LogKey.of(LogId(broker_id, topic))) is not None:
            return topic
    return None


def _marks(buffer: bytearray, start: int, end: int, broker_id: BrokerId) -> Iterator[int]:
    """Where records may begin: the brokerId stands in every one, so it serves as the mark."""
    found = buffer.find(broker_id, start + STAMP_AT, end)
    while found >= 0:
        yield found - STAMP_AT
        found = buffer.find(broker_id, found + 1, end)


def diagnose(view: memoryview, at: int, end: int, key: LogKey, number: int) -> str:
    """Why the bytes at `at` are not the good record with this number: for people."""
    if end - at < HEADER_BYTES:
        return f"{end - at} bytes where a record of at least {HEADER_BYTES} should be"
    if not any(view[at : at + HEADER_BYTES]):
        return "zeros where a record should be"
    header = good_header(view, at, end, key)
    if header is None:
        return "a header whose hash does not fit"
    if header.first_no != number:
        return f"a record with number {header.first_no} where {number} should be"
    if at + header.length > end:
        return f"a record of {header.length} bytes of which {end - at} are there"
    if xxh3_64_intdigest(view[at + HASHED_BODY_AT : at + header.length]) == header.body_hash:
        return "a record of another topic"
    return "a record whose body hash does not fit"
