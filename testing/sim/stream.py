"""One end of a simulated connection."""

import errno
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import trio

from busnode.world.files import Bytes, ReadFile
from busnode.world.network import Address


class Ending(Enum):
    END = auto()
    """The other side has closed; what it sent before has arrived."""
    RESET = auto()
    """The other side is gone, and with it what it sent and this side has not yet read."""


@dataclass(slots=True)
class Parcel:
    """Something on the way to one end; it is there when its time has come."""

    due: float
    load: bytes | Ending


class SimStream:
    """Bytes arrive in order, each after some delay, and wait in a bounded buffer until read.

    `travel` tells when something that is sent now will arrive: `math.inf` where the way is cut.
    """

    certificate = None

    def __init__(
        self,
        host: str,
        peer: Address,
        buffer_bytes: int,
        travel: Callable[[str, str], float],
        on_sent: Callable[[int], None],
    ) -> None:
        self.host = host
        self.peer = peer
        self.closed = False
        self._buffer_bytes = buffer_bytes
        self._travel = travel
        self._on_sent = on_sent
        self._other: SimStream = self
        self._arriving: deque[Parcel] = deque()
        self._arriving_bytes = 0
        self._unread = bytearray()
        self._ending: Ending | None = None
        self._severed = False
        self._changed = trio.lowlevel.ParkingLot()
        self._waiting: dict[trio.CancelScope, None] = {}
        """Those who wait for a change, or for the next thing to arrive."""

    def connect(self, other: "SimStream") -> None:
        self._other, other._other = other, self

    def receive_into(self, view: memoryview) -> int | None:
        assert view, "no bytes would look like the end of the stream"
        self._arrive()
        if self._unread:
            count = min(len(view), len(self._unread))
            view[:count] = self._unread[:count]
            del self._unread[:count]
            self._other._changed.unpark_all()
            return count
        if self._ending is Ending.RESET:
            raise ConnectionResetError(errno.ECONNRESET, f"{self.peer} has reset the connection")
        return 0 if self._ending is Ending.END else None

    def send(self, data: Bytes) -> int:
        self._arrive()
        if self._ending is Ending.RESET:
            raise ConnectionResetError(errno.ECONNRESET, f"{self.peer} has reset the connection")
        if self._ending is Ending.END:
            raise BrokenPipeError(errno.EPIPE, f"{self.peer} has closed the connection")
        count = min(len(data), self._room())
        if count:
            self._dispatch(bytes(data[:count]))
        return count

    def send_both(self, first: Bytes, second: Bytes) -> int:
        sent = self.send(first)
        return sent + self.send(second) if sent == len(first) else sent

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        chunk = bytearray(min(length, self._room()))
        with memoryview(chunk) as view:
            count = file.read_into(view, offset)
        if chunk and not count:
            raise OSError(errno.ENODATA, "the file ends before the range", file.path)
        return self.send(chunk[:count])

    async def wait_readable(self) -> None:
        await self._wait(lambda: bool(self._unread or self._ending))

    async def wait_writable(self) -> None:
        await self._wait(lambda: bool(self._room() or self._ending))

    async def _wait(self, ready: Callable[[], bool]) -> None:
        self._arrive()
        if ready():
            await trio.lowlevel.checkpoint()
            self._arrive()
        while not ready():
            due = self._arriving[0].due if self._arriving else math.inf
            with trio.CancelScope(deadline=due) as scope:
                self._waiting[scope] = None
                try:
                    await self._changed.park()
                finally:
                    del self._waiting[scope]
            self._arrive()

    def _awaits(self, due: float) -> None:
        """Something will arrive: who waits is woken then, and not sooner, which would be a step of
        its task for nothing; there are as many of these as of all others."""
        for scope in self._waiting:
            if due < scope.deadline:
                scope.deadline = due

    def close(self) -> None:
        """As TCP does, it resets the connection when something is left unread."""
        if not self.closed:
            self._arrive()
            unread = self._unread or self._arriving_bytes
            self.drop(Ending.RESET if unread else Ending.END)

    def drop(self, ending: Ending) -> None:
        """End it here at once, and let the other side know when word gets there."""
        self.closed = True
        self._changed.unpark_all()
        self._dispatch(ending)

    def sever(self) -> None:
        """This end, whose owner lives on, is told that the connection was reset; no word of it
        goes to the other one."""
        self._severed = True
        self._arriving.clear()
        self._arriving_bytes = 0
        self._unread.clear()
        self._ending = Ending.RESET
        self._changed.unpark_all()

    def hold(self) -> None:
        """The way here was cut: what is on it waits."""
        if not self.closed:
            self._arrive()
            for parcel in self._arriving:
                parcel.due = math.inf

    def release(self) -> None:
        """The way here is open again: what waited sets out anew."""
        due = self._travel(self._other.host, self.host)
        for parcel in self._arriving:
            if parcel.due == math.inf:
                parcel.due = due
        self._changed.unpark_all()

    def _room(self) -> int:
        other = self._other
        return self._buffer_bytes - other._arriving_bytes - len(other._unread)

    def _dispatch(self, load: bytes | Ending) -> None:
        other = self._other
        if self._severed or other._severed:
            return  # it goes nowhere
        due = self._travel(self.host, other.host)
        if not other._arriving:  # nothing overtakes
            other._awaits(due)
        other._arriving.append(Parcel(due, load))
        if isinstance(load, bytes):
            other._arriving_bytes += len(load)
            self._on_sent(len(load))

    def _arrive(self) -> None:
        """Take in what is due; nothing overtakes. Raises when this side has closed."""
        if self.closed:
            raise OSError(errno.EBADF, "it was closed on this side")
        now = trio.current_time()
        while self._arriving and self._arriving[0].due <= now:
            load = self._arriving.popleft().load
            if isinstance(load, bytes):
                self._arriving_bytes -= len(load)
                self._unread += load
                continue
            self._ending = load
            if load is Ending.RESET:
                self._unread.clear()
