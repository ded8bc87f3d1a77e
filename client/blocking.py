"""The client for code without async: the same parts, each behind a portal to an event loop.

The loop runs in a thread of its own. Where a call for each message would cost too much, messages
cross over in bulk: a publisher's are picked up by the loop while more are added, and a
subscription's come a batch at a time. One thread at a time may use a subscription; everything else
may be shared.
"""

import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
from anyio.from_thread import start_blocking_portal

from busnode.client.blocking_queue import BlockingQueue
from busnode.client.blocking_thread import BlockingContext, Thread
from busnode.client.bus import (
    DEFAULT_URL,
    REQUEST_TIMEOUT_S,
    Bus,
    BusStatistics,
    Require,
    Scope,
    Start,
)
from busnode.client.bus import connect as connect_async
from busnode.client.cursor_store import CursorStore
from busnode.client.gaps import OnDropped, OnGap
from busnode.client.messages import NO_HEADERS, Message, MessageBatch
from busnode.client.new_task import Retry
from busnode.client.payloads import Payload, checked
from busnode.client.positions import Position
from busnode.client.providers import CONCURRENCY, Answer, Provider, Request
from busnode.client.publisher import NotAcked, Publisher
from busnode.client.receipts import Receipt, Receipts
from busnode.client.reply import Reply
from busnode.client.service import CONCURRENCY as SERVICE_CONCURRENCY
from busnode.client.service import Service
from busnode.client.service_letters import Pending, ServiceCall, ServiceReply
from busnode.client.subscription import Subscription, SubscriptionStatistics
from busnode.client.task import LEASE_S
from busnode.wire.errors import TimedOut
from busnode.wire.limits import MIB
from busnode.world.real_anyio import run_in_thread

CROSSING_BYTES_MAX: Final = 1 * MIB
"""What a publisher may have added before it waits for the loop to have picked it up."""


class BlockingPublisher:
    """`with bus.publisher(topic, persistent=True) as out: out.send(payload)`"""

    def __init__(self, thread: Thread, publisher: Publisher) -> None:
        self._thread = thread
        self._publisher = publisher
        # A deque, because adding and taking are atomic: the two threads need no lock.
        self._crossing: deque[tuple[bytes, Mapping[str, str] | None, str | None]] = deque()
        self._crossing_bytes = 0
        self._is_fetching = False
        self._one_at_a_time: anyio.Lock | None = None

    def __enter__(self) -> "BlockingPublisher":
        return self

    def __exit__(self, kind: type[BaseException] | None, *args: object) -> None:
        if kind is None:
            self.flush()

    @property
    def not_acked(self) -> list[NotAcked]:
        return self._publisher.not_acked

    def send(
        self,
        payload: Payload,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> None:
        """Put a message on its way; waits only while the window is full."""
        self._crossing.append((checked(payload), headers, message_id))
        self._crossing_bytes += len(payload)
        if self._crossing_bytes >= CROSSING_BYTES_MAX:
            self._crossing_bytes = 0
            self._thread.call(self._fetch)
        elif not self._is_fetching:
            self._is_fetching = True
            self._thread.start(self._fetch)

    def flush(self) -> Receipts:
        """Wait until all that was sent is acked, or raise an error that names what was not."""
        return self._thread.call(self._flush)

    async def _flush(self) -> Receipts:
        await self._fetch()
        return await self._publisher.flush()

    async def _fetch(self) -> None:
        """Pick up all that was added. A message is gone from here only when it was taken there."""
        if self._one_at_a_time is None:
            self._one_at_a_time = anyio.Lock()
        async with self._one_at_a_time:  # or a later one would overtake
            self._is_fetching = False  # what is added from now on may have to be fetched again
            while self._crossing:
                payload, headers, message_id = self._crossing[0]
                await self._publisher.send(payload, headers=headers, message_id=message_id)
                self._crossing.popleft()


class BlockingSubscription:
    """`with bus.subscribe(pattern) as messages: for message in messages: …`

    A message is done when the next one is asked for.
    """

    def __init__(self, thread: Thread, make: Callable[[], Subscription]) -> None:
        self._thread = thread
        self._make = make
        self._subscription: Subscription | None = None
        self._messages: Iterator[Message] = iter(())
        self._taken = 0

    def __enter__(self) -> "BlockingSubscription":
        async def enter() -> Subscription:
            return await self._make().__aenter__()

        self._subscription = self._thread.call(enter)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self._open.__aexit__, kind, error, traceback)

    @property
    def _open(self) -> Subscription:
        assert self._subscription is not None, "use it in a with block"
        return self._subscription

    def __iter__(self) -> "BlockingSubscription":
        return self

    def __next__(self) -> Message:
        return self.get()

    def get(self, timeout: float | None = None) -> Message:
        """The next message; TimedOut when none came in `timeout` seconds, and nothing is lost."""
        self._open.worked_off(self._taken)
        message = next(self._messages, None)
        if message is None:
            self._taken = 0
            self._messages = iter(self.get_batch(timeout))
            message = next(self._messages)
        self._taken += 1
        return message

    def batches(self) -> Iterator[MessageBatch]:
        """The same messages a whole batch at a time; a batch is done when the next is asked for."""
        while True:
            yield self.get_batch()

    def get_batch(self, timeout: float | None = None) -> MessageBatch:
        async def next_batch() -> MessageBatch:
            with anyio.move_on_after(timeout):
                return await self._open.next_batch()
            raise TimedOut(f"no message of {self._open.pattern} in {timeout:g} s")

        return self._thread.call(next_batch)

    def done(self) -> None:
        """The last message that was handed out is done, although no other is asked for yet."""
        self._open.worked_off(self._taken)

    @property
    def position(self) -> Position:
        async def position() -> Position:
            return self._open.position

        return self._thread.call(position)

    def statistics(self) -> SubscriptionStatistics:
        return self._open.statistics()


class BlockingProvider(BlockingContext[Provider]):
    """`with bus.provide(topic, handler): …`; the handler runs in a worker thread."""


class BlockingService(BlockingContext[Service]):
    """`with bus.service(name, handlers): …`; the handlers run in worker threads."""


class BlockingBus:
    """The bus for code without async. `connect` makes and closes it."""

    def __init__(self, thread: Thread, bus: Bus) -> None:
        self._thread = thread
        self._bus = bus

    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        persistent: bool = False,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        scope: Scope = "global",
        require: Require = None,
    ) -> Receipt | None:
        """See `Bus.publish`. For many messages a publisher is far cheaper."""
        return self._thread.call(
            self._bus.publish,
            topic,
            payload,
            persistent=persistent,
            headers=headers,
            message_id=message_id,
            scope=scope,
            require=require,
        )

    def publisher(
        self,
        topic: str,
        *,
        persistent: bool = False,
        scope: Scope = "global",
        require: Require = None,
    ) -> BlockingPublisher:
        publisher = self._bus.publisher(topic, persistent=persistent, scope=scope, require=require)
        return BlockingPublisher(self._thread, publisher)

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        cursors: str | os.PathLike[str] | CursorStore | None = None,
        durable: str | None = None,
        queue: str | None = None,
        on_gap: OnGap = None,
        on_dropped: OnDropped = None,
    ) -> BlockingSubscription:
        """See `Bus.subscribe`. `on_gap` and `on_dropped` are called in the loop's thread."""
        make = partial(
            self._bus.subscribe,
            pattern,
            start=start,
            cursors=cursors,
            durable=durable,
            queue=queue,
            on_gap=on_gap,
            on_dropped=on_dropped,
        )
        return BlockingSubscription(self._thread, make)

    def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Reply:
        return self._thread.call(
            self._bus.request, topic, payload, headers=headers, timeout=timeout
        )

    def request_many(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Iterator[Reply]:
        replies = self._bus.request_many(topic, payload, headers=headers, timeout=timeout)
        while (reply := self._thread.call(replies.next_reply)) is not None:
            yield reply

    def provide(
        self,
        topic: str,
        handler: Callable[[Request], Answer],
        *,
        accepts: Callable[[Request], bool] | None = None,
        concurrency: int = CONCURRENCY,
    ) -> BlockingProvider:
        """See `Bus.provide`. `accepts` is called in the loop's thread and must be quick."""

        async def answer(request: Request) -> Answer:
            return await run_in_thread(handler, request)

        make = partial(self._bus.provide, topic, answer, accepts=accepts, concurrency=concurrency)
        return BlockingProvider(self._thread, make)

    def queue(self, name: str, *, retry: Retry | None = None) -> BlockingQueue:
        """See `Bus.queue`."""
        return BlockingQueue(self._thread, self._bus.queue(name, retry=retry))

    def service(
        self,
        name: str,
        handlers: Mapping[str, Callable[[ServiceCall], Any]] | Callable[[ServiceCall], Any],
        *,
        on_reply: Callable[[ServiceReply], object] | None = None,
        concurrency: int = SERVICE_CONCURRENCY,
        lease: float = LEASE_S,
    ) -> BlockingService:
        """See `Bus.service`. Handlers and `on_reply` run in worker threads."""

        def threaded(work: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
            return partial(run_in_thread, work)

        own = (
            threaded(handlers)
            if callable(handlers)
            else {pattern: threaded(handler) for pattern, handler in handlers.items()}
        )
        make = partial(
            self._bus.service,
            name,
            own,
            on_reply=None if on_reply is None else threaded(on_reply),
            concurrency=concurrency,
            lease=lease,
        )
        return BlockingService(self._thread, make)

    def send(
        self,
        to: str,
        pattern: str,
        data: Any = None,
        *,
        cid: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        retry: Retry | None = None,
    ) -> ServiceReply | Pending:
        """See `Bus.send`."""
        return self._thread.call(
            self._bus.send, to, pattern, data, cid=cid, timeout=timeout, retry=retry
        )

    def statistics(self) -> BusStatistics:
        return self._bus.statistics()


@contextmanager
def connect(
    url: str = DEFAULT_URL, *, name: str = "python", backend: str = "asyncio", **options: Any
) -> Generator[BlockingBus]:
    """A connected bus for as long as the block runs. `options` are those of `busnode.connect`."""
    with start_blocking_portal(backend) as portal:
        connected = connect_async(url, name=name, **options)
        with portal.wrap_async_context_manager(connected) as bus:
            yield BlockingBus(Thread(portal), bus)
