"""What services write to each other, and how it stands in tasks and requests: msgpack maps.

to a service     {"pattern": text, "data": any, "cid": text, "from": service or nil,
                  "reply_to": topic or nil}          in a task of its queue, or a plain request
is it up?        {"up": true}                        a plain request, answered by nothing
a reply          {"reply": cid, "data": any, "error": text or nil, "pending": bool,
                  "from": service}                   a request to `reply_to`, answered by whether
                                                     somebody waits; or a task of the sender
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from busnode.wire.errors import BadTask
from busnode.wire.ids import Topic
from busnode.wire.shapes import is_map
from busnode.wire.task_options import check_queue
from busnode.wire.topics import check_topic

PLAIN: Final = "get"
"""Patterns that begin so only ask: they are answered now or not at all, and never kept."""

QUEUE: Final = "service.{}"
TOPIC: Final = "/service/{}"
REPLIES: Final = "/service/replies/{:016x}"


class ServiceCall(NamedTuple):
    """What a service is asked to do."""

    pattern: str
    data: Any
    cid: str
    """Correlates the reply with what was sent."""
    sender: str | None
    """The service that sent it, if one did."""
    attempt: int
    """1 for the first; a pattern that begins with "get" has no other."""


class ServiceReply(NamedTuple):
    """What a service has answered, at once or later."""

    cid: str
    data: Any
    sender: str
    """The service that answers."""
    error: str | None = None
    """Of a late reply: why it will never be done. `send` raises RequestFailed for that."""

    @property
    def pending(self) -> bool:
        return False


class Pending(NamedTuple):
    """It is kept, and will be done. The reply comes later, with the same `cid`."""

    cid: str

    @property
    def pending(self) -> bool:
        return True


ServiceHandler = Callable[[ServiceCall], Awaitable[Any] | Any]
OnReply = Callable[[ServiceReply], Awaitable[object] | object]


def service_queue(name: str) -> str:
    """BadTask for what cannot be the name of a service."""
    return check_queue(QUEUE.format(name)) if name else check_queue("")


def service_topic(name: str) -> Topic:
    service_queue(name)
    return check_topic(TOPIC.format(name))


def write(letter: dict[str, Any]) -> bytes:
    """BadTask for what msgpack cannot carry."""
    try:
        written: bytes = msgpack.packb(letter)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadTask(
            f"data that cannot be written: {error}; expected what JSON has, and bytes"
        ) from error
    return written


def read(written: bytes) -> Mapping[str, Any]:
    """BadTask for what is no letter."""
    try:
        letter: Any = msgpack.unpackb(written, strict_map_key=False)
    except (TypeError, ValueError) as error:
        raise BadTask(f"a letter that cannot be read: {error}") from error
    if not is_map(letter):
        raise BadTask("a letter that is no map")
    return letter


def call_of(letter: Mapping[str, Any], attempt: int) -> ServiceCall:
    """BadTask where something is missing."""
    pattern, cid, sender = letter.get("pattern"), letter.get("cid"), letter.get("from")
    if not isinstance(pattern, str) or not isinstance(cid, str):
        raise BadTask("a letter without a pattern or cid")
    return ServiceCall(
        pattern, letter.get("data"), cid, sender if isinstance(sender, str) else None, attempt
    )


def reply_letter(
    cid: str, sender: str, data: Any = None, error: str | None = None, *, pending: bool = False
) -> bytes:
    return write({"reply": cid, "data": data, "error": error, "pending": pending, "from": sender})


def reply_of(letter: Mapping[str, Any]) -> ServiceReply:
    cid, sender, error = letter.get("reply"), letter.get("from"), letter.get("error")
    if not isinstance(cid, str) or not isinstance(sender, str):
        raise BadTask("a reply without a cid or sender")
    return ServiceReply(cid, letter.get("data"), sender, None if error is None else str(error))
