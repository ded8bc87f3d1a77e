"""The body of a batch: what a producer may write and what a consumer refuses to read."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire import batches as batches_module
from busnode.wire import limits
from busnode.wire.batches import (
    BODY_BYTES_MAX,
    Columns,
    decode_beside_payloads,
    decode_columns,
    decode_payloads,
    encode_columns,
)
from busnode.wire.errors import BadBatch, BatchTooLarge
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.topics import TOPIC_BYTES_MAX

from .samples import batch, columns


def packed(*values: Any) -> bytes:
    body = msgpack.packb(list(values))
    assert isinstance(body, bytes)
    return body


@contextmanager
def allocating_at_most(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= bytes_max, f"allocated {peak / limits.MIB:.1f} MiB"


def refused(body: bytes, count: int) -> BadBatch:
    with pytest.raises(BadBatch) as caught:
        decode_columns(body, count)
    return caught.value


# Round trips --------------------------------------------------------------------------------------


@given(columns())
def test_columns_come_back_as_they_were(content: Columns) -> None:
    body = encode_columns(content)
    assert body[0] == batches_module.COLUMN_ARRAY
    for form in (body, memoryview(body), bytearray(body)):
        assert decode_columns(memoryview(form), len(content.payloads)) == content
    assert decode_columns(body, len(content.payloads)) == content


@given(columns(), st.integers(0, limits.BATCH_MESSAGES_MAX + 1))
def test_a_count_other_than_the_true_one_is_a_bad_batch(content: Columns, count: int) -> None:
    if count != len(content.payloads):
        refused(encode_columns(content), count)


def test_a_column_that_no_message_needs_is_one_byte() -> None:
    assert encode_columns(Columns([b"x"])) == b"\x94\xc0\xc0\xc0\x91\xc4\x01x"


def test_tuples_mappings_and_views_are_written_like_lists_dicts_and_bytes() -> None:
    plain = Columns([b"a", b"b"], [0, 1], ["x", None], [{"k": "v"}, None])
    other = Columns(
        (memoryview(b"a"), bytearray(b"b")),  # type: ignore[arg-type]
        (0, 1),
        ("x", None),
        (MappingProxyType({"k": "v"}), None),
    )
    assert encode_columns(other) == encode_columns(plain)


# Limits of a producer -----------------------------------------------------------------------------


def test_a_batch_takes_one_to_the_limit_of_messages() -> None:
    for count in (1, limits.BATCH_MESSAGES_MAX):
        content = Columns([b""] * count)
        assert decode_columns(encode_columns(content), count) == content
    for count in (0, limits.BATCH_MESSAGES_MAX + 1):
        with pytest.raises(BatchTooLarge, match=f"batch of {count} messages"):
            encode_columns(Columns([b""] * count))


def test_the_largest_payload_with_the_largest_headers_fits_into_a_frame() -> None:
    payload = bytes(limits.PAYLOAD_BYTES_MAX)
    name = "n" * 100
    headers = {name: "v" * (limits.HEADERS_BYTES_MAX - len(name))}
    body = encode_columns(Columns([payload], [0], ["i" * limits.MESSAGE_ID_BYTES_MAX], [headers]))
    frame = batch("/" + "t" * 254, body=body, count=1)
    assert len(frame) <= limits.FRAME_BYTES_MAX
    assert decode_columns(body, 1).payloads[0] == payload


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    size = limits.PAYLOAD_BYTES_MAX + 1
    with pytest.raises(BatchTooLarge, match=f"{size} bytes; the limit is {size - 1}"):
        encode_columns(Columns([b"", bytes(size)]))


def test_a_batch_over_the_limit_is_refused_with_both_sizes() -> None:
    overhead = len(b"\x94\xc0\xc0\xc0\x92") + 2 * len(b"\xc6....")
    half = BODY_BYTES_MAX // 2
    rest = BODY_BYTES_MAX - overhead - half
    body = encode_columns(Columns([bytes(half), bytes(rest)]))
    assert len(body) == BODY_BYTES_MAX
    assert len(body) + HEADER_BYTES + TOPIC_BYTES_MAX == limits.FRAME_BYTES_MAX
    with pytest.raises(
        BatchTooLarge, match=f"{BODY_BYTES_MAX + 1} bytes; the limit is {BODY_BYTES_MAX}"
    ):
        encode_columns(Columns([bytes(half), bytes(rest + 1)]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (Columns([b""], ids=["é" * 64 + "x"]), "message id of 129 bytes; the limit is 128"),
        (
            Columns([b""], headers=[{str(i): "" for i in range(65)}]),
            "65 headers; the limit is 64",
        ),
        (
            Columns([b""], headers=[{"n": "v" * 16384}]),
            "headers of 16385 bytes; the limit is 16384",
        ),
    ],
)
def test_ids_and_headers_have_limits_on_both_sides(content: Columns, text: str) -> None:
    with pytest.raises(BatchTooLarge, match=text):
        encode_columns(content)
    refused(packed(None, content.ids, content.headers, [b""]), 1)


def test_ids_and_headers_at_their_limits_are_taken() -> None:
    content = Columns(
        [b"", b""],
        ids=["é" * 64, None],
        headers=[{f"{i:02}": "" for i in range(64)}, {"n": "v" * 16383}],
    )
    assert decode_columns(encode_columns(content), 2) == content


@pytest.mark.parametrize(
    "content",
    [
        Columns([b"a", b"b"], [0]),
        Columns([b"a"], ids=["x", "y"]),
        Columns([b"a"], headers=[]),
    ],
)
def test_a_column_of_another_length_is_not_written(content: Columns) -> None:
    with pytest.raises(BadBatch, match="elements for"):
        encode_columns(content)


@pytest.mark.parametrize(
    "content",
    [
        Columns(["text"]),  # type: ignore[list-item]
        Columns([None]),  # type: ignore[list-item]
        Columns([b"a", 7]),  # type: ignore[list-item]
        Columns([b"a"], [0.5]),  # type: ignore[list-item]
        Columns([b"a"], [True]),
        Columns([b"a"], ["now"]),  # type: ignore[list-item]
        Columns([b"a"], [2**64]),
        Columns([b"a"], ids=[7]),  # type: ignore[list-item]
        Columns([b"a"], ids=["\ud800"]),
        Columns([b"a"], headers=["k"]),  # type: ignore[list-item]
        Columns([b"a"], headers=[{"k": 7}]),  # type: ignore[dict-item]
        Columns([b"a"], headers=[{b"k": "v"}]),  # type: ignore[dict-item]
        Columns([b"a"], headers=[{"k": "\udfff"}]),
    ],
    ids=repr,
)
def test_what_a_consumer_could_not_read_is_not_written(content: Columns) -> None:
    with pytest.raises(BadBatch):
        encode_columns(content)


# Hostile bodies -----------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "utc": [0, 1],
    "ids": ["x", None],
    "headers": [{"k": "v"}, None],
    "payloads": [b"a", b"b"],
}
STRANGE: dict[str, Any] = {
    "number": 7,
    "minus one": -1,
    "float": 0.5,
    "true": True,
    "text": "ab",
    "two bytes": b"ab",
    "no bytes": b"",
    "map": {"a": "b"},
    "map of bytes": {b"a": b"b", b"c": b"d"},
    "empty list": [],
    "list of one": [None],
    "list of three": [None] * 3,
    "list of lists": [[], []],
    "list of floats": [0.5, 0.5],
    "list of booleans": [True, False],
    "list of texts and numbers": ["a", 1],
    "list of bytes and texts": [b"a", "b"],
    "list of bytes and nil": [b"a", None],
    "list of maps": [{}, {}],
    "map with a number": [{"k": 1}, None],
    "map with nil": [{"k": None}, None],
    "map in a map": [{"k": {"k": "v"}}, None],
    "map of bytes in a list": [{b"k": "v"}, None],
    "extension": msgpack.ExtType(5, b""),
    "list of extensions": [msgpack.ExtType(5, b""), msgpack.ExtType(5, b"")],
}
FITS = {
    "utc": set[str](),
    "ids": set[str](),
    "headers": {"list of maps"},
    "payloads": set[str](),
}


def test_the_samples_are_good_as_long_as_nothing_strange_is_among_them() -> None:
    assert decode_columns(packed(*GOOD.values()), 2) == Columns(
        GOOD["payloads"], GOOD["utc"], GOOD["ids"], GOOD["headers"]
    )


@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("strange", STRANGE)
def test_a_column_of_the_wrong_kind_is_a_bad_batch(column: str, strange: str) -> None:
    body = packed(*{**GOOD, column: STRANGE[strange]}.values())
    if strange in FITS[column]:
        decode_columns(body, 2)
    else:
        refused(body, 2)


def test_payloads_cannot_be_absent() -> None:
    refused(packed(None, None, None, None), 1)


@pytest.mark.parametrize("values", [[], [None] * 3, [None] * 5, [None, None, None, [b""], None]])
def test_other_than_four_columns_is_a_bad_batch(values: list[Any]) -> None:
    assert "is not four columns" in refused(packed(*values), 1).text


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x84", b"\xdc\x00\x04\xc0\xc0\xc0\x91\xc4\x00"])
def test_a_body_begins_with_one_certain_byte(body: bytes) -> None:
    refused(body, 1)


@given(columns())
def test_every_cut_of_a_body_is_a_bad_batch(content: Columns) -> None:
    body = encode_columns(content)
    for end in range(len(body)):
        refused(body[:end], len(content.payloads))


@given(columns(), st.binary(min_size=1, max_size=20))
def test_bytes_behind_a_body_are_a_bad_batch(content: Columns, more: bytes) -> None:
    assert "ExtraData" in refused(encode_columns(content) + more, len(content.payloads)).text


def array32(length: int) -> bytes:
    return struct.pack(">BI", 0xDD, length)


def wide(leaf: bytes) -> bytes:
    """As many leaves as fit into a body, in lists that are each short enough."""
    inner = b"\xdc\x08\x00" + leaf * 2048
    count = min(limits.BATCH_MESSAGES_MAX, (BODY_BYTES_MAX - 10) // len(inner))
    return b"\x94" + array32(count) + inner * count + b"\xc0\xc0\xc0"


def endless(leaf: bytes) -> bytes:
    """Lists that each hold leaves and then another list, and never end."""
    level = array32(limits.BATCH_MESSAGES_MAX) + leaf * (limits.BATCH_MESSAGES_MAX - 1)
    return b"\x94" + level * 80


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"\x94" + array32(limits.BATCH_MESSAGES_MAX) * 1_600_000,
        lambda: b"\x94" + array32(limits.BATCH_MESSAGES_MAX) * 1000,
        lambda: b"\x94" + array32(limits.BATCH_MESSAGES_MAX * 2) * 1000,
        lambda: b"\x94" + array32(2**32 - 1) * 1000,
        lambda: b"\x94" + b"\xdf\xff\xff\xff\xff" * 1000,
        lambda: b"\x94" + b"\xc6\xff\xff\xff\xff",
        lambda: b"\x94" + b"\xdb\xff\xff\xff\xff",
        lambda: b"\x94" + b"\x91" * 2_000_000,
        lambda: b"\x94" + b"\x81\xa1k" * 2_000_000,
        lambda: wide(b"\xc0"),
        lambda: wide(b"\x90"),
        lambda: wide(b"\x80"),
        lambda: wide(b"\x91\x91\x90"),
        lambda: wide(b"\x81\xa1k\x80"),
    ],
    ids=[
        "nested lists, a whole frame",
        "nested lists, as deep as goes",
        "nested lists, too long",
        "nested lists, absurdly long",
        "absurd maps",
        "absurd bytes",
        "absurd text",
        "nested short lists",
        "nested maps",
        "wide nil",
        "wide empty lists",
        "wide empty maps",
        "wide nested lists",
        "wide nested maps",
    ],
)
def test_lengths_and_containers_of_a_hostile_body_allocate_at_most_40_mib(
    make: Callable[[], bytes],
) -> None:
    body = make()
    with allocating_at_most(40 * limits.MIB):
        refused(body, limits.BATCH_MESSAGES_MAX)


@pytest.mark.parametrize(
    "leaf",
    [b"\xa2ab", b"\xc4\x02ab", b"\xcd\x01\x00", b"\xca\x00\x00\x00\x00", b"\x80", b"\x81\xa1k\x80"],
)
def test_the_values_of_a_hostile_body_allocate_at_most_20_times_its_bytes(leaf: bytes) -> None:
    body = endless(leaf)
    with allocating_at_most(20 * len(body)):
        refused(body, limits.BATCH_MESSAGES_MAX)


def test_a_small_count_leaves_little_to_allocate() -> None:
    body = b"\x94" + array32(4) * 1_600_000
    with allocating_at_most(limits.MIB):
        refused(body, 1)


@pytest.mark.parametrize("depth", [10, 500, 990, 1000, 1015, 1030, 5000])
@pytest.mark.parametrize("end", [b"", b"\xc0\xc0\xc0", b"\xc0\xc0\xc0\xc0", b"\xc1"])
def test_no_depth_of_nesting_is_more_than_a_bad_batch(depth: int, end: bytes) -> None:
    for level in (b"\x91", b"\x81\xa1k"):
        for count in (4, limits.BATCH_MESSAGES_MAX):
            refused(b"\x94" + level * depth + b"\xc0" + end, count)


@pytest.mark.parametrize(
    "extension",
    [
        b"\xd4\xff\x00",
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xc7\x00\xff",  # a timestamp without its time
        b"\xc7\x00\x05",
        b"\xc7\x04\x05abcd",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
)
def test_extensions_of_msgpack_have_no_place_in_a_body(extension: bytes) -> None:
    refused(b"\x94" + extension + b"\xc0\xc0\x91\xc4\x00", 1)
    refused(b"\x94\xc0\xc0\xc0\x91" + extension, 1)
    refused(b"\x94\x91" + extension + b"\xc0\xc0\x91\xc4\x00", 1)


def test_text_that_is_not_utf_8_is_a_bad_batch() -> None:
    refused(b"\x94\xc0\x91\xa2\xff\xff\xc0\x91\xc4\x00", 1)


def test_an_error_repeats_little_of_what_was_sent() -> None:
    body = packed(None, None, None, ["x" * 1_000_000])
    assert len(str(refused(body, 1))) < 400
    assert len(str(refused(packed(None, None, None, [b"x" * 1_000_000]) + b"\xc0", 1))) < 400


# Some columns alone -------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=9),
            st.integers(-9, 9),
            st.none() | st.text(max_size=3),
            st.none() | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
        ),
        min_size=1,
        max_size=20,
    ),
    st.tuples(*[st.booleans()] * 6),
)
def test_columns_beside_payloads_are_those_of_the_whole(
    rows: list[tuple[bytes, int, str | None, dict[str, str] | None]], choices: tuple[bool, ...]
) -> None:
    payloads, deltas, ids, headers = map(list, zip(*rows, strict=True))
    has_utc, has_ids, has_headers, utc, wants_ids, wants_headers = choices
    made = Columns(
        payloads,
        deltas if has_utc else None,
        ids if has_ids else None,
        headers if has_headers else None,
    )
    body = encode_columns(made)
    whole = decode_columns(body, len(rows))
    found = decode_beside_payloads(body, len(rows), utc=utc, ids=wants_ids, headers=wants_headers)
    assert found.utc_deltas_us == (whole.utc_deltas_us if utc else None)
    assert found.ids == (whole.ids if wants_ids else None)
    assert found.headers == (whole.headers if wants_headers else None)
    assert decode_payloads(body, found.payloads_at, len(rows)) == whole.payloads


@given(st.binary(max_size=40), st.integers(1, 5))
def test_bytes_that_are_no_body_are_refused_by_either(data: bytes, count: int) -> None:
    try:
        whole = decode_columns(b"\x94" + data, count)
    except BadBatch:
        return
    found = decode_beside_payloads(b"\x94" + data, count, utc=True, ids=True, headers=True)
    assert found[:3] == (whole.utc_deltas_us, whole.ids, whole.headers)
    assert decode_payloads(b"\x94" + data, found.payloads_at, count) == whole.payloads
