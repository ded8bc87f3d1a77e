"""The hot path of the wire: verify and stamp whole runs of batches in place.

A *run* is a series of batches of one topic, with the same flags, that stand one behind the other
in a buffer. The node
writes, mirrors and hands it on as one slice. Per batch there is one unpack, one slice and one hash
to verify, and one slice, one hash and one pack to stamp; nothing is decoded, copied or awaited.

`bytearray.startswith` compares the topic without making an object; a slice and a comparison cost
twice as much.
"""

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.errors import BadBatch, BadHash
from busnode.wire.frames import (
    BATCH_KIND,
    HASHED_BODY_AT,
    HASHED_HEADER_AT,
    HEADER_BYTES,
    STAMP_AT,
    Flags,
    Transport,
    check_prefix,
    read_header,
)
from busnode.wire.ids import BrokerId, MsgNo

_PUBLISHED: Final = struct.Struct("<II32xQIBBxxQQQ")
"""The header as a node needs it for publishing: what it will overwrite is skipped."""

_STAMP: Final = struct.Struct("<16sQQ")

PLAIN_KINDS: Final = frozenset({BATCH_KIND})
FORWARDED_KINDS: Final = frozenset({BATCH_KIND | Transport.FORWARDED << 16})
DELIVERED_KINDS: Final = PLAIN_KINDS | FORWARDED_KINDS
"""What a client takes: its home passes forwarded batches on as they came."""

TOPIC_BYTES_MIN: Final = 2
FLAGS_TAKEN: Final = frozenset(
    int(scope | kind)
    for scope in (Flags.LOCAL, Flags.REMOTE, Flags.GLOBAL)
    for kind in (Flags(0), Flags.PERSISTENT, Flags.PERSISTENT | Flags.MIRROR_REQUIRED)
)
"""Each names a scope, has no unknown bit, and asks for a mirror only for what is persistent."""


class Batch(NamedTuple):
    """One batch of a run: where it stands and what the node must know of it."""

    at: int
    count: int  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]
    flags: int
    producer_id: int
    producer_seq: int


class Run:
    """Batches with one topic and the same flags, one behind the other in a buffer."""

    __slots__ = ("batches", "count", "end", "flags", "start", "topic", "utc_us_max")

    def __init__(self, topic: bytes, start: int) -> None:
        self.topic = topic
        self.start = start
        self.end = start
        self.count = 0
        self.flags = 0
        self.utc_us_max = 0
        self.batches: list[tuple[int, int, int, int, int]] = []
        """Each as the fields of `Batch`; plain tuples, which cost a third of named ones."""

    def __iter__(self) -> "map[Batch]":
        return map(Batch._make, self.batches)

    def __repr__(self) -> str:
        return f"<Run {self.topic!r} {len(self.batches)} batches, {self.count} messages>"


def verify_runs(
    buffer: bytearray,
    view: memoryview,
    start: int,
    end: int,
    kinds: frozenset[int] = PLAIN_KINDS,
) -> tuple[list[Run], int]:
    """Verify the batches from `start` on and group them into runs.

    `view` is a view of `buffer`; `kinds` are the transport states that this side takes. Returns
    the runs and where it stopped: at a frame that is not all there yet, at one that is no such
    batch, or at `end`. Raises BadBatch or BadHash for a batch
    that breaks the protocol; the runs before it are then lost to the caller together with the
    session, and nothing of them was acked.
    """
    unpack = _PUBLISHED.unpack_from
    digest = xxh3_64_intdigest
    messages_max = limits.BATCH_MESSAGES_MAX
    frame_bytes_max = limits.FRAME_BYTES_MAX
    flags_taken = FLAGS_TAKEN
    runs: list[Run] = []
    at = run_start = start
    topic = b""
    topic_length = run_flags = -1
    messages = utc_us_max = 0
    batches: list[tuple[int, int, int, int, int]] = []
    while end - at >= HEADER_BYTES:
        length, kind, body_hash, count, flags, new_length, utc_us, producer_id, producer_seq = (
            unpack(view, at)
        )
        if kind not in kinds or length > frame_bytes_max:
            break
        after = at + length
        if after > end:
            break
        if (
            not 0 < count <= messages_max
            or flags not in flags_taken
            or length <= HEADER_BYTES + new_length
        ):
            raise _bad_batch(view, at)
        if digest(view[at + HASHED_BODY_AT : after]) != body_hash:
            raise _bad_hash(view, at)
        if (
            new_length != topic_length
            or flags != run_flags
            or not buffer.startswith(topic, at + HEADER_BYTES)
        ):
            if new_length < TOPIC_BYTES_MIN:
                raise _bad_batch(view, at)
            if batches:
                runs.append(_run(topic, run_flags, run_start, at, messages, utc_us_max, batches))
                batches = []
                messages = utc_us_max = 0
            topic = bytes(view[at + HEADER_BYTES : at + HEADER_BYTES + new_length])
            topic_length = new_length
            run_flags = flags
            run_start = at
        batches.append((at, count, flags, producer_id, producer_seq))
        messages += count
        if utc_us > utc_us_max:
            utc_us_max = utc_us
        at = after
    if batches:
        runs.append(_run(topic, run_flags, run_start, at, messages, utc_us_max, batches))
    return runs, at


def stamp_run(view: memoryview, run: Run, broker_id: BrokerId, seed: int, first_no: int) -> MsgNo:
    """Write brokerId, msgNo and header hash into the batches of a run; the number after its last.

    `seed` is `broker_seed(broker_id)`, which the log keeps.
    """
    digest = xxh3_64_intdigest
    pack = _STAMP.pack_into
    number = first_no
    for at, count, _, _, _ in run.batches:
        header = view[at + HASHED_HEADER_AT : at + HEADER_BYTES]
        pack(view, at + STAMP_AT, broker_id, number, digest(header, number ^ seed))
        number += count
    return MsgNo(number)


def _run(
    topic: bytes,
    flags: int,
    start: int,
    end: int,
    count: int,
    utc_us_max: int,
    batches: list[tuple[int, int, int, int, int]],
) -> Run:
    run = Run(topic, start)
    run.end = end
    run.count = count
    run.flags = flags
    run.utc_us_max = utc_us_max
    run.batches = batches
    return run


def _bad_batch(view: memoryview, at: int) -> BadBatch:
    check_prefix(view, at)
    header = read_header(view, at)
    return BadBatch(
        f"batch of {header.length} bytes with {header.count} messages, flags "
        f"{header.flags:#x} and a topic of {header.topic_bytes} bytes; expected 1 to "
        f"{limits.BATCH_MESSAGES_MAX} messages, a scope, a topic of 2 to 255 bytes and a body"
    )


def _bad_hash(view: memoryview, at: int) -> BadHash:
    header = read_header(view, at)
    return BadHash(
        f"batch {header.producer_seq} of producer {header.producer_id:016x} ({header.length} "
        f"bytes): its body hash does not fit its bytes; send it again"
    )
