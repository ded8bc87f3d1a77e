"""What is known of a task that was accepted elsewhere, or earlier, and goes on here: $task."""

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from busnode.wire.errors import BadTask
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId
from busnode.wire.shapes import is_list, is_map

CARRIED: Final = "$task"
NUMBER_MAX: Final = 2**63 - 1
ERROR_BYTES_MAX: Final = 512
"""Of each attempt's error: the beginning of a message, not a stack trace."""

HISTORY_MAX: Final = 100
"""Attempts that are told of: as many as a schedule can have. After a requeue the oldest go."""

CARRIED_BYTES_MAX: Final = 8 * 1024
"""Half of what all headers of a message may take."""


class Attempt(NamedTuple):
    """One that has failed."""

    attempt: int
    at_us: int
    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class Carried:
    """All that is known of a task which was accepted elsewhere, or earlier, and goes on here."""

    id: str
    enqueued_us: int
    attempts: int = 0
    history: tuple[Attempt, ...] = ()
    due_us: int = 0
    """Not before this utc; 0 when it may be given out at once."""
    dead_us: int | None = None
    """Since when it is a dead letter."""
    fence: int = 0
    """Fences of its queue up to this one may have been given out."""
    origin: BrokerId | None = None
    """The incarnation from whose log it was taken, and its number there: of the two copies the new
    one does not count before it is durable that the old one is carried."""
    number: int = 0


def encode_carried(carried: Carried, bytes_max: int = CARRIED_BYTES_MAX) -> str:
    """The value of the header $task. What does not fit is left out: first the ends of the errors,
    then the oldest attempts; how many there were is always kept."""
    history = list(carried.history)
    for error_bytes in (ERROR_BYTES_MAX, 100, 20):
        history = [each._replace(error=cut(each.error, error_bytes)) for each in history]
        text = _carried_text(carried, history)
        if len(text) <= bytes_max:
            return text
    while history and len(text) > bytes_max:
        del history[: 1 + len(history) // 8]
        text = _carried_text(carried, history)
    return text


def _carried_text(carried: Carried, history: list[Attempt]) -> str:
    known: dict[str, Any] = {"id": carried.id, "enqueued_us": carried.enqueued_us}
    if carried.attempts:
        known["attempts"] = carried.attempts
    if history:
        known["history"] = history
    if carried.due_us:
        known["due_us"] = carried.due_us
    if carried.dead_us is not None:
        known["dead_us"] = carried.dead_us
    if carried.fence:
        known["fence"] = carried.fence
    if carried.origin is not None:
        known["from"] = [carried.origin.hex(), carried.number]
    return json.dumps(known, separators=(",", ":"))


def decode_carried(text: str) -> Carried:
    """What a header $task says; BadTask for anything that `encode_carried` would not write."""
    try:
        known = json.loads(text)
        if not is_map(known):
            raise TypeError("not a map")
        names = {"id", "enqueued_us", "attempts", "history", "due_us", "dead_us", "fence", "from"}
        if not names.issuperset(known):
            raise ValueError("unknown names")
        dead_us = known.get("dead_us")
        origin, number = _taken_from(known.get("from"))
        return Carried(
            id=_text(known["id"], 128),
            enqueued_us=_amount(known["enqueued_us"]),
            attempts=_amount(known.get("attempts", 0)),
            history=tuple(map(_attempt, _listed(known.get("history", []), HISTORY_MAX))),
            due_us=_amount(known.get("due_us", 0)),
            dead_us=None if dead_us is None else _amount(dead_us),
            fence=_amount(known.get("fence", 0)),
            origin=origin,
            number=number,
        )
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise BadTask(f"header {CARRIED} cannot be read ({error!s:.100})") from error


def cut(text: str, bytes_max: int) -> str:
    """The beginning of a text, whole characters of it."""
    if len(text) * 4 <= bytes_max:
        return text
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")


def _taken_from(value: Any) -> tuple[BrokerId | None, int]:
    if value is None:
        return None, 0
    origin, number = _listed(value, 2)
    broker_id = BrokerId(bytes.fromhex(_text(origin, 2 * BROKER_ID_BYTES)))
    if len(broker_id) != BROKER_ID_BYTES:
        raise ValueError("brokerId of the wrong length")
    return broker_id, _amount(number)


def _attempt(value: Any) -> Attempt:
    attempt, at_us, worker, error = _listed(value, 4)
    return Attempt(
        _amount(attempt), _amount(at_us), _text(worker, 128), _text(error, ERROR_BYTES_MAX)
    )


def _listed(value: Any, length_max: int) -> list[Any]:
    if not is_list(value) or len(value) > length_max:
        raise TypeError(f"expected a list of at most {length_max}")
    return value


def _amount(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise TypeError("expected a number, 0 or more")
    return value


def _text(value: Any, bytes_max: int) -> str:
    if type(value) is not str or len(value.encode("utf-8", "replace")) > bytes_max:
        raise TypeError(f"expected a text of at most {bytes_max} bytes")
    return value
