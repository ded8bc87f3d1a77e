"""Asking: requests that wait for their replies."""

from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol
from weakref import WeakValueDictionary

import anyio
import anyio.abc

from busnode.client.bell import Bell
from busnode.client.calls import Call, Calls
from busnode.client.patience import Patience
from busnode.client.refusal import again
from busnode.client.reply import END, GRACE_S, Reply, reply_of
from busnode.wire import control
from busnode.wire.errors import BusnodeError, Disconnected, LimitReached, TimedOut, Unavailable
from busnode.wire.ids import Topic
from busnode.wire.limits import MIB
from busnode.world.clock import Clock

REQUESTS_MAX: Final = 4096
"""Requests that one client may have under way."""

REPLIES_BYTES_MAX: Final = 16 * MIB
"""Replies to one request that wait to be read: sixteen of the largest."""


class Asker(Protocol):
    """What requests ask of their bus."""

    clock: Clock
    patience: Patience
    arrival: Bell
    tasks: anyio.abc.TaskGroup

    def send(self, message: control.Control) -> bool: ...


class Replies:
    """The replies to one request, as they come: `async for reply in bus.request_many(…)`.

    Whoever stops reading just lets go of it.
    """

    def __init__(self, requests: "Requests", message: control.Request) -> None:
        self.topic = message.topic
        self._number = message.request
        self._requests = requests
        self._message: control.Request | None = message
        self._timeout_s = message.timeout_s
        self._deadline = 0.0
        self._bell = Bell()
        self._waiting: deque[Reply] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._error: BusnodeError | None = None

    def __aiter__(self) -> "Replies":
        return self

    async def __anext__(self) -> Reply:
        reply = await self.next_reply()
        if reply is None:
            raise StopAsyncIteration
        return reply

    async def next_reply(self) -> Reply | None:
        """The next one, or None at the end. Raises what the whole request failed with."""
        if self._message is not None:
            message, self._message = self._message, None
            self._deadline = await self._requests.begin(self, message)
        while not self._waiting:
            if self._error is not None:
                raise again(self._error)
            if self._ended:
                return None
            left_s = self._deadline - self._requests.now()
            if left_s <= 0:
                self.fail(TimedOut(f"no end of replies on {self.topic} in {self._timeout_s:g} s"))
                continue
            with anyio.move_on_after(left_s):
                await self._bell.wait()
        reply = self._waiting.popleft()
        self._waiting_bytes -= len(reply.payload)
        return reply

    def take(self, message: control.Reply) -> None:
        if self._ended:
            return
        if message.code != END:
            self._waiting.append(reply_of(message))
            self._waiting_bytes += len(message.payload)
        if self._waiting_bytes > REPLIES_BYTES_MAX:
            self.fail(LimitReached(f"{self._waiting_bytes} bytes of replies that nobody has read"))
        if message.last:
            self._ended = True
        self._bell.ring()

    def fail(self, error: BusnodeError) -> None:
        """The whole request has failed; replies that came before can still be read."""
        if not self._ended:
            self._ended, self._error = True, error
            self._requests.forget(self._number)
            self._bell.ring()


class Requests:
    """The requests of a client that are under way."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._calls = Calls(asker.clock, asker.tasks)
        self._pending: WeakValueDictionary[int, Replies] = WeakValueDictionary()
        self._next = 1

    def __len__(self) -> int:
        return len(self._calls) + len(self._pending)

    def now(self) -> float:
        return self._asker.clock.monotonic()

    async def call(
        self, topic: Topic, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """Ask, and wait for the only reply."""
        deadline = self.now() + timeout_s + GRACE_S
        if self._asker.patience.away:
            await self._wait_for_home(timeout_s)
        self._check()
        number, self._next = self._next, self._next + 1
        self._send(
            control.Request(number, 0, topic, dict(headers), payload, False, float(timeout_s))
        )
        call = Call(topic, deadline)  # once it is on its way: nothing is received meanwhile
        self._calls.add(number, call)
        try:
            while not call.settled:
                await call.bell.wait()
        finally:
            self._calls.remove(number)
        return call.outcome()

    def ask_many(
        self, topic: Topic, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Replies:
        """A request; it goes out when its first reply is asked for."""
        number, self._next = self._next, self._next + 1
        message = control.Request(number, 0, topic, dict(headers), payload, True, timeout_s)
        return Replies(self, message)

    async def begin(self, replies: Replies, message: control.Request) -> float:
        """Send it, to a home that may have to be found first. When it must have ended."""
        deadline = self.now() + message.timeout_s
        if self._asker.patience.away:
            await self._wait_for_home(message.timeout_s)
        self._check()
        self._pending[message.request] = replies
        self._send(message)
        return deadline + GRACE_S

    async def _wait_for_home(self, timeout_s: float) -> None:
        patience = self._asker.patience
        with anyio.move_on_after(timeout_s):
            await patience.wait(self._asker.arrival, lambda: not patience.away)

    def _check(self) -> None:
        self._asker.patience.check()
        if len(self) >= REQUESTS_MAX:
            raise LimitReached(f"{REQUESTS_MAX} requests are under way from this client")

    def _send(self, message: control.Request) -> None:
        if not self._asker.send(message):
            why = self._asker.patience.why
            raise Disconnected(f"no node in {message.timeout_s:g} s: {why}")

    def take(self, message: control.Reply) -> None:
        call = self._calls.get(message.request)
        if call is not None:
            call.take(message)
            return
        replies = self._pending.get(message.request)
        if replies is not None:
            replies.take(message)
            if message.last:
                self.forget(message.request)

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def refused(self, number: int, error: BusnodeError) -> None:
        asked = self._calls.get(number) or self._pending.get(number)
        if asked is not None:
            asked.fail(error)

    def left(self, why: str) -> None:
        """The home is gone. Whether anybody got the requests nobody knows: let who asked decide."""
        error = Unavailable(f"the connection was lost before the reply came: {why}")
        self._calls.fail_all(error)
        for replies in list(self._pending.values()):
            replies.fail(error)
        self._pending.clear()
