"""Where strangers wait until they have said a whole greeting: no task, no session, no buffer each.

One of them costs a socket, a row in a table and the bytes that it has sent, of which there are no
more than a greeting has. One task looks at those who have sent something, another lets those go
whose time is up. Only who has sent a frame that may be a greeting gets a session.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

import trio

from busnode.node.door import Door
from busnode.node.receipts import encode_refusal
from busnode.wire.errors import BusnodeError, ProtocolError, TimedOut, TlsFailed, UnexpectedFrame
from busnode.wire.frames import PREFIX_BYTES, FrameType, check_prefix
from busnode.wire.limits import KIB
from busnode.world.clock import Clock
from busnode.world.network import Crowd, Stream
from busnode.world.tls import TlsError

RECEIVED_MAX: Final = 64 * KIB
"""What is received from one stranger at once: what follows its greeting is for its session."""

LINGER_S: Final = 1.0
"""How long who was refused may read why: closing with unread bytes would reset the connection."""

LEAVE_BEFORE_YIELD: Final = 20

_BUFFER: Final = memoryview(bytearray(RECEIVED_MAX))
"""Where all receive to; what is kept is copied."""


class Stranger:
    """Somebody who has not greeted."""

    __slots__ = ("_porch", "leave_at", "received", "refused", "stream")

    def __init__(self, porch: "Porch", stream: Stream, leave_at: float) -> None:
        self._porch = porch
        self.stream = stream
        self.leave_at = leave_at
        self.received = b""
        self.refused = False

    def close(self) -> None:
        self._porch.drop(self)


class Porch:
    """In front of one listener's sessions."""

    def __init__(
        self,
        door: Door,
        crowd: Crowd,
        clock: Clock,
        awaited: FrameType,
        hello_timeout_s: float,
        come_in: Callable[[Stream, bytes], None],
        broke_off: Callable[[Stream, BusnodeError], None],
    ) -> None:
        """`come_in` is given who has sent a frame of the awaited type, and all that it has sent."""
        self._door = door
        self._crowd = crowd
        self._clock = clock
        self._awaited = awaited
        self._hello_timeout_s = hello_timeout_s
        self._come_in = come_in
        self._broke_off = broke_off
        self._strangers: dict[Stream, Stranger] = {}
        """Who came first stands first."""
        self._lingering: dict[Stranger, None] = {}
        self._came = trio.Event()

    def __len__(self) -> int:
        return len(self._strangers)

    def wait_for(self, stream: Stream) -> None:
        """Somebody was let in at the door, and has yet to greet."""
        leave_at = self._clock.monotonic() + self._hello_timeout_s
        stranger = self._strangers[stream] = Stranger(self, stream, leave_at)
        self._crowd.add(stream)
        self._came.set()
        self._door.wait_for(stranger)

    def drop(self, stranger: Stranger) -> None:
        """It goes at once."""
        self._forget(stranger)
        stranger.stream.close()
        self._door.left(stranger.stream.peer.host, stranger)

    def _forget(self, stranger: Stranger) -> None:
        self._crowd.discard(stranger.stream)
        del self._strangers[stranger.stream]
        self._lingering.pop(stranger, None)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._crowd.run, self._ready)
            try:
                await self._let_go()
            finally:
                for stranger in list(self._strangers.values()):
                    self.drop(stranger)

    def turn_away(self, error: BusnodeError) -> None:
        """All who are here have to go elsewhere."""
        for stranger in list(self._strangers.values()):
            self._say(stranger, error)
            self.drop(stranger)

    async def _let_go(self) -> None:
        """Those whose time is up, who came first first."""
        while True:
            now = self._clock.monotonic()
            let_go = 0
            for waiting in (self._strangers.values(), self._lingering):
                for stranger in list(_due(waiting, now)):
                    if not stranger.refused:
                        error = TimedOut(f"no greeting within {self._hello_timeout_s:g} s")
                        self._say(stranger, error)
                    self.drop(stranger)
                    let_go += 1
            if let_go >= LEAVE_BEFORE_YIELD:
                await trio.lowlevel.checkpoint()
            elif self._strangers:
                until = next(iter(self._strangers.values())).leave_at
                for stranger in self._lingering:
                    until = min(until, stranger.leave_at)
                    break
                await self._clock.sleep(min(LINGER_S, max(0.0, until - now)))
            else:
                self._came = trio.Event()
                await self._came.wait()

    def _ready(self, stream: Stream) -> None:
        """It has sent something, or is gone."""
        stranger = self._strangers[stream]
        try:
            count = stream.receive_into(_BUFFER)
        except TlsError as error:
            self._broke_off(stream, TlsFailed(str(error)))
            count = 0
        except OSError:
            count = 0
        if count is None:
            return
        if not count:
            self.drop(stranger)
        elif not stranger.refused:
            stranger.received += bytes(_BUFFER[:count])
            try:
                is_whole = self._is_whole(stranger.received)
            except ProtocolError as error:
                self._refuse(stranger, error)
                return
            if is_whole:
                self._forget(stranger)
                self._door.greeted(stranger)
                self._come_in(stream, stranger.received)

    def _is_whole(self, received: bytes) -> bool:
        if len(received) < PREFIX_BYTES:
            return False
        length, kind = check_prefix(memoryview(received), 0)
        if kind != self._awaited:
            raise UnexpectedFrame(
                f"{FrameType(kind).name} frame where {self._awaited.name} must come first"
            )
        return len(received) >= length

    def _refuse(self, stranger: Stranger, error: BusnodeError) -> None:
        """Say why, and read on for a moment without looking."""
        self._broke_off(stranger.stream, error)
        self._say(stranger, error)
        stranger.refused = True
        stranger.received = b""
        stranger.leave_at = min(stranger.leave_at, self._clock.monotonic() + LINGER_S)
        self._lingering[stranger] = None

    def _say(self, stranger: Stranger, error: BusnodeError) -> None:
        with suppress(OSError):
            stranger.stream.send(encode_refusal(error, None, None))


def _due(strangers: Iterable[Stranger], now: float) -> Iterator[Stranger]:
    for stranger in islice(strangers, LEAVE_BEFORE_YIELD):
        if stranger.leave_at > now:
            return
        yield stranger
