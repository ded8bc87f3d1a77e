"""The frames of a request, and of a task alone, as they nearly always are, recognised with a few
comparisons.

A request and its reply are each checked four times on their way, once by everybody who sends or
takes them in, and a round trip is little else than such steps. Checking field by field through
`fields` takes 1.7 µs for a REQUEST when nothing else runs, and three times that between two system
calls, where caches are cold; this takes 0.4. It must say yes only to what those checks would let by
unchanged. What it does not recognise goes their way, which also finds the words for an error.
"""

from typing import Any, Final

from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BROKER_ID_BYTES
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.wire.shapes import is_list
from busnode.wire.topics import TOPIC_BYTES_MAX

TIMEOUT_S_PLAIN: Final = 1e9
"""Longer than anybody waits; NaN and infinity are not below it."""


def is_plain_request(values: list[Any]) -> bool:
    """Whether these are the fields of a `Request` without headers and with a topic in ASCII."""
    if len(values) != 7:
        return False
    request, provider, topic, headers, payload, many, timeout_s = values
    return (
        type(request) is int
        and 0 <= request <= U64_MAX
        and type(provider) is int
        and 0 <= provider <= U64_MAX
        and type(topic) is str
        and len(topic) <= TOPIC_BYTES_MAX
        and topic.isascii()
        and headers == {}
        and type(payload) is bytes
        and type(many) is bool
        and type(timeout_s) is float
        and 0.0 <= timeout_s < TIMEOUT_S_PLAIN
    )


def is_plain_reply(values: list[Any]) -> bool:
    """Whether these are the fields of a `Reply` that is no error and has no headers."""
    if len(values) != 5:
        return False
    request, code, headers, payload, last = values
    return (
        type(request) is int
        and 0 <= request <= U64_MAX
        and code is None
        and headers == {}
        and type(payload) is bytes
        and type(last) is bool
    )


def is_plain_tasks(values: list[Any]) -> bool:
    """Whether these are the fields of a `Tasks` with one task without headers."""
    if len(values) != 10:
        return False
    poll, owner, queue, numbers, ids, fences, attempts, enqueued_us, headers, payloads = values
    return (
        headers is None
        and type(poll) is int
        and 0 <= poll <= U64_MAX
        and type(owner) is bytes
        and len(owner) == BROKER_ID_BYTES
        and _is_plain_name(queue)
        and _is_one_number(numbers)
        and is_list(ids)
        and len(ids) == 1
        and _is_plain_name(ids[0])
        and _is_one_number(fences)
        and _is_one_number(attempts)
        and _is_one_number(enqueued_us)
        and is_list(payloads)
        and len(payloads) == 1
        and type(payloads[0]) is bytes
    )


def is_plain_task_done(values: list[Any]) -> bool:
    """Whether these are the fields of a `TaskDone` of one task that did not fail."""
    if len(values) != 11:
        return False
    done, owner, queue, verb, numbers, fences, error, lease_s, worker, poll, want = values
    return (
        error == ""
        and type(error) is str
        and type(done) is int
        and 0 <= done <= U64_MAX
        and type(owner) is bytes
        and len(owner) == BROKER_ID_BYTES
        and _is_plain_name(queue)
        and _is_plain_name(verb)
        and _is_one_number(numbers)
        and _is_one_number(fences)
        and type(lease_s) is float
        and 0.0 <= lease_s < TIMEOUT_S_PLAIN
        and type(worker) is int
        and 0 <= worker <= U64_MAX
        and type(poll) is int
        and 0 <= poll <= U64_MAX
        and type(want) is int
        and 0 <= want <= U64_MAX
    )


def is_plain_task_settled(values: list[Any]) -> bool:
    """Whether these are the fields of a `TaskSettled` that refuses nothing."""
    if len(values) != 3:
        return False
    done, level, refused = values
    return (
        type(done) is int
        and 0 <= done <= U64_MAX
        and _is_plain_name(level)
        and is_list(refused)
        and not refused
    )


def _is_plain_name(value: Any) -> bool:
    return type(value) is str and len(value) <= NAME_BYTES_MAX and value.isascii()


def _is_one_number(value: Any) -> bool:
    return is_list(value) and len(value) == 1 and type(value[0]) is int and 0 <= value[0] <= U64_MAX
