"""TLS over any stream: OpenSSL works on memory, and this moves the bytes.

So one system call brings as many records as there are, and OpenSSL never meets a full socket. What
it has encrypted and the socket does not take is kept here, at most one piece of `PIECE_BYTES`, and
counts as not sent until it is all gone: whoever sends waits and offers the same bytes again, as
for plain TCP, and finds them sent.
"""

import errno
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import anyio
import anyio.lowlevel

from busnode.world.files import Bytes, ReadFile
from busnode.world.network import Address, Stream
from busnode.world.tls import Certificate

PIECE_BYTES: Final = 256 * 1024
"""What is encrypted at once: about what a socket takes, and some 0.1 ms of work."""

RECORD_BYTES: Final = 16 * 1024
"""The most that one record of TLS carries."""

EARLY_BYTES_MAX: Final = 4 * 1024
"""What is taken before the handshake is done: a greeting, so that nobody has to wait for it."""

ALERT: Final = b"\x15\x03\x01\x00\x02\x02\x46"
"""The record with which TLS of every version says that it is not that version."""

TAIL_BYTES_MAX: Final = 2 * PIECE_BYTES
"""Answers of OpenSSL's own are put behind a piece; who asks for ever more of them without reading
is let go."""


class _Scratch(threading.local):
    """Where ciphertext comes in and files are read to: nothing stays there, so one for each thread
    will do, and an idle connection needs none."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(PIECE_BYTES))


_scratch: Final = _Scratch()

Explain = Callable[[ssl.SSLError, Address, bytes], OSError]
"""What a user should read, from OpenSSL's error, who is at the other end, and its first byte."""

Admit = Callable[[ssl.SSLObject], Certificate | None]
"""Who the other side is; raises `TlsError` when it may not be here."""


class TlsStream:
    """One connection in TLS. It owns the stream below. One reader and one writer, as for TCP."""

    __slots__ = (
        "_admit",
        "_early",
        "_ended",
        "_explain",
        "_failure",
        "_first",
        "_incoming",
        "_more",
        "_object",
        "_open",
        "_outgoing",
        "_reading",
        "_stream",
        "_tail",
        "_withheld",
        "_writing",
        "certificate",
        "peer",
    )

    def __init__(
        self,
        stream: Stream,
        context: ssl.SSLContext,
        *,
        listens: bool,
        host: str | None,
        explain: Explain,
        admit: Admit,
    ) -> None:
        self.peer = stream.peer
        self.certificate: Certificate | None = None
        self._stream = stream
        self._explain = explain
        self._admit = admit
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=listens, server_hostname=host
        )
        self._first = b""
        self._open = False
        """Whether the handshake is done."""
        self._early = b""
        self._more = False
        """Whether the last who received had no room for all that there was."""
        self._ended = False
        self._tail: memoryview | None = None
        """Ciphertext that the socket has not taken."""
        self._withheld = 0
        """How much plaintext, offered and not called taken, is in the tail."""
        self._failure: OSError | None = None
        self._reading: anyio.Event | None = None
        self._writing: anyio.Event | None = None
        if not listens:
            self._shake()

    # Receiving ------------------------------------------------------------------------------------

    def receive_into(self, view: memoryview) -> int | None:
        assert view, "no bytes would look like the end of the stream"
        if not self._open and not self._shake():
            return 0 if self._ended else None
        total = self._decrypt(view, 0) if self._more or self._incoming.pending else 0
        size = len(view)
        while total < size and not self._ended and self._failure is None:
            room = min(PIECE_BYTES, max(size - total, RECORD_BYTES))
            count = self._fill(room)
            if count is None:
                break
            total = self._decrypt(view, total)
            if count < room:  # that was all
                break
        if total:
            return total
        if self._failure is not None:
            raise self._failure
        return 0 if self._ended else None

    def _fill(self, room: int) -> int | None:
        """Let OpenSSL have what has come."""
        scratch = _scratch.view
        count = self._stream.receive_into(scratch[:room])
        if count:
            if not self._first:
                self._first = bytes(scratch[:1])
            self._incoming.write(scratch[:count])
        elif count == 0:
            self._ended = True
            self._incoming.write_eof()
        return count

    def _decrypt(self, view: memoryview, at: int) -> int:
        """Fill `view` from `at` on; how much of it is filled then. An error is kept for later."""
        size = len(view)
        self._more = True
        try:
            while at < size:
                at += cast("int", self._object.read(size - at, view[at:]))
                if at < size and not self._incoming.pending:
                    self._more = False
                    break
        except ssl.SSLWantReadError:
            self._more = False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # without a word or not: it has closed
            self._more, self._ended = False, True
        except ssl.SSLError as error:
            self._more = False
            self._failure = self._explain(error, self.peer, self._first)
        if self._outgoing.pending:  # an answer of OpenSSL's own
            self._flush()
        return at

    # The handshake --------------------------------------------------------------------------------

    def _shake(self) -> bool:
        """Go on with the handshake as far as it goes now; whether it is done."""
        if self._failure is not None:
            raise self._failure
        try:
            while not self._ended:
                try:
                    self._object.do_handshake()
                except ssl.SSLWantReadError:
                    self._flush()
                    if not self._fill(RECORD_BYTES):
                        return False
                    continue
                self.certificate = self._admit(self._object)
                self._open = True
                if self._early:
                    self._object.write(self._early)
                    self._early = b""
                self._flush()
                return True
        except ssl.SSLError as error:
            self._failure = self._explain(error, self.peer, self._first)
            if self._outgoing.pending:
                self._flush()  # the other side is told in an alert
            else:
                # OpenSSL has no answer for who speaks no TLS. Somebody there may know this one.
                self._stream.send(ALERT)
            raise self._failure from None
        except OSError as error:
            self._failure = error
            raise
        return False

    # Sending --------------------------------------------------------------------------------------

    def send(self, data: Bytes) -> int:
        if not self._open and not self._shake():
            return self._send_early(data)
        if self._failure is not None:
            raise self._failure
        if self._tail is not None and not self._flush():
            return 0
        done, self._withheld = self._withheld, 0
        size = len(data)
        assert done <= size, "what was not taken was not offered again"
        view = memoryview(data)
        while done < size:
            piece = view[done : done + PIECE_BYTES]
            self._encrypt(piece)
            if not self._flush():
                self._withheld = len(piece)
                break
            done += len(piece)
        return done

    def send_both(self, first: Bytes, second: Bytes) -> int:
        # Copying costs a fraction of encrypting, and one record is cheaper than two.
        return self.send(b"".join((first, second)))

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        if not self._open and not self._shake():
            return 0
        if self._tail is not None and not self._flush():
            return 0
        if self._withheld:
            done, self._withheld = self._withheld, 0
            return done
        view = _scratch.view[: min(length, PIECE_BYTES)]
        count = file.read_into(view, offset)
        if count == 0 and length:
            raise OSError(errno.ENODATA, "the file ends before the range", file.path)
        return self.send(view[:count])

    def _send_early(self, data: Bytes) -> int:
        if self._ended:
            raise ConnectionResetError(errno.ECONNRESET, f"{self.peer} closed the connection")
        if len(self._early) + len(data) > EARLY_BYTES_MAX:
            return 0
        self._early += bytes(data)
        return len(data)

    def _encrypt(self, data: memoryview) -> None:
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            self._failure = self._explain(error, self.peer, self._first)
            raise self._failure from None

    def _flush(self) -> bool:
        """Give the socket what it takes of the ciphertext; whether that was all."""
        while True:
            if self._tail is None:
                if not self._outgoing.pending:
                    return True
                self._tail = memoryview(self._outgoing.read())
            sent = self._stream.send(self._tail)
            if sent < len(self._tail):
                self._tail = self._tail[sent:]
                if self._outgoing.pending > TAIL_BYTES_MAX:
                    self._failure = ConnectionError(f"{self.peer} asks and does not read")
                    raise self._failure
                return False
            self._tail = None

    # Waiting --------------------------------------------------------------------------------------

    async def wait_readable(self) -> None:
        if self._more:
            await anyio.lowlevel.checkpoint()
        elif self._failure is not None:
            raise self._failure
        elif self._tail is not None and not self._withheld:
            # Of the handshake, or an answer of OpenSSL's own: nobody else would see it off.
            await self._wait_to_write()
            self._flush()
        elif self._open and self._reading is None:
            await self._stream.wait_readable()
        else:
            await self._wait_to_read()

    async def wait_writable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._open or self._tail is not None:
            await self._wait_to_write()
        else:
            await self._wait_to_read()

    # While the handshake lasts, who writes may have to wait for what comes, and who reads for room:
    # then one of them waits for both.

    async def _wait_to_read(self) -> None:
        if self._reading is not None:
            await self._reading.wait()
            return
        self._reading = anyio.Event()
        try:
            await self._stream.wait_readable()
        finally:
            self._reading.set()
            self._reading = None

    async def _wait_to_write(self) -> None:
        if self._writing is not None:
            await self._writing.wait()
            return
        self._writing = anyio.Event()
        try:
            await self._stream.wait_writable()
        finally:
            self._writing.set()
            self._writing = None

    def close(self) -> None:
        """What was taken still arrives, unless the handshake was not done."""
        if self._open and self._tail is None and not self._ended and self._failure is None:
            with suppress(OSError):  # the other side answers when we are gone
                self._object.unwrap()
            with suppress(OSError):
                self._flush()
        self._failure = self._failure or OSError(errno.EBADF, "it was closed on this side")
        self._stream.close()
