"""One HTTP connection, request by request."""

from typing import Final

import h11
import trio

from busnode.node.http import CLOSE, Answer, Answering, error_answer
from busnode.world.network import Stream

REQUEST_BYTES_MAX: Final = 8 * 1024
"""Request line and headers. What we answer needs no more than a path."""

TIMEOUT_S: Final = 10.0
"""For a whole request to come in, and for a whole answer to go out: a byte now and then, to keep a
connection for ever, does not help."""

READ_BYTES: Final = 4096


async def serve(stream: Stream, answer: Answering) -> None:
    """Answer requests until either side has had enough. The stream stays its owner's."""
    connection = _Connection(stream)
    while True:
        try:
            with trio.fail_after(TIMEOUT_S):
                request = await connection.receive()
        except trio.TooSlowError:
            return
        except h11.RemoteProtocolError as error:
            await connection.refuse(error.error_status_hint, str(error))
            return
        if not isinstance(request, h11.Request):
            return
        if _has_body(request):
            await connection.refuse(413, "a request here has no body")
            return
        found = await answer(request.method, request.target, _authorization(request))
        if not await connection.send(found, with_body=request.method != b"HEAD"):
            return
        if not connection.goes_on():
            return


class _Connection:
    """A stream and what h11 makes of it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._buffer = memoryview(bytearray(READ_BYTES))

    async def receive(self) -> object:
        """The next request, or what h11 has instead: the end of the connection."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            count = self._stream.receive_into(self._buffer)
            if count is None:
                await self._stream.wait_readable()
            else:
                await trio.lowlevel.checkpoint()
                self._http.receive_data(bytes(self._buffer[:count]))
        return event

    async def refuse(self, status: int, text: str) -> None:
        """Say what is wrong, where something can still be said; nothing follows."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self.send(error_answer(status, "BAD_REQUEST", text, CLOSE), with_body=True)

    async def send(self, answer: Answer, *, with_body: bool) -> bool:
        """Send it whole; False when that took too long."""
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            *answer.headers,
        ]
        parts = [self._http.send(h11.Response(status_code=answer.status, headers=headers))]
        if with_body:
            parts.append(self._http.send(h11.Data(data=answer.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        unsent = memoryview(b"".join(part for part in parts if part))
        with trio.move_on_after(TIMEOUT_S):
            while unsent:
                sent = self._stream.send(unsent)
                unsent = unsent[sent:]
                if not sent:
                    await self._stream.wait_writable()
        return not unsent

    def goes_on(self) -> bool:
        """Whether another request may follow; then all is ready for it."""
        if self._http.our_state is h11.MUST_CLOSE:
            return False
        if not isinstance(self._http.next_event(), h11.EndOfMessage):
            return False
        self._http.start_next_cycle()
        return True


def _authorization(request: h11.Request) -> str:
    for name, value in request.headers:
        if name == b"authorization":
            return value.decode("latin-1")
    return ""


def _has_body(request: h11.Request) -> bool:
    """Whether one is announced: then it would have to be read before the next request."""
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return True
    return False
