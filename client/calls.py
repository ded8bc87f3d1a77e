"""Calls: requests that wait for one reply. The hot path of whoever asks.

What a round trip costs here is what happens around one `send` and one `recv`. A deadline of its own
would take 8 µs for each call, and three times that between two system calls, where caches are cold;
so one watch ends whatever is overdue, and wakes up when the first call may be.
"""

import anyio
import anyio.abc

from busnode.client.bell import Bell
from busnode.client.refusal import again
from busnode.client.reply import END, Reply, reply_of
from busnode.wire import control
from busnode.wire.errors import BusnodeError, NoProvider, TimedOut
from busnode.wire.ids import Topic
from busnode.world.clock import Clock


class Call:
    """One request, and what became of it."""

    __slots__ = ("bell", "deadline", "error", "reply", "topic")

    def __init__(self, topic: Topic, deadline: float) -> None:
        self.topic = topic
        self.deadline = deadline
        self.bell = Bell()
        self.reply: control.Reply | None = None
        self.error: BusnodeError | None = None

    @property
    def settled(self) -> bool:
        return self.reply is not None or self.error is not None

    def take(self, message: control.Reply) -> None:
        self.reply = message
        self.bell.ring()

    def fail(self, error: BusnodeError) -> None:
        if not self.settled:
            self.error = error
            self.bell.ring()

    def outcome(self) -> Reply:
        """The reply; raises what it failed with."""
        message = self.reply
        if message is None:
            assert self.error is not None
            raise again(self.error)
        if message.code == END:
            raise NoProvider(f"nobody answered on {self.topic}")
        reply = reply_of(message)
        if reply.error is not None:
            raise again(reply.error)
        return reply


class Calls:
    """The calls of a client that are under way, by their numbers."""

    def __init__(self, clock: Clock, tasks: anyio.abc.TaskGroup) -> None:
        self._clock = clock
        self._tasks = tasks
        self._calls: dict[int, Call] = {}
        self._watched_until: float | None = None
        """When the watch looks next; None while there is none."""
        self._sooner = Bell()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, number: int, call: Call) -> None:
        """Whoever adds it waits for it, and removes it however that ends."""
        self._calls[number] = call
        if self._watched_until is None:
            self._watched_until = call.deadline
            self._tasks.start_soon(self._watch)
        elif call.deadline < self._watched_until:
            self._watched_until = call.deadline
            self._sooner.ring()

    def remove(self, number: int) -> None:
        del self._calls[number]

    def get(self, number: int) -> Call | None:
        return self._calls.get(number)

    def fail_all(self, error: BusnodeError) -> None:
        for call in self._calls.values():
            call.fail(error)

    async def _watch(self) -> None:
        """End what is overdue. It stays for a while after the last call: the next comes soon."""
        while self._watched_until is not None:
            now = self._clock.monotonic()
            if now < self._watched_until:
                with anyio.move_on_after(self._watched_until - now):
                    await self._sooner.wait()
                continue
            for call in self._calls.values():
                if call.deadline <= now:
                    call.fail(TimedOut(f"no reply on {call.topic} in time"))
            left = [call.deadline for call in self._calls.values() if not call.settled]
            self._watched_until = min(left, default=None)
