"""The body of a batch: one msgpack array of columns.

    [utc deltas | nil, message ids | nil, headers | nil, payloads]

Columns, not rows: one C call encodes or decodes the whole batch, and an absent column is one byte.
Each column that is there has one element for each message. Only producers and consumers come here;
a node never decodes a body.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard, cast

import msgpack

from busnode.wire import limits
from busnode.wire.errors import BadBatch, BatchTooLarge
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.shapes import is_list, is_map
from busnode.wire.topics import TOPIC_BYTES_MAX

COLUMNS: Final = 4
COLUMN_ARRAY: Final = 0x90 | COLUMNS
"""First byte of every body: a msgpack array of four."""

_PAYLOADS_ALONE: Final = bytes([COLUMN_ARRAY, 0xC0, 0xC0, 0xC0])
"""How a body begins that has no other column."""

BODY_BYTES_MAX: Final = limits.FRAME_BYTES_MAX - HEADER_BYTES - TOPIC_BYTES_MAX
"""What a frame leaves for a body, whatever its topic."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The messages of one batch, column by column; None where no message has such a thing."""

    payloads: Sequence[bytes]
    utc_deltas_us: Sequence[int] | None = None
    """Microseconds before the utc in the header, which is that of the newest message: so a batch
    whose header is older than some moment has no message from after it."""
    ids: Sequence[str | None] | None = None
    headers: Sequence[Mapping[str, str] | None] | None = None


def encode_columns(columns: Columns) -> bytes:
    """A body, or BatchTooLarge with both sizes before anything is sent.

    BadBatch for columns that `decode_columns` would refuse: once such a body is in a log, no
    consumer could get past it.
    """
    payloads = columns.payloads
    if not 0 < len(payloads) <= limits.BATCH_MESSAGES_MAX:
        raise BatchTooLarge(
            f"batch of {len(payloads)} messages; it takes 1 to {limits.BATCH_MESSAGES_MAX}"
        )
    for column in (columns.utc_deltas_us, columns.ids, columns.headers):
        if column is not None and len(column) != len(payloads):
            raise BadBatch(f"column of {len(column)} elements for {len(payloads)} messages")
    try:
        if columns.headers is not None:
            _check_headers(columns.headers, BatchTooLarge)
        if columns.ids is not None:
            _check_ids(columns.ids, BatchTooLarge)
        if columns.utc_deltas_us is not None:
            _check_utc_deltas(columns.utc_deltas_us)
        b"".join(payloads)
        body = msgpack.packb(
            [columns.utc_deltas_us, columns.ids, columns.headers, payloads], default=_plain
        )
    except (TypeError, ValueError) as error:  # text with half a surrogate pair is a ValueError
        raise BadBatch(f"batch that cannot be written: {error!s:.200}") from error
    assert isinstance(body, bytes)
    if len(body) > limits.PAYLOAD_BYTES_MAX:  # else there is no need to look at each payload
        longest = max(map(len, payloads))
        if longest > limits.PAYLOAD_BYTES_MAX:
            raise BatchTooLarge(
                f"payload of {longest} bytes; the limit is {limits.PAYLOAD_BYTES_MAX}"
            )
        if len(body) > BODY_BYTES_MAX:
            raise BatchTooLarge(
                f"batch of {len(payloads)} messages with {len(body)} bytes; "
                f"the limit is {BODY_BYTES_MAX}"
            )
    return body


def decode_columns(body: bytes | memoryview, count: int) -> Columns:
    """The columns of a verified body; BadBatch for anything that is not exactly a body of `count`.

    `count` comes from the header and bounds every array and how many arrays and maps there are, so
    that hostile bytes cannot make the decoder allocate more than `limits.BATCH_MESSAGES_MAX` says.
    """
    if not 0 < count <= limits.BATCH_MESSAGES_MAX or not len(body) or body[0] != COLUMN_ARRAY:
        raise BadBatch(f"body of {len(body)} bytes for {count} messages is not four columns")
    try:
        utc_deltas_us, ids, headers, payloads = msgpack.unpackb(body, **_bounds(count))
        # join is the cheapest check that every payload is bytes: half the cost of map(type, …).
        b"".join(payloads)
    except Exception as error:
        raise _unreadable(body, error) from error
    _check_column(payloads, count)
    _check_beside(utc_deltas_us, ids, headers, count)
    return Columns(payloads, utc_deltas_us, ids, headers)


class Beside(NamedTuple):
    """Some columns of a body, and where in it the payloads stand."""

    utc_deltas_us: Sequence[int] | None
    ids: Sequence[str | None] | None
    headers: Sequence[Mapping[str, str] | None] | None
    payloads_at: int


def decode_beside_payloads(
    body: bytes | memoryview, count: int, *, utc: bool, ids: bool, headers: bool
) -> Beside:
    """Those columns of a verified body that are wanted, as `decode_columns` would give them; the
    others are stepped over and come as None. BadBatch for what is read and makes no sense.

    Nearly every body has payloads alone, and then nothing is decoded.
    """
    if bytes(body[: len(_PAYLOADS_ALONE)]) == _PAYLOADS_ALONE:
        return Beside(None, None, None, len(_PAYLOADS_ALONE))
    if not 0 < count <= limits.BATCH_MESSAGES_MAX or not len(body) or body[0] != COLUMN_ARRAY:
        raise BadBatch(f"body of {len(body)} bytes for {count} messages is not four columns")
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), **_bounds(count))

    def column(wanted: bool) -> Any:
        if wanted:
            return unpacker.unpack()
        unpacker.skip()
        return None

    try:
        unpacker.feed(body)
        unpacker.read_array_header()
        found = Beside(column(utc), column(ids), column(headers), unpacker.tell())
    except Exception as error:
        raise _unreadable(body, error) from error
    _check_beside(found.utc_deltas_us, found.ids, found.headers, count)
    return found


def decode_payloads(body: bytes | memoryview, at: int, count: int) -> list[bytes]:
    """The payloads of a body, which stand at `at`; BadBatch for anything else."""
    try:
        payloads = msgpack.unpackb(body[at:], **_bounds(count))
        b"".join(payloads)
    except Exception as error:
        raise _unreadable(body, error) from error
    _check_column(payloads, count)
    return cast("list[bytes]", payloads)


def _bounds(count: int) -> dict[str, Any]:
    """What keeps a decoder of a body with so many messages from allocating too much."""
    # An empty array or map takes one byte in a body and 64 in memory, so both are counted.
    arrays_left = 1 + COLUMNS
    maps_left = count

    def on_array(array: list[Any]) -> list[Any]:
        nonlocal arrays_left
        arrays_left -= 1
        if arrays_left < 0:
            raise ValueError("arrays inside of a column")
        return array

    def on_map(headers: dict[str, Any]) -> dict[str, Any]:
        nonlocal maps_left
        maps_left -= 1
        if maps_left < 0:
            raise ValueError("more maps than messages")
        return headers

    return {
        "max_array_len": max(count, COLUMNS),
        "max_map_len": limits.HEADERS_MAX,
        "max_ext_len": 0,
        "list_hook": on_array,
        "object_hook": on_map,
    }


def _unreadable(body: bytes | memoryview, error: Exception) -> BadBatch:
    # Its str, not its repr: that of ExtraData repeats all that was read, however deep it is.
    text = f"{type(error).__name__} {error!s:.200}"
    return BadBatch(f"body of {len(body)} bytes cannot be read: {text}")


def _plain(value: object) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, str]", value))
    raise TypeError(f"{type(value).__name__} {value!r:.40} does not fit")


def _check_beside(utc_deltas_us: Any, ids: Any, headers: Any, count: int) -> None:
    if utc_deltas_us is not None:
        _check_column(utc_deltas_us, count)
        _check_utc_deltas(utc_deltas_us)
    if ids is not None:
        _check_column(ids, count)
        _check_ids(ids, BadBatch)
    if headers is not None:
        _check_column(headers, count)
        _check_headers(headers, BadBatch)


def _check_column(column: object, count: int) -> None:
    if not is_list(column) or len(column) != count:
        raise BadBatch(f"column that is not a list of the {count} elements that the header counts")


def _all_of_type(column: Sequence[Any], types: set[type]) -> TypeGuard[Sequence[Any]]:
    return set(map(type, column)) <= types


def _check_utc_deltas(utc_deltas_us: Sequence[Any]) -> None:
    if not _all_of_type(utc_deltas_us, {int}):
        raise BadBatch("utc column with something that is not a whole number")


def _check_ids(ids: Sequence[Any], error: type[BadBatch | BatchTooLarge]) -> None:
    if not _all_of_type(ids, {str, type(None)}):
        raise BadBatch("message id that is not text")
    longest = max((len(i.encode()) for i in ids if i is not None), default=0)
    if longest > limits.MESSAGE_ID_BYTES_MAX:
        raise error(f"message id of {longest} bytes; the limit is {limits.MESSAGE_ID_BYTES_MAX}")


def _check_headers(headers: Sequence[Any], error: type[BadBatch | BatchTooLarge]) -> None:
    for each in headers:
        if each is None:
            continue
        if not is_map(each):
            raise BadBatch("headers that are not a map")
        if len(each) > limits.HEADERS_MAX:
            raise error(f"{len(each)} headers; the limit is {limits.HEADERS_MAX}")
        size = 0
        for name, value in each.items():
            if type(name) is not str or type(value) is not str:
                raise BadBatch("header whose name or value is not text")
            size += len(name.encode()) + len(value.encode())
        if size > limits.HEADERS_BYTES_MAX:
            raise error(f"headers of {size} bytes; the limit is {limits.HEADERS_BYTES_MAX}")
