"""A small HTTP server for a handful of pages: GET and HEAD, nothing else.

It is a machine's and an operator's window, not a web framework. Everything that a stranger could
stretch has a limit: the request, the time, the number of connections.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import trio

from busnode.node.door import Door
from busnode.node.logs import fields
from busnode.wire.errors import BusnodeError, Forbidden
from busnode.world.network import Address, Listener, Stream
from busnode.world.real_import import import_in_thread

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 100
"""A scraper, a load balancer and some people; more is an accident or an attack."""

JSON: Final = "application/json"
ASK: Final = ("WWW-Authenticate", 'Bearer realm="busnode", Basic realm="busnode"')
CLOSE: Final = ("Connection", "close")


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode() + b"\n")


def error_answer(status: int, code: str, text: str, *headers: tuple[str, str]) -> Answer:
    answer = json_answer({"error": code, "text": text}, status)
    return answer._replace(headers=headers)


def say_no(error: BusnodeError) -> bytes:
    """For somebody who is refused before a request was read."""
    body = error_answer(503, error.code, error.text).body
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {JSON}\r\nRetry-After: 1\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Visit:
    """A connection that can be told to go."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.answering = False


Page = Callable[[], Awaitable[Answer]]
Answering = Callable[[bytes, bytes, str], Awaitable[Answer]]
"""From a method, a target and what the header Authorization says."""

Allowing = Callable[[str, str, Address], Awaitable[BusnodeError | None]]
"""From a path, an authorization and an address to why the page may not be read."""


async def _everybody(path: str, authorization: str, address: Address) -> None:
    del path, authorization, address


class HttpServer:
    """Serves pages by their paths on a listener, which stays its owner's."""

    def __init__(
        self,
        listener: Listener,
        pages: Mapping[str, Page],
        door: Door,
        allow: Allowing = _everybody,
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._door = door
        self._allow = allow
        self._visits: dict[Visit, None] = {}
        self.requests = 0

    async def run(self) -> None:
        """Until it is cancelled or the listener is closed."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self._listener.accept()
                except OSError:
                    return
                if not self._door.lets_in(stream):
                    continue
                if len(self._visits) >= CONNECTIONS_MAX:
                    self._push_out()
                visit = Visit()
                self._visits[visit] = None
                nursery.start_soon(self._serve, stream, visit)

    def _push_out(self) -> None:
        """Let the oldest go that waits for a request, or else the oldest: a hundred who send a byte
        now and then must not keep a health check from being answered."""
        waiting = (visit for visit in self._visits if not visit.answering)
        oldest = next(waiting, None) or next(iter(self._visits))
        del self._visits[oldest]
        self._door.pushed_out += 1
        oldest.scope.cancel()

    async def _serve(self, stream: Stream, visit: "Visit") -> None:
        async def answer(method: bytes, target: bytes, authorization: str) -> Answer:
            visit.answering = True
            try:
                return await self._answer(stream.peer, method, target, authorization)
            finally:
                visit.answering = False

        try:
            # Not before somebody comes: a node is up without it, and sooner.
            connection = await import_in_thread("busnode.node.http_connection")
            with visit.scope:
                await connection.serve(stream, answer)
        except OSError as error:
            logger.debug("HTTP connection broke", extra=fields(peer=stream.peer, error=error))
        except Exception:
            # A fault in a page must not take the node along.
            logger.exception("HTTP connection failed", extra=fields(peer=stream.peer))
        finally:
            self._visits.pop(visit, None)
            self._door.left(stream.peer.host)
            stream.close()

    async def _answer(
        self, address: Address, method: bytes, target: bytes, authorization: str
    ) -> Answer:
        self.requests += 1
        path = target.partition(b"?")[0].decode("ascii", "replace")
        error = await self._allow(path, authorization, address)
        if isinstance(error, Forbidden):
            return error_answer(403, error.code, error.text)
        if error is not None:
            # Who guesses comes through the door for each guess, where addresses are counted.
            return error_answer(401, error.code, error.text, ASK, CLOSE)
        page = self._pages.get(path)
        if page is None:
            there = ", ".join(self._pages)
            return error_answer(404, "NOT_FOUND", f"there is no such page; there are {there}")
        if method not in (b"GET", b"HEAD"):
            text = "pages are read with GET or HEAD, and nothing here can be changed"
            return error_answer(405, "METHOD_NOT_ALLOWED", text, ("Allow", "GET, HEAD"))
        try:
            return await page()
        except Exception:
            logger.exception("page failed", extra=fields(path=path))
            return error_answer(500, "INTERNAL", "this page failed; the node's log tells why")
