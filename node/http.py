"""A small HTTP server for a handful of pages: GET and HEAD, nothing else.

It is a machine's and an operator's window, not a web framework. Everything that a stranger could
stretch has a limit: the request, the time, the number of connections.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import trio

from busnode.node.logs import fields
from busnode.world.network import Listener, Stream
from busnode.world.real_import import import_in_thread

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 100
"""A scraper, a load balancer and some people; more is an accident or an attack."""

JSON: Final = "application/json"


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


Page = Callable[[], Awaitable[Answer]]
Answering = Callable[[bytes, bytes], Awaitable[Answer]]
"""From a method and a target."""


class HttpServer:
    """Serves pages by their paths on a listener, which stays its owner's."""

    def __init__(self, listener: Listener, pages: Mapping[str, Page]) -> None:
        self._listener = listener
        self._pages = pages
        self._connections = 0
        self.requests = 0

    async def run(self) -> None:
        """Until it is cancelled or the listener is closed."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self._listener.accept()
                except OSError:
                    return
                if self._connections >= CONNECTIONS_MAX:
                    stream.close()
                    continue
                self._connections += 1
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: Stream) -> None:
        try:
            # Not before somebody comes: a node is up without it, and sooner.
            connection = await import_in_thread("busnode.node.http_connection")
            await connection.serve(stream, self._answer)
        except OSError as error:
            logger.debug("HTTP connection broke", extra=fields(peer=stream.peer, error=error))
        except Exception:
            # A fault in a page must not take the node along.
            logger.exception("HTTP connection failed", extra=fields(peer=stream.peer))
        finally:
            self._connections -= 1
            stream.close()

    async def _answer(self, method: bytes, target: bytes) -> Answer:
        self.requests += 1
        path = target.partition(b"?")[0].decode("ascii", "replace")
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
