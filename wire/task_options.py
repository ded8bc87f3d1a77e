"""What a task's headers say of it: those whose names begin with $ are the queue's, the others the
user's.

    $delay_ms    not before so long after it was enqueued
    $due_us      not before this utc
    $priority    -9 to 9, higher first; 0 when it is not there
    $key         a task with a key that was enqueued within the window before is dropped
    $window_ms   of the key; five minutes when it is not there
    $retry       its own retry schedule
    $task        what is known of a task that was carried: written by nodes alone
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from busnode.wire.carried_task import CARRIED, NUMBER_MAX, Carried, decode_carried, encode_carried
from busnode.wire.errors import BadTask, BadTopic
from busnode.wire.retry_schedule import Schedule
from busnode.wire.topics import check_topic

QUEUE_BYTES_MAX: Final = 100
"""A queue's name stands in topics behind up to 20 other bytes, and in file names of tools."""

KEY_BYTES_MAX: Final = 128
"""A key is a UUID, an order's number and the like; a million of them are remembered."""

DELAY_MS_MAX: Final = 366 * 24 * 3600 * 1000
"""A year: who needs more gives a due time."""

WINDOW_MS_DEFAULT: Final = 5 * 60 * 1000
WINDOW_MS_MAX: Final = 24 * 3600 * 1000
"""Beyond a day a table of the user's own is the better place for keys."""

PRIORITY_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What the headers of one task ask for. A task whose headers ask for nothing has none."""

    delay_ms: int = 0
    due_us: int | None = None
    priority: int = 0
    key: str | None = None
    window_ms: int = WINDOW_MS_DEFAULT
    retry: Schedule | None = None
    carried: Carried | None = None
    fault: str | None = None
    """What is wrong with the headers: such a task is a dead letter from the beginning."""


def check_queue(name: str) -> str:
    """Raise BadTask unless this can be the name of a queue; return it."""
    fault = None
    if not name or len(name.encode("utf-8", "replace")) > QUEUE_BYTES_MAX:
        fault = f"takes 1 to {QUEUE_BYTES_MAX} bytes"
    elif "/" in name or name.startswith("$"):
        fault = "has no / and does not begin with $"
    else:
        try:
            check_topic(f"/{name}")
        except BadTopic as error:
            fault = f"must be possible as a level of a topic ({error.text})"
    if fault is not None:
        raise BadTask(f"{name[:40]!a} cannot be a queue: its name {fault}")
    return name


def read_options(headers: Mapping[str, str] | None, *, by_node: bool = False) -> TaskOptions | None:
    """What the headers of one task ask for; BadTask when they ask for what cannot be. What a node
    has written may be carried."""
    if not headers:
        return None
    asked = {name: value for name, value in headers.items() if name.startswith("$")}
    if not asked:
        return None
    delay_ms, due_us, priority, key, window_ms = 0, None, 0, None, WINDOW_MS_DEFAULT
    retry, carried = None, None
    for name, value in asked.items():
        match name:
            case "$delay_ms":
                delay_ms = _whole(name, value, 0, DELAY_MS_MAX)
            case "$due_us":
                due_us = _whole(name, value, 0, NUMBER_MAX)
            case "$priority":
                priority = _whole(name, value, -PRIORITY_MAX, PRIORITY_MAX)
            case "$key":
                if not 0 < len(value.encode("utf-8", "replace")) <= KEY_BYTES_MAX:
                    raise BadTask(f"header $key takes 1 to {KEY_BYTES_MAX} bytes")
                key = value
            case "$window_ms":
                window_ms = _whole(name, value, 1, WINDOW_MS_MAX)
            case "$retry":
                retry = Schedule.parse(value)
            case "$task" if by_node:
                carried = decode_carried(value)
            case _:
                raise BadTask(f"header {name[:40]!a} is unknown: names with $ are the queue's own")
    return TaskOptions(delay_ms, due_us, priority, key, window_ms, retry, carried)


def read_batch(
    headers: Sequence[Mapping[str, str] | None] | None, *, by_node: bool = False
) -> list[TaskOptions | None] | None:
    """The options of each task of a batch, for a queue: headers that cannot be read make a dead
    letter and no error, because the task was accepted. None when no task has any."""
    if headers is None:
        return None
    known: dict[tuple[tuple[str, str], ...], TaskOptions | None] = {(): None}
    options: list[TaskOptions | None] = []
    for each in headers:
        asked = tuple([pair for pair in each.items() if pair[0][:1] == "$"]) if each else ()
        if asked not in known:
            try:
                known[asked] = read_options(dict(asked), by_node=by_node)
            except BadTask as error:
                known[asked] = _faulty(dict(asked), error.text, by_node=by_node)
        options.append(known[asked])
    return options if any(options) else None


def _faulty(asked: Mapping[str, str], fault: str, *, by_node: bool) -> TaskOptions:
    """What was carried is a dead letter by now, and keeps its name and its past."""
    try:
        carried = decode_carried(asked[CARRIED]) if by_node and CARRIED in asked else None
    except BadTask:
        carried = None
    return TaskOptions(carried=carried, fault=fault)


def write_options(options: TaskOptions) -> dict[str, str]:
    """The headers that say so; BadTask for what cannot be."""
    headers: dict[str, str] = {}
    if options.delay_ms:
        headers["$delay_ms"] = str(options.delay_ms)
    if options.due_us is not None:
        headers["$due_us"] = str(options.due_us)
    if options.priority:
        headers["$priority"] = str(options.priority)
    if options.key is not None:
        headers["$key"] = options.key
        if options.window_ms != WINDOW_MS_DEFAULT:
            headers["$window_ms"] = str(options.window_ms)
    if options.retry is not None:
        headers["$retry"] = options.retry.text
    if options.carried is not None:
        headers[CARRIED] = encode_carried(options.carried)
    read_options(headers, by_node=True)
    return headers


def _whole(name: str, value: str, low: int, high: int) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise BadTask(f"header {name} is {value[:40]!a}: expected a whole number")
    number = int(value)
    if not low <= number <= high:
        raise BadTask(f"header {name} is {number}: expected {low} to {high}")
    return number
