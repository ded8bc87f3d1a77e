"""A node's status over HTTP: for whoever watches many nodes and wants to be nobody's client."""

import json
from collections.abc import Mapping
from typing import Any, Final

import trio

from busnode.wire.errors import Unavailable
from busnode.world.network import Address, Network, Stream

ASK: Final = b"GET /status HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A status has at most a thousand rows of each kind."""
READ_BYTES: Final = 64 * 1024


async def fetch_status(network: Network, at: Address, timeout_s: float) -> Mapping[str, Any]:
    """Raises Unavailable when no status comes in time."""
    try:
        with trio.fail_after(timeout_s):
            stream = await network.dial(at)
            try:
                await _send(stream, ASK % str(at).encode())
                page = await _receive(stream)
            finally:
                stream.close()
        head, _, body = page.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Unavailable(f"{at} answers {head[:100]!r}")
        found: Mapping[str, Any] = json.loads(body)
    except trio.TooSlowError:
        raise Unavailable(f"no status from {at} within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"no status from {at}: {error}") from error
    return found


async def _send(stream: Stream, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.send(view) :]
        if view:
            await stream.wait_writable()


async def _receive(stream: Stream) -> bytes:
    """All until the other side closes."""
    page = bytearray()
    piece = memoryview(bytearray(READ_BYTES))
    while len(page) <= PAGE_BYTES_MAX:
        count = stream.receive_into(piece)
        if count is None:
            await stream.wait_readable()
        elif not count:
            return bytes(page)
        else:
            page += piece[:count]
    raise ValueError(f"its page is larger than {PAGE_BYTES_MAX} bytes")
