"""The kinds of field that a control message can have: each a type for the reader and a check.

A check takes a value from the other side and the field's name; it returns the value or raises
BadControl. Nothing else of what msgpack can carry gets through.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from busnode.wire import limits
from busnode.wire.errors import BadControl
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId
from busnode.wire.shapes import is_map
from busnode.wire.topics import TOPIC_BYTES_MAX

T = TypeVar("T")
Check = Callable[[Any, str], Any]

U64_MAX: Final = 2**64 - 1


def _bad(name: str, expected: str, value: object) -> BadControl:
    return BadControl(f"field {name}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """What an error repeats of a value. Never the repr of a container: the other side may have
    nested it deeper than Python recurses, or made it as large as its frame."""
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        return f"{kind} {value[:40]!r:.60}"
    if isinstance(value, int | float | None):
        return f"{kind} {value!r:.60}"
    return kind


def _amount(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise _bad(name, "a number from 0 to 2^64-1", value)
    return value


def _seconds(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise _bad(name, "seconds, 0 or more", value)
    return float(value)


def _yes(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise _bad(name, "true or false", value)
    return value


def _text(bytes_max: int) -> Check:
    def check(value: Any, name: str) -> str:
        if type(value) is not str:
            raise _bad(name, "text", value)
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise _bad(name, "text without lone surrogates", ascii(value)) from None
        if size > bytes_max:
            raise BadControl(f"field {name}: text of {size} bytes; the limit is {bytes_max}")
        return value

    return check


def _secret(value: Any, name: str) -> str:
    """As a text, but an error never repeats any of it."""
    if type(value) is not str or len(value.encode(errors="replace")) > limits.SECRET_BYTES_MAX:
        raise BadControl(f"field {name}: expected text of at most {limits.SECRET_BYTES_MAX} bytes")
    return value


def _broker(value: Any, name: str) -> BrokerId:
    if type(value) is not bytes or len(value) != BROKER_ID_BYTES:
        raise _bad(name, f"a brokerId of {BROKER_ID_BYTES} bytes", value)
    return BrokerId(value)


def _payload(value: Any, name: str) -> bytes:
    if type(value) is not bytes:
        raise _bad(name, "bytes", value)
    return value


def _start(value: Any, name: str) -> str | int:
    if value in ("latest", "earliest"):
        return str(value)
    if type(value) is int:
        return _amount(value, name)
    raise _bad(name, '"latest", "earliest" or a utc in µs', value)


def _list(of: Check) -> Check:
    def check(value: Any, name: str) -> list[Any]:
        if type(value) not in (list, tuple) or len(value) > limits.CONTROL_ELEMENTS_MAX:
            raise _bad(name, f"a list of at most {limits.CONTROL_ELEMENTS_MAX}", value)
        return [of(element, name) for element in value]

    return check


def _row(*of: Check) -> Check:
    def check(value: Any, name: str) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or len(value) != len(of):
            raise _bad(name, f"a row of {len(of)}", value)
        return tuple(each(element, name) for each, element in zip(of, value, strict=True))

    return check


def _numbers(value: Any, name: str) -> list[int]:
    """As a list of amounts; a thousand are looked at in a few C calls."""
    if type(value) not in (list, tuple) or len(value) > limits.CONTROL_ELEMENTS_MAX:
        raise _bad(name, f"a list of at most {limits.CONTROL_ELEMENTS_MAX}", value)
    if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > U64_MAX):
        raise _bad(name, "numbers from 0 to 2^64-1", value)
    return list(value)


def _payloads(value: Any, name: str) -> list[bytes]:
    if type(value) not in (list, tuple) or len(value) > limits.CONTROL_ELEMENTS_MAX:
        raise _bad(name, f"a list of at most {limits.CONTROL_ELEMENTS_MAX}", value)
    if value and set(map(type, value)) != {bytes}:
        raise _bad(name, "bytes", value)
    return list(value)


def _map(key: Check, of: Check, length_max: int) -> Check:
    def check(value: Any, name: str) -> dict[Any, Any]:
        if not is_map(value):
            raise _bad(name, "a map", value)
        if len(value) > length_max:
            raise BadControl(f"field {name}: map of {len(value)}; the limit is {length_max}")
        return {key(k, name): of(v, name) for k, v in value.items()}

    return check


_topic_text = _text(TOPIC_BYTES_MAX)

# Bounded by the size of their frame rather than by a count: a map is not allocated ahead.
_UNCOUNTED: Final = limits.SUBSCRIBE_BYTES_MAX

Amount = Annotated[int, _amount, "u64"]
Seconds = Annotated[float, _seconds, "seconds"]
Yes = Annotated[bool, _yes, "bool"]
Name = Annotated[str, _text(limits.NAME_BYTES_MAX), "name"]
Text = Annotated[str, _text(limits.TEXT_BYTES_MAX), "text"]
Secret = Annotated[str, _secret, "secret"]
TopicText = Annotated[str, _topic_text, "topic or pattern"]
"""Its grammar is checked where it is used, so that a bad one is refused and the session goes on."""
Broker = Annotated[BrokerId, _broker, "brokerId"]
Payload = Annotated[bytes, _payload, "bytes"]
Start = Annotated[str | int, _start, '"latest", "earliest", utc µs']
Addresses = Annotated[list[str], _list(_text(limits.NAME_BYTES_MAX)), "[host:port]"]
Headers = Annotated[
    dict[str, str],
    _map(_text(limits.HEADERS_BYTES_MAX), _text(limits.HEADERS_BYTES_MAX), limits.HEADERS_MAX),
    "{text: text}",
]
PositionMap = Annotated[
    dict[BrokerId, dict[str, int]],
    _map(_broker, _map(_topic_text, _amount, _UNCOUNTED), _UNCOUNTED),
    "{brokerId: {topic: msgNo}}",
]
Receipts = Annotated[
    list[tuple[int, int, int]], _list(_row(_amount, _amount, _amount)), "[[u64, u64, u64]]"
]
Extents = Annotated[
    list[tuple[BrokerId, str, int, int]],
    _list(_row(_broker, _topic_text, _amount, _amount)),
    "[[brokerId, topic, first msgNo, last msgNo]]",
]
Members = Annotated[
    list[tuple[BrokerId, str, list[str]]],
    _list(_row(_broker, _text(limits.NAME_BYTES_MAX), _list(_text(limits.NAME_BYTES_MAX)))),
    "[[brokerId, name, [host:port]]]",
]
Holdings = Annotated[
    list[tuple[BrokerId, int, int, int, bool]],
    _list(_row(_broker, _amount, _amount, _amount, _yes)),
    "[[brokerId, u64, u64, u64, bool]]",
]
Numbers = Annotated[list[int], _numbers, "[u64]"]
Names = Annotated[list[str], _list(_text(limits.NAME_BYTES_MAX)), "[name]"]
Payloads = Annotated[list[bytes], _payloads, "[bytes]"]
HeadersOfEach = Annotated[
    list[dict[str, str]],
    _list(
        _map(_text(limits.HEADERS_BYTES_MAX), _text(limits.HEADERS_BYTES_MAX), limits.HEADERS_MAX)
    ),
    "[{text: text}]",
]
Refusals = Annotated[
    list[tuple[int, str]], _list(_row(_amount, _text(limits.NAME_BYTES_MAX))), "[[u64, name]]"
]
NumberRanges = Annotated[list[tuple[int, int]], _list(_row(_amount, _amount)), "[[u64, u64]]"]
QueueExtents = Annotated[
    list[tuple[str, int]], _list(_row(_text(limits.NAME_BYTES_MAX), _amount)), "[[name, u64]]"
]
Safe = Annotated[list[tuple[str, int]], _list(_row(_topic_text, _amount)), "[[topic, msgNo]]"]


class Absent:
    """Marks a field that may be nil."""


Maybe = Annotated[T | None, Absent]


def kind(annotation: Any) -> tuple[Check, str]:
    """The check of a field and what docs/protocol.md calls it."""
    base, *extras = get_args(annotation)
    if extras and extras[0] is Absent:
        inner, words = kind(get_args(base)[0])

        def check(value: Any, name: str) -> Any:
            return None if value is None else inner(value, name)

        return check, f"{words} or nil"
    assert get_origin(annotation) is Annotated
    return extras[0], extras[1]


def checker(annotation: Any) -> Check:
    return kind(annotation)[0]
