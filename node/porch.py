"""Where strangers wait until they have said a whole greeting: no task, no session, no buffer each.

One of them costs a socket, a row in a table and the bytes that it has sent, of which there are no
more than a greeting has. One task takes in who comes, another looks at those who have sent
something, a third lets those go whose time is up. Each does a little, and then it is the next
one's turn: see `Turn`. Only who has sent a frame that may be a greeting gets a session.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Final, NoReturn

import trio

from busnode.node.door import Door
from busnode.node.receipts import encode_refusal
from busnode.wire.errors import BusnodeError, ProtocolError, TimedOut, TlsFailed, UnexpectedFrame
from busnode.wire.frames import PREFIX_BYTES, FrameType, check_prefix
from busnode.wire.limits import KIB
from busnode.world.clock import Clock
from busnode.world.network import Crowd, Listener, Stream
from busnode.world.tls import TlsError

RECEIVED_MAX: Final = 64 * KIB
"""What is received from one stranger at once: what follows its greeting is for its session."""

LINGER_S: Final = 1.0
"""How long who was refused may read why: closing with unread bytes would reset the connection."""

COME_A_TURN: Final = 2
LEAVE_A_TURN: Final = 1
"""0.1 to 0.2 ms each. A durable message has three turns of the loop to wait for, and twenty who
left at once at each of two doors made one of 4 ms."""

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

    async def take_in(self, listener: Listener, come: Callable[[Stream], None]) -> NoReturn:
        """Call `come` for all who come. OSError when the listener is closed."""
        while True:
            stream: Stream | None = await listener.accept()
            async with self._door.turn:
                room = COME_A_TURN
                while stream is not None:
                    come(stream)
                    room -= 1
                    stream = listener.accept_nowait() if room else None

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
            nursery.start_soon(self._crowd.run, self._ready, self._door.turn)
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
            if not self._strangers:
                self._came = trio.Event()
                await self._came.wait()
            firsts = chain(islice(self._strangers.values(), 1), islice(self._lingering, 1))
            left_s = min(first.leave_at for first in firsts) - self._clock.monotonic()
            if left_s > 0:
                await self._clock.sleep(min(LINGER_S, left_s))
                continue
            async with self._door.turn:
                now = self._clock.monotonic()
                due = chain(_due(self._strangers.values(), now), _due(self._lingering, now))
                # Who was refused is in both.
                for stranger in dict.fromkeys(islice(due, LEAVE_A_TURN)):
                    self._time_is_up(stranger)

    def _time_is_up(self, stranger: Stranger) -> None:
        if not stranger.refused:
            self._say(stranger, TimedOut(f"no greeting within {self._hello_timeout_s:g} s"))
        self.drop(stranger)

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
    for stranger in strangers:
        if stranger.leave_at > now:
            return
        yield stranger
