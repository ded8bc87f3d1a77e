"""A reply, as whoever asked gets it."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from busnode.client.messages import NO_HEADERS
from busnode.client.refusal import refusal
from busnode.wire import control
from busnode.wire.errors import BusnodeError

END: Final = "END"
"""The code of the end of many replies that has no reply of its own."""

GRACE_S: Final = 0.25
"""The node ends a request in time and says why; only if it does not, we do."""


class Reply(NamedTuple):
    """An answer to a request."""

    payload: bytes
    headers: Mapping[str, str] = NO_HEADERS
    error: BusnodeError | None = None
    """Of one among many who answered: it failed, and the others go on."""


def reply_of(message: control.Reply) -> Reply:
    headers = message.headers or NO_HEADERS
    if message.code is None:
        return Reply(message.payload, headers)
    text = message.payload.decode(errors="replace")
    return Reply(b"", headers, refusal(message.code, text))
