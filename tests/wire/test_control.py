"""Control messages: each from its declaration, and nothing that the declaration does not say."""

import math
import struct
import tracemalloc
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire import limits
from busnode.wire.control import (
    CONTROLS,
    Ack,
    Chunk,
    Control,
    Error,
    ExtentsHeld,
    Goodbye,
    Hello,
    Ping,
    Reply,
    Request,
    Subscribe,
    Subscribed,
    decode_control,
    encode_control,
    encode_trusted,
)
from busnode.wire.errors import BadControl, BadHash, FrameTooLarge
from busnode.wire.frames import CONTROL_PREFIX_BYTES, FRAME_LIMITS, FrameType, check_prefix

from .samples import (
    BROKER,
    EXAMPLES,
    MESSAGES,
    OR_NIL,
    STRATEGIES,
    U64,
    array_of,
    chunk,
    control_frame,
    control_values,
    example,
    flipped,
    kinds_of,
    messages,
    messages_of,
    patched,
)

every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.TYPE.name)


def decoded(frame: bytes) -> Control:
    assert check_prefix(memoryview(frame), 0) == (len(frame), frame[4])
    return decode_control(memoryview(frame))


def refused(frame: bytes) -> BadControl:
    with pytest.raises(BadControl) as caught:
        decoded(frame)
    return caught.value


# Declarations -------------------------------------------------------------------------------------


def test_every_frame_type_but_the_batch_is_one_control_message() -> None:
    assert set(CONTROLS) == set(FrameType) - {FrameType.BATCH}
    assert {kind: message.TYPE for kind, message in CONTROLS.items()} == {k: k for k in CONTROLS}


@every_message
def test_a_message_is_a_frozen_value_that_says_who_sends_it_to_whom(message: type[Control]) -> None:
    assert is_dataclass(message)
    direction, _, purpose = (message.__doc__ or "").partition(": ")
    assert " → " in direction
    assert purpose
    value = example(message)
    assert value == replace(value)
    assert not hasattr(value, "__dict__")
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(message)[0].name, None)


def test_every_kind_of_field_has_samples_and_no_sample_is_of_no_kind() -> None:
    used = {words.removesuffix(OR_NIL) for m in MESSAGES for words in kinds_of(m).values()}
    assert used == set(EXAMPLES) == set(STRATEGIES)


# Round trips --------------------------------------------------------------------------------------


@every_message
@given(data=st.data())
def test_every_message_comes_back_as_it_was(message: type[Control], data: st.DataObject) -> None:
    value = data.draw(messages_of(message))
    frame = encode_control(value)
    assert len(frame) <= FRAME_LIMITS[message.TYPE]
    assert decoded(frame) == value
    assert type(decoded(frame)) is message


@given(messages)
def test_the_short_way_for_checked_values_makes_the_same_bytes(message: Control) -> None:
    assert encode_trusted(type(message), *array_of(message)) == encode_control(message)


@every_message
def test_fields_from_a_newer_version_are_ignored(message: type[Control]) -> None:
    value = example(message)
    for more in ([None], [7, "new", b"\0"], [[{"deep": [1, 2]}]]):
        assert decoded(control_values(message.TYPE, array_of(value) + more)) == value


@every_message
def test_an_array_that_is_too_short_is_refused(message: type[Control]) -> None:
    values = array_of(example(message))
    required = sum(field.default is MISSING for field in fields(message))
    for length in range(required):
        error = refused(control_values(message.TYPE, values[:length]))
        assert f"{message.TYPE.name} is not an array of {required} fields" in error.text


@every_message
def test_fields_that_an_older_version_lacks_have_their_defaults(message: type[Control]) -> None:
    values = array_of(example(message))
    optional = [field for field in fields(message) if field.default is not MISSING]
    for missing in range(1, len(optional) + 1):
        found = decoded(control_values(message.TYPE, values[:-missing]))
        assert array_of(found)[:-missing] == values[:-missing]
        assert array_of(found)[-missing:] == [field.default for field in optional[-missing:]]


@every_message
@pytest.mark.parametrize("value", [None, 7, "text", b"bytes", {}, {"a": 1}, True, 0.5], ids=repr)
def test_what_is_not_an_array_is_refused(message: type[Control], value: object) -> None:
    refused(control_values(message.TYPE, value))


# Fields of the wrong kind -------------------------------------------------------------------------

LONG = "é" * 64  # 128 bytes: the longest name
VALUES: dict[str, Any] = {
    "nil": None,
    "true": True,
    "seven": 7,
    "the largest number": 2**64 - 1,
    "minus one": -1,
    "the smallest number": -(2**63),
    "a half": 0.5,
    "minus a half": -0.5,
    "infinity": math.inf,
    "not a number": math.nan,
    "no text": "",
    "latest": "latest",
    "Latest": "Latest",
    "the longest name": LONG,
    "too long for a name": LONG + "x",
    "the longest topic": "/" + "t" * 254,
    "too long for a topic": "/" + "t" * 255,
    "the longest text": "x" * 1024,
    "too long for a text": "x" * 1025,
    "no bytes": b"",
    "fifteen bytes": bytes(15),
    "sixteen bytes": bytes(16),
    "seventeen bytes": bytes(17),
    "latest in bytes": b"latest",
    "an empty list": [],
    "a list of texts": ["a", "b"],
    "a list of too long names": [LONG + "x"],
    "a list with nil": [None],
    "a list of numbers": [1, 2],
    "a list with a number below zero": [1, -1],
    "a list with a yes": [1, True],
    "a list of bytes": [b"a", b""],
    "a list of bytes and text": [b"a", "a"],
    "a list of maps of texts": [{"a": "b"}, {}],
    "too long a list": [""] * 1025,
    "an empty map": {},
    "a map of texts": {"a": "b"},
    "a map of numbers": {"a": 1},
    "a map of maps": {BROKER: {"/a": 1}},
    "a map of maps with a bad brokerId": {bytes(15): {"/a": 1}},
    "a map of maps with a bad topic": {BROKER: {"/" + "t" * 255: 1}},
    "a map of maps with a bad number": {BROKER: {"/a": -1}},
    "a map of bytes": {BROKER: b""},
    "65 headers": {str(i): "" for i in range(65)},
    "64 headers": {str(i): "" for i in range(64)},
    "rows of two numbers": [[1, 2]],
    "rows of three numbers": [[1, 2, 3]] * 2,
    "rows of four numbers": [[1, 2, 3, 4]],
    "rows with a text": [[1, 2, "3"]],
    "extents": [[BROKER, "/a", 1, 2]],
    "extents with a short brokerId": [[bytes(15), "/a", 1, 2]],
    "extents with a row too short": [[BROKER, "/a", 1, 2], [BROKER, "/a", 1]],
    "topic and number": [["/a", 1]],
    "number and topic": [[1, "/a"]],
    "members": [[BROKER, "north", ["a:1"]], [BROKER, "", []]],
    "holdings": [[BROKER, 1, 2, 3, True]],
    "members without addresses": [[BROKER, "north", None]],
    "an empty row": [[]],
    "an extension": msgpack.ExtType(5, b""),
}
TEXTS = {"no text", "latest", "Latest", "the longest name"}
FITS: dict[str, set[str]] = {
    "u64": {"seven", "the largest number"},
    "seconds": {"seven", "the largest number", "a half"},
    "bool": {"true"},
    "name": TEXTS,
    "text": TEXTS | {
        "too long for a name", "the longest topic", "too long for a topic", "the longest text",
    },
    "secret": TEXTS | {"too long for a name", "the longest topic", "too long for a topic"},
    "topic or pattern": TEXTS | {"too long for a name", "the longest topic"},
    "brokerId": {"sixteen bytes"},
    "bytes": {
        "no bytes", "fifteen bytes", "sixteen bytes", "seventeen bytes", "latest in bytes",
    },
    '"latest", "earliest", utc µs': {"latest", "seven", "the largest number"},
    "[host:port]": {"an empty list", "a list of texts"},
    "{text: text}": {"an empty map", "a map of texts", "64 headers"},
    "{brokerId: {topic: msgNo}}": {"an empty map", "a map of maps"},
    "[[u64, u64, u64]]": {"an empty list", "rows of three numbers"},
    "[[brokerId, topic, first msgNo, last msgNo]]": {"an empty list", "extents"},
    "[[topic, msgNo]]": {"an empty list", "topic and number"},
    "[[brokerId, name, [host:port]]]": {"an empty list", "members"},
    "[[brokerId, u64, u64, u64, bool]]": {"an empty list", "holdings"},
    "[u64]": {"an empty list", "a list of numbers"},
    "[name]": {"an empty list", "a list of texts"},
    "[bytes]": {"an empty list", "a list of bytes"},
    "[{text: text}]": {"an empty list", "a list of maps of texts"},
    "[[u64, name]]": {"an empty list", "number and topic"},
    "[[u64, u64]]": {"an empty list", "rows of two numbers"},
    "[[name, u64]]": {"an empty list", "topic and number"},
}  # fmt: skip


def fits(words: str, value: str) -> bool:
    if words.endswith(OR_NIL) and value == "nil":
        return True
    return value in FITS[words.removesuffix(OR_NIL)]


FIELDS = [(m, name, words) for m in MESSAGES for name, words in kinds_of(m).items()]


@pytest.mark.parametrize(
    ("message", "name", "words"), FIELDS, ids=[f"{m.TYPE.name}.{name}" for m, name, _ in FIELDS]
)
def test_a_field_takes_values_of_its_kind_and_no_others(
    message: type[Control], name: str, words: str
) -> None:
    good = example(message)
    at = [field.name for field in fields(message)].index(name)
    for label, value in VALUES.items():
        values = array_of(good)
        values[at] = value
        frame = control_values(message.TYPE, values)
        if len(frame) > FRAME_LIMITS[message.TYPE]:
            continue
        if fits(words, label):
            assert array_of(decoded(frame))[:at] == array_of(good)[:at], label
        else:
            error = refused(frame)
            assert f"field {name}: " in error.text or label == "too long a list"


@every_message
def test_what_cannot_be_received_cannot_be_sent(message: type[Control]) -> None:
    for name, words in kinds_of(message).items():
        for label, value in VALUES.items():
            broken = replace(example(message), **{name: value})
            if fits(words, label):
                continue
            with pytest.raises((BadControl, FrameTooLarge)):
                encode_control(broken)


def test_numbers_that_msgpack_cannot_carry_are_refused_too() -> None:
    for number in (2**64, 10**400, -(2**63) - 1):
        with pytest.raises(BadControl):
            encode_control(Ping(number))


def test_text_with_half_a_surrogate_pair_is_refused() -> None:
    for message in (replace(example(Hello), name="\ud800"), replace(example(Error), code="\ud800")):
        with pytest.raises(BadControl, match="surrogates"):
            encode_control(message)


# Sizes --------------------------------------------------------------------------------------------


def padded(kind: FrameType, length: int) -> bytes:
    """A frame of exactly this length: the example, and what a newer version added."""
    values = array_of(example(CONTROLS[kind]))
    spare = length - CONTROL_PREFIX_BYTES - len(msgpack.packb([*values, b""]))
    # A longer text for bytes takes a longer header: 1, 2 or 4 bytes of length.
    header = 0 if spare < 256 else 1 if spare < 65537 else 3
    return control_values(kind, [*values, bytes(spare - header)])


@every_message
def test_a_frame_may_be_as_long_as_its_type_allows_and_no_longer(message: type[Control]) -> None:
    limit = FRAME_LIMITS[message.TYPE]
    frame = padded(message.TYPE, limit)
    assert len(frame) == limit
    assert decoded(frame) == example(message)
    with pytest.raises(FrameTooLarge):
        check_prefix(memoryview(padded(message.TYPE, limit + 1)), 0)


@pytest.mark.parametrize(
    "message",
    [
        replace(example(Request), payload=bytes(limits.REQUEST_BYTES_MAX)),
        replace(example(Reply), payload=bytes(limits.REQUEST_BYTES_MAX)),
        replace(example(Subscribe), position={BROKER: {f"/{i:0254}": i for i in range(17_000)}}),
        Goodbye("", ["h" * 128] * 600),
        ExtentsHeld(1, [(BROKER, "/" + "t" * 200, 1, 2)] * 1024, True),
    ],
    ids=lambda message: message.TYPE.name,
)
def test_a_message_over_the_limit_of_its_type_is_not_sent(message: Control) -> None:
    limit = FRAME_LIMITS[message.TYPE]
    with pytest.raises(FrameTooLarge, match=f"{message.TYPE.name} frame of .* limit is {limit}"):
        encode_control(message)


def test_the_longest_receipts_of_an_ack_fit_into_its_frame() -> None:
    worst = Ack(BROKER, "x" * 128, [(U64, U64, U64)] * limits.CONTROL_ELEMENTS_MAX)
    assert decoded(encode_control(worst)) == worst


def test_a_subscription_takes_a_position_of_20_000_logs() -> None:
    topic = "/plant/north/hall 7/machine {:05}/" + "temperature" * 5
    logs = {topic.format(number): number for number in range(20_000)}
    assert len(topic.format(0)) > 85
    answer = Subscribed(1, {BROKER: logs})
    assert decoded(encode_control(answer)) == answer


# Hostile bytes ------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_control_frame_is_found() -> None:
    frame = encode_control(Ping(2**40))
    for bit in range(8 * 8, len(frame) * 8):
        with pytest.raises(BadHash, match="PING"):
            decode_control(memoryview(flipped(frame, bit)))


def test_a_frame_of_another_type_does_not_fit_its_hash() -> None:
    ping = encode_control(Ping(7))
    with pytest.raises(BadHash, match="PONG"):
        decode_control(memoryview(patched(ping, 4, bytes([FrameType.PONG]))))


@given(messages, st.data())
def test_every_cut_array_is_refused(message: Control, data: st.DataObject) -> None:
    array = encode_control(message)[CONTROL_PREFIX_BYTES:]
    cut = data.draw(st.integers(0, len(array) - 1))
    refused(control_frame(message.TYPE, array[:cut]))


@every_message
def test_bytes_behind_the_array_are_refused(message: type[Control]) -> None:
    array = encode_control(example(message))[CONTROL_PREFIX_BYTES:]
    assert "ExtraData" in refused(control_frame(message.TYPE, array + b"\xc0")).text


@every_message
@pytest.mark.parametrize("depth", [10, 300])
def test_no_depth_of_nesting_in_a_field_is_more_than_a_bad_control(
    message: type[Control], depth: int
) -> None:
    values = [b"\xc0"] * len(fields(message))
    for level in (b"\x91", b"\x81\xa0"):
        array = bytes([0x90 | len(values)]) + level * depth + b"".join(values)
        refused(control_frame(message.TYPE, array))


@pytest.mark.parametrize("end", [b"", b"\xc0"])
@pytest.mark.parametrize("depth", [990, 1000, 1015, 1022, 1030, 20_000])
def test_nesting_deeper_than_python_recurses_is_a_bad_control(depth: int, end: bytes) -> None:
    for level in (b"\x91", b"\x81\xa0"):
        refused(control_frame(FrameType.PING, b"\x91" + level * depth + b"\xc0" + end))


def test_lengths_that_are_announced_and_never_come_allocate_little() -> None:
    headers = {
        "arrays": struct.pack(">BI", 0xDD, limits.CONTROL_ELEMENTS_MAX),
        "too long arrays": struct.pack(">BI", 0xDD, limits.CONTROL_ELEMENTS_MAX * 2),
        "absurd arrays": struct.pack(">BI", 0xDD, 2**32 - 1),
        "maps": struct.pack(">BI", 0xDF, limits.SUBSCRIBE_BYTES_MAX) + b"\xa0",
        "long maps": struct.pack(">BI", 0xDF, 2**32 - 1),
        "bytes": struct.pack(">BI", 0xC6, 2**32 - 1),
        "text": struct.pack(">BI", 0xDB, 2**32 - 1),
    }
    for header in headers.values():
        array = b"\x97" + header * ((limits.SUBSCRIBE_BYTES_MAX - 100) // len(header))
        frame = control_frame(FrameType.SUBSCRIBE, array)
        tracemalloc.start()
        refused(frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= 10 * limits.MIB


def test_a_stranger_can_make_a_node_allocate_little() -> None:
    array = b"\x93" + struct.pack(">BH", 0xDC, limits.CONTROL_ELEMENTS_MAX) * 330
    frame = control_frame(FrameType.HELLO, array)
    assert len(frame) <= limits.HELLO_BYTES_MAX
    tracemalloc.start()
    refused(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 3 * limits.MIB


def test_an_error_repeats_little_of_what_was_sent() -> None:
    for value in ("x" * 500_000, b"x" * 500_000, ["x" * 500_000], [[["x"]]], {"x": "y" * 500_000}):
        frame = control_values(FrameType.SUBSCRIBED, [value, {}])
        assert len(str(refused(frame))) < 300


def test_a_chunk_is_an_ordinary_message_to_who_decodes_it() -> None:
    expected = Chunk(1, 2, BROKER, "/plant/north/temp", 1, 12, length=100, last=False)
    assert decoded(chunk(length=100)) == expected
