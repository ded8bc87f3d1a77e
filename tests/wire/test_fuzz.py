"""Mutated frames in bulk: whatever comes in, the outcome is events or one of our own errors.

The seed is drawn anew for each run and stands in every message; BUSNODE_FUZZ_SEED repeats a run.
Mutations know the structure: most of them make hashes and lengths anew, so that the damage gets
past the first check and reaches the decoders.
"""

import gc
import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from busnode.wire import limits
from busnode.wire.batches import Columns, decode_columns, encode_columns
from busnode.wire.control import CONTROLS, decode_control, encode_control
from busnode.wire.errors import BusnodeError, ProtocolError, Refused
from busnode.wire.frames import (
    CONTROL_PREFIX_BYTES,
    HEADER_BYTES,
    TRANSPORT_AT,
    FrameType,
    Transport,
    check_prefix,
    read_header,
)
from busnode.wire.reader import FrameReader
from busnode.wire.runs import DELIVERED_KINDS, FORWARDED_KINDS, PLAIN_KINDS
from busnode.wire.topics import decode_topic

from .samples import (
    EXAMPLES,
    MESSAGES,
    OR_NIL,
    BatchEvent,
    array_of,
    batch,
    chunk,
    control_frame,
    example,
    fed,
    kinds_of,
    patched,
    resealed_batch,
)

FRAMES = 220_000
WARM_UP_FRAMES = 20_000
GROWTH_BYTES_MAX = 32 * limits.MIB

KINDS = (PLAIN_KINDS, PLAIN_KINDS, DELIVERED_KINDS, DELIVERED_KINDS, FORWARDED_KINDS)


def batch_of(columns: Columns, topic: str = "/plant/north/temp") -> bytes:
    return batch(topic, body=encode_columns(columns), count=len(columns.payloads))


BATCHES = [
    batch(),
    batch("/a", [b""]),
    batch("/" + "t" * 254, [bytes(300)]),
    batch_of(Columns([b"x"] * 100)),
    batch_of(Columns([b"a", b"b"], [0, 2**40], ["id", None], [{"k": "v", "é": "☃"}, None])),
    batch_of(Columns([bytes(70_000)])),
    patched(batch(), TRANSPORT_AT, bytes([Transport.FORWARDED])),
]
CONTROL_FRAMES = [encode_control(example(message)) for message in MESSAGES] + [
    encode_control(
        replace(example(message), **{n: None for n, w in kinds_of(message).items() if OR_NIL in w})
    )
    for message in MESSAGES
]
CHUNKS = [chunk(), chunk(BATCHES[0]), chunk(BATCHES[1] * 3 + BATCHES[4], last=True)]
CORPUS = BATCHES + CONTROL_FRAMES + CHUNKS

BYTES = bytes(
    [0x00, 0x01, 0x7F, 0x80, 0x8F, 0x90, 0x94, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE1), 0xFF]
)
"""Where msgpack changes its mind about what follows, and the ends of ranges."""

NUMBERS = [0, 1, 7, 8, 15, 16, 17, 79, 80, 81, 255, 256, 1024, 4096, 4097, 65535, 65536]
NUMBERS += [limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1]

VALUES: list[Any] = [
    *EXAMPLES.values(), None, True, -1, 0, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"),
    "", "x" * 300, b"", bytes(300), [], {}, [None] * 5, [[[]]], {"a": {"b": []}}, {b"": b""},
    msgpack.ExtType(5, b""), msgpack.ExtType(5, b"abcd"), msgpack.Timestamp(1, 2),
]  # fmt: skip


class Mutator:
    """Draws damaged frames, all from one source of random numbers."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.ways: list[Callable[[], bytes]] = [
            self.damaged_frame,
            self.spliced_frames,
            self.prefix,
            self.batch_header,
            self.batch_body,
            self.batch_columns,
            self.batch_nested,
            self.control_array,
            self.control_values,
            self.control_nested,
            self.control_of_another_type,
            self.chunk,
        ]

    def frame(self) -> bytes:
        return self.random.choice(self.ways)()

    # Bytes without a care for what they mean

    def damaged_frame(self) -> bytes:
        return self.damaged(self.random.choice(CORPUS))

    def spliced_frames(self) -> bytes:
        choose = self.random
        one, other = choose.choice(CORPUS), choose.choice(CORPUS)
        return one[: choose.randint(0, len(one))] + other[choose.randint(0, len(other)) :]

    def damaged(self, data: bytes) -> bytes:
        choose = self.random
        changed = bytearray(data)
        for _ in range(choose.choice((1, 1, 1, 2, 5))):
            # Near the beginning more often than not: that is where the meaning is.
            end = len(changed) if choose.random() < 0.3 else min(len(changed), 120)
            at = choose.randint(0, max(end - 1, 0))
            more = choose.randint(1, 20)
            match choose.randrange(7):
                case 0 if changed:
                    changed[at] ^= 1 << choose.randrange(8)
                case 1 if changed:
                    changed[at] = choose.choice(BYTES)
                case 2:
                    changed[at : at + more] = choose.randbytes(more)
                case 3:
                    changed[at:at] = choose.randbytes(more)
                case 4:
                    del changed[at : at + more]
                case 5:
                    changed[at:at] = changed[at : at + more]
                case _:
                    del changed[at:]
        return bytes(changed)

    # Frames

    def prefix(self) -> bytes:
        choose = self.random
        frame = choose.choice(CORPUS)
        match choose.randrange(4):
            case 0:
                return struct.pack("<I", choose.choice(NUMBERS)) + frame[4:]
            case 1:
                near = max(0, len(frame) + choose.randint(-20, 20))
                return struct.pack("<I", near) + frame[4:]
            case 2:
                return patched(
                    frame, 4, bytes([choose.choice((*FrameType, choose.randrange(256)))])
                )
            case _:
                return patched(frame, choose.randint(5, 7), bytes([choose.randrange(256)]))

    def batch_header(self) -> bytes:
        choose = self.random
        frame = bytearray(choose.choice(BATCHES))
        match choose.randrange(4):
            case 0:
                struct.pack_into("<I", frame, 48, choose.choice(NUMBERS))
            case 1:
                frame[52] = choose.randrange(256)
            case 2:
                frame[53] = choose.randrange(256)
            case _:
                at = choose.randrange(8, HEADER_BYTES)
                frame[at] = choose.randrange(256)
        return resealed_batch(frame)

    def batch_body(self) -> bytes:
        frame = self.random.choice(BATCHES)
        start = HEADER_BYTES + frame[53]
        return resealed_batch(frame[:start] + self.damaged(frame[start:]))

    def batch_columns(self) -> bytes:
        frame = self.random.choice(BATCHES)
        start = HEADER_BYTES + frame[53]
        columns = self.changed(msgpack.unpackb(frame[start:]))
        return resealed_batch(frame[:start] + packed(columns))

    def batch_nested(self) -> bytes:
        choose = self.random
        count = choose.choice((1, 2, 100, limits.BATCH_MESSAGES_MAX))
        before = b"\x94" + b"\xc0" * choose.randrange(4)
        return batch(body=before + self.nested(count), count=count)

    def control_array(self) -> bytes:
        frame = self.random.choice(CONTROL_FRAMES)
        return control_frame(frame[4], self.damaged(frame[CONTROL_PREFIX_BYTES:]))

    def control_values(self) -> bytes:
        kind = self.random.choice(list(CONTROLS))
        return control_frame(kind, packed(self.changed(array_of(example(CONTROLS[kind])))))

    def control_nested(self) -> bytes:
        choose = self.random
        kind = choose.choice(list(CONTROLS))
        size = len(array_of(example(CONTROLS[kind])))
        array = bytes([0x90 | size]) + self.nested(limits.CONTROL_ELEMENTS_MAX)
        return control_frame(kind, array + b"\xc0" * choose.choice((0, size - 1, size)))

    def control_of_another_type(self) -> bytes:
        frame = self.random.choice(CONTROL_FRAMES)
        return control_frame(self.random.choice(list(CONTROLS)), frame[CONTROL_PREFIX_BYTES:])

    def chunk(self) -> bytes:
        choose = self.random
        inside = b"".join(choose.choices(BATCHES[:5], k=choose.randint(0, 3)))
        match choose.randrange(4):
            case 0:
                return chunk(inside, length=choose.choice((*NUMBERS, 2**64 - 1)))
            case 1:
                return chunk(inside, length=max(0, len(inside) + choose.randint(-100, 100)))
            case 2:
                return chunk(self.damaged(inside))
            case _:
                return chunk(inside + choose.choice(CORPUS))

    # Values of msgpack

    def changed(self, value: Any) -> Any:
        """The value with something in it taken out, put in, doubled or replaced."""
        choose = self.random
        if isinstance(value, list | tuple) and value and choose.random() < 0.8:
            elements = list(value)
            at = choose.randrange(len(elements))
            match choose.randrange(5):
                case 0:
                    del elements[at]
                case 1:
                    elements.insert(at, choose.choice(VALUES))
                case 2:
                    elements *= choose.choice((0, 2, 50))
                case _:
                    elements[at] = self.changed(elements[at])
            return elements
        if isinstance(value, dict) and choose.random() < 0.8:
            entries = dict(value)
            key = choose.choice([*entries, "new", b"new", 7, ""])
            entries[key] = self.changed(entries.get(key))
            return entries
        if isinstance(value, str | bytes) and choose.random() < 0.5:
            return value * choose.choice((0, 2, 300))
        if isinstance(value, int) and choose.random() < 0.5:
            return choose.choice((value + 1, -value, value << 16 & 2**63 - 1))
        return choose.choice(VALUES)

    def nested(self, length_max: int) -> bytes:
        """Containers in containers, as announced or not, ended or not."""
        choose = self.random
        length = choose.choice((1, 2, length_max, length_max + 1, 2**32 - 1))
        level = choose.choice(
            (
                b"\x91",
                b"\x81\xa1k",
                b"\x81\xc4\x10" + bytes(16),
                struct.pack(">BI", 0xDD, length),
                struct.pack(">BH", 0xDC, length & 0xFFFF),
                struct.pack(">BI", 0xDF, length) + b"\xa0",
                b"\x92" + packed(choose.choice(VALUES)),
                b"\xdc\x00\x20" + b"\x90" * 31,
            )
        )
        # A level of announced lists costs 32 KiB for a moment: most of the time a few will do.
        deep = choose.random() < 0.02
        depth = choose.choice((400, 900, 990, 1000, 1010, 1022, 1024, 1500)) if deep else None
        return level * (depth or choose.randint(1, 40)) + choose.choice((b"", b"\xc0", b"\x90\xc0"))


def packed(value: Any) -> bytes:
    array = msgpack.packb(value)
    assert isinstance(array, bytes)
    return array


def outcomes(frame: bytes, source: random.Random) -> list[str]:
    """What becomes of a frame in each place that reads it: events, nothing yet, or a code."""
    before = source.choice((b"", b"", BATCHES[0], CONTROL_FRAMES[0]))
    after = source.choice((b"", b"", BATCHES[1], CONTROL_FRAMES[1]))
    data = before + frame + after
    sizes = [source.randint(1, len(data) + 1) for _ in range(source.randrange(3))]
    reader = FrameReader(source.choice(KINDS))
    return [
        "reader " + named(lambda: read(reader, data, sizes)),
        "control " + named(lambda: read_control(frame)),
        "columns " + named(lambda: read_columns(frame, source)),
    ]


def named(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except (ProtocolError, Refused) as error:
        if len(str(error)) > 1000:
            raise AssertionError("an error that repeats what it was sent") from error
        return error.code


def read(reader: FrameReader, data: bytes, sizes: list[int]) -> str:
    # `fed` asserts that every event takes bytes off the reader and that there is always space.
    events = fed(reader, data, sizes)
    for event in events:
        if isinstance(event, BatchEvent):
            decode_topic(event.topic)
            start = HEADER_BYTES + len(event.topic)
            decode_columns(event.frame[start:], event.count)
    return "events" if events else "waits"


def read_control(frame: bytes) -> str:
    view = memoryview(frame)
    if len(frame) < CONTROL_PREFIX_BYTES or frame[4] not in CONTROLS:
        return "is not asked"
    length, _ = check_prefix(view, 0)
    if length != len(frame):
        return "is not asked"
    decode_control(view)
    return "event"


def read_columns(frame: bytes, source: random.Random) -> str:
    if len(frame) < HEADER_BYTES or frame[4] != FrameType.BATCH:
        return "is not asked"
    header = read_header(memoryview(frame), 0)
    count = header.count if source.random() < 0.9 else source.choice(NUMBERS)
    decode_columns(memoryview(frame)[HEADER_BYTES + header.topic_bytes :], count)
    return "event"


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.fuzz
def test_mutated_frames_end_in_events_or_in_errors_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("BUSNODE_FUZZ_SEED") or random.SystemRandom().randrange(2**32))
    source = random.Random(seed)
    mutator = Mutator(source)
    found: Counter[str] = Counter()
    resident = 0
    for number in range(FRAMES):
        if number == WARM_UP_FRAMES:
            resident = resident_bytes()
        frame = mutator.frame()
        try:
            found.update(outcomes(frame, source))
        except BaseException as error:
            error.add_note(f"BUSNODE_FUZZ_SEED={seed}, frame {number}: {frame[:2000].hex()}")
            raise
    growth = resident_bytes() - resident
    report = "\n".join(f"{count:>9,}  {outcome}" for outcome, count in sorted(found.items()))
    with capsys.disabled():
        print(f"\n{FRAMES:,} frames with BUSNODE_FUZZ_SEED={seed}, grown by {growth:,} bytes")
        print(report)
    assert growth <= GROWTH_BYTES_MAX, f"memory has grown by {growth:,} bytes with seed {seed}"
    # A run that no longer gets past the first checks would prove nothing.
    for outcome in EXPECTED:
        assert found[outcome] >= FRAMES // 2000, (
            f"too few of {outcome!r} with seed {seed}:\n{report}"
        )
    for outcome in found:
        assert "INTERNAL" not in outcome


EXPECTED = (
    "reader events",
    "reader waits",
    "reader BAD_FRAME",
    "reader FRAME_TOO_LARGE",
    "reader BAD_VERSION",
    "reader BAD_HASH",
    "reader BAD_BATCH",
    "reader BAD_CONTROL",
    "reader BAD_TOPIC",
    "control event",
    "control BAD_HASH",
    "control BAD_CONTROL",
    "columns event",
    "columns BAD_BATCH",
)


def test_one_seed_makes_the_same_frames_again() -> None:
    runs = []
    for _ in range(2):
        source = random.Random(7)
        mutator = Mutator(source)
        frames = [mutator.frame() for _ in range(300)]
        runs.append((frames, [outcomes(frame, source) for frame in frames]))
    assert runs[0] == runs[1]


def test_an_error_that_is_not_ours_would_be_noticed() -> None:
    def break_down() -> str:
        raise RecursionError

    def fail() -> str:
        raise BusnodeError("a bug")

    for attempt in (break_down, fail):
        with pytest.raises((RecursionError, BusnodeError)):
            named(attempt)
