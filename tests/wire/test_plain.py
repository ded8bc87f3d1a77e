"""Plain frames: what is known at a glance is what the checks of each field let by."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from busnode.wire.control import (
    Control,
    Reply,
    Request,
    TaskDone,
    Tasks,
    TaskSettled,
    decode_control,
    encode_control,
)
from busnode.wire.errors import BadControl
from busnode.wire.ids import BrokerId
from busnode.wire.plain import (
    is_plain_reply,
    is_plain_request,
    is_plain_task_done,
    is_plain_task_settled,
    is_plain_tasks,
)

from .samples import array_of, control_values, kinds_of
from .test_control import VALUES, fits

REQUEST = Request(2**64 - 1, 0, "/plant/north/temp", {}, b"20.5", False, 5.0)
REPLY = Reply(7, None, {}, b"", True)
OWNER = BrokerId(bytes(range(16)))
TASKS = Tasks(1, OWNER, "emails", [7], ["00ff-7"], [2**64 - 1], [1], [0], None, [b"to: ada"])
TASK_DONE = TaskDone(9, OWNER, "emails", "complete", [7], [8], "", 0.0, 5, 1, 1)
TASK_SETTLED = TaskSettled(9, "mirrored", [])

PLAIN: dict[type[Control], Callable[[list[Any]], bool]] = {
    Request: is_plain_request,
    Reply: is_plain_reply,
    Tasks: is_plain_tasks,
    TaskDone: is_plain_task_done,
    TaskSettled: is_plain_task_settled,
}
MESSAGES = [REQUEST, REPLY, TASKS, TASK_DONE, TASK_SETTLED]

NO_KIND_TAKES: dict[str, Any] = {
    "half a surrogate pair": "/\ud800",
    "a map in a list": [{}],
    "the smallest number below zero": -5e-324,
    "minus infinity": -math.inf,
}


def is_plain(message: Control, values: list[Any]) -> bool:
    return PLAIN[type(message)](values)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.TYPE.name)
def test_a_plain_message_is_known_at_a_glance_and_comes_back_as_it_was(message: Control) -> None:
    assert is_plain(message, array_of(message))
    assert decode_control(memoryview(encode_control(message))) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.TYPE.name)
def test_no_value_that_its_field_refuses_is_plain(message: Control) -> None:
    for at, words in enumerate(kinds_of(type(message)).values()):
        for label, value in (VALUES | NO_KIND_TAKES).items():
            values = array_of(message)
            values[at] = value
            if label in NO_KIND_TAKES or not fits(words, label):
                assert not is_plain(message, values), (words, label)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.TYPE.name)
def test_a_value_in_an_otherwise_plain_message_is_refused_or_taken_as_its_kind_says(
    message: Control,
) -> None:
    for at, (name, words) in enumerate(kinds_of(type(message)).items()):
        for label, value in VALUES.items():
            values = array_of(message)
            values[at] = value
            frame = control_values(message.TYPE, values)
            if fits(words, label):
                expected = float(value) if words == "seconds" else value
                if words.startswith("[["):
                    expected = [tuple(row) for row in value]
                assert array_of(decode_control(memoryview(frame)))[at] == expected, (words, label)
            elif label != "too long a list":  # no message may have one
                with pytest.raises(BadControl, match=f"field {name}: "):
                    decode_control(memoryview(frame))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.TYPE.name)
def test_an_array_of_another_length_is_not_plain(message: Control) -> None:
    values = array_of(message)
    assert not is_plain(message, values[:-1])
    assert not is_plain(message, [*values, None])


@pytest.mark.parametrize("message", [TASKS, TASK_DONE], ids=lambda m: m.TYPE.name)
def test_no_row_that_its_field_refuses_is_plain(message: Control) -> None:
    for at, (name, words) in enumerate(kinds_of(type(message)).items()):
        if not words.startswith("["):
            continue
        for label, value in (VALUES | NO_KIND_TAKES).items():
            values = array_of(message)
            values[at] = [value]
            if is_plain(message, values):
                decoded = decode_control(memoryview(control_values(message.TYPE, values)))
                assert getattr(decoded, name) == [value], (words, label)
