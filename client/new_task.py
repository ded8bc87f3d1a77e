"""What may be enqueued: options of a task, checked and written as headers before anything is sent.

All that is wrong is BadTask, and names what was given and what was expected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from busnode.client.messages import EPOCH
from busnode.client.payloads import Payload
from busnode.wire.errors import BadTask
from busnode.wire.limits import HEADERS_BYTES_MAX, HEADERS_MAX, PAYLOAD_BYTES_MAX
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import WINDOW_MS_DEFAULT, TaskOptions, write_options

TASK_HEADERS_BYTES_MAX: Final = HEADERS_BYTES_MAX // 2
"""All headers of a task: the other half is for what nodes write beside them when they carry it."""

TASK_HEADERS_MAX: Final = HEADERS_MAX - 1
"""Likewise."""

Retry = str | Sequence[float] | Schedule
"""A schedule: as text, as waits in seconds before attempt 1, 2, 3 …, or parsed."""

Seconds = float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What whoever enqueues may ask for, beside the payload."""

    headers: Mapping[str, str] | None = None
    delay: Seconds | None = None
    due: datetime | None = None
    priority: int = 0
    key: str | None = None
    window: Seconds | None = None
    retry: Retry | None = None

    def as_headers(self) -> dict[str, str] | None:
        """None where nothing is asked for. Raises BadTask."""
        written = write_options(
            TaskOptions(
                delay_ms=0 if self.delay is None else _milliseconds("delay", self.delay),
                due_us=None if self.due is None else _utc_us(self.due),
                priority=_whole("priority", self.priority),
                key=None if self.key is None else _text("key", self.key),
                window_ms=(
                    WINDOW_MS_DEFAULT
                    if self.window is None
                    else _milliseconds("window", self.window)
                ),
                retry=None if self.retry is None else parse_retry(self.retry),
            )
        )
        written |= _own(self.headers or {})
        _check_size(written)
        return written or None


def parse_retry(retry: Retry) -> Schedule:
    """BadTask for what is no schedule."""
    if isinstance(retry, Schedule):
        return retry
    if isinstance(retry, str):
        return Schedule.parse(retry)
    waits: list[str] = []
    for wait in retry:
        if not math.isfinite(wait) or wait < 0:
            raise BadTask(f"retry waits {wait!r:.40} s; expected 0 or more")
        waits.append(f"{wait:.3f}".rstrip("0").rstrip("."))
    return Schedule.parse(",".join(waits))


def check_payload(payload: Payload) -> None:
    """BadTask for one that no task can have."""
    kind: type = type(payload)
    if kind not in (bytes, bytearray, memoryview):
        raise BadTask(f"payload of type {kind.__name__}; expected bytes: encode it")
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size > PAYLOAD_BYTES_MAX:
        raise BadTask(f"payload of {size} bytes; the limit is {PAYLOAD_BYTES_MAX}")


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        _text("the name of a header", name)
        _text(f"header {name[:40]!a}", value)
        if name.startswith("$"):
            raise BadTask(
                f"header {name[:40]!a}: names that begin with $ are the queue's own; rename it"
            )
    return dict(headers)


def _check_size(headers: Mapping[str, str]) -> None:
    if len(headers) > TASK_HEADERS_MAX:
        raise BadTask(f"{len(headers)} headers, options included; the limit is {TASK_HEADERS_MAX}")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > TASK_HEADERS_BYTES_MAX:
        raise BadTask(f"headers of {size} bytes; the limit is {TASK_HEADERS_BYTES_MAX}")


def _milliseconds(name: str, value: Seconds) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0:
        raise BadTask(f"{name} of {value!r:.40}; expected seconds, 0 or more")
    return math.ceil(seconds * 1000)


def _utc_us(due: datetime) -> int:
    if due.tzinfo is None:
        raise BadTask(f"due {due} has no time zone: give it one, such as UTC")
    return (due - EPOCH) // timedelta(microseconds=1)


def _whole(name: str, value: int) -> int:
    if type(value) is not int:
        raise BadTask(f"{name} {value!r:.40}; expected a whole number")
    return value


def _text(name: str, value: str) -> str:
    if type(value) is not str:
        kind: type = type(value)
        raise BadTask(f"{name} is of type {kind.__name__}; expected text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadTask(f"{name} has half of a surrogate pair, which UTF-8 has not") from None
    return value
