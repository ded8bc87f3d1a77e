"""Answering: topics on which this client provides a service."""

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

import anyio.abc

from busnode.client.bell import Bell
from busnode.client.messages import NO_HEADERS
from busnode.client.patience import Patience
from busnode.client.refusal import again
from busnode.client.reply import Reply
from busnode.wire import control
from busnode.wire.errors import BusnodeError, RequestFailed
from busnode.wire.ids import Pattern
from busnode.wire.limits import TEXT_BYTES_MAX

logger = logging.getLogger("busnode.client")

CONCURRENCY: Final = 64
"""Requests that one provider works on at once."""

WAITING_MAX: Final = 256
"""Requests that it has got and not begun. Beyond it says no, and the node asks somebody else."""


class Request(NamedTuple):
    """What somebody asks. `accepts` is shown it without its payload, which has not come yet."""

    topic: str
    payload: bytes
    headers: Mapping[str, str]
    many: bool = False


Answer = bytes | Reply | None
Handler = Callable[[Request], Answer | Awaitable[Answer]]
Accepts = Callable[[Request], bool | Awaitable[bool]]


class ProviderHost(Protocol):
    """What a provider asks of its bus."""

    patience: Patience
    tasks: anyio.abc.TaskGroup

    @property
    def visit(self) -> int:
        """Counts the homes there were: numbers that one gave mean nothing to the next."""
        ...

    def send(self, message: control.Control) -> bool: ...

    def provide(self, provider: "Provider") -> None: ...

    def unprovide(self, provider: "Provider") -> None: ...


class Provider:
    """`async with bus.provide(topic, handler): …` answers requests while the block runs.

    Leaving the block ends it; requests that it works on by then are still answered.
    """

    def __init__(
        self,
        host: ProviderHost,
        topic: Pattern,
        handler: Handler,
        accepts: Accepts | None,
        concurrency: int,
    ) -> None:
        self.topic = topic
        self.number = 0
        """The bus gives it."""
        self._host = host
        self._handler = handler
        self._accepts = accepts
        self._concurrency = concurrency
        self._running = 0
        self._waiting: deque[tuple[int, control.Request]] = deque()
        self._bell = Bell()
        self._begun = False
        self._error: BusnodeError | None = None

    async def __aenter__(self) -> "Provider":
        self._host.provide(self)
        try:
            await self._host.patience.wait(self._bell, lambda: self._begun or bool(self._error))
            if self._error is not None:
                raise again(self._error)
        except BaseException:
            self._host.unprovide(self)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *args: object) -> None:
        self._host.unprovide(self)
        while kind is None and self._running:
            await self._bell.wait()

    @property
    def eager(self) -> bool:
        """Whether it answers everything, so that the node need not ask before it requests."""
        return self._accepts is None

    # What the bus brings --------------------------------------------------------------------------

    def begun(self) -> None:
        """The home has taken it."""
        self._begun = True
        self._bell.ring()

    def failed(self, error: BusnodeError) -> None:
        if self._begun:
            logger.error("%s is provided no more: %s", self.topic, error)
        self._error = error
        self._bell.ring()

    def ring(self) -> None:
        self._bell.ring()

    def asked(self, message: control.Ask) -> None:
        """Would we answer this?"""
        if len(self._waiting) >= WAITING_MAX:
            self._bid(message.request, False)
            return
        if self._accepts is None:
            self._bid(message.request, True)
            return
        request = Request(message.topic, b"", message.headers or NO_HEADERS)
        try:
            answer = self._accepts(request)
        except Exception:
            logger.exception("%s: accepts failed; the answer is no", self.topic)
            answer = False
        if isinstance(answer, bool):
            self._bid(message.request, answer)
        else:
            self._host.tasks.start_soon(self._bid_later, message.request, answer, self._host.visit)

    async def _bid_later(self, number: int, answer: Awaitable[bool], visit: int) -> None:
        try:
            yes = bool(await answer)
        except Exception:
            logger.exception("%s: accepts failed; the answer is no", self.topic)
            yes = False
        if visit == self._host.visit:
            self._bid(number, yes)

    def _bid(self, number: int, yes: bool) -> None:
        self._host.send(control.Bid(number, yes))

    def requested(self, message: control.Request) -> None:
        """It is ours to answer, or to decline while too much waits already."""
        if self._running >= self._concurrency:
            if len(self._waiting) >= WAITING_MAX:
                self._bid(message.request, False)
            else:
                self._waiting.append((self._host.visit, message))
        else:
            self._begin(message, self._host.visit)

    def left(self) -> None:
        """The home is gone: nobody waits for what has not begun."""
        self._waiting.clear()

    # Work -----------------------------------------------------------------------------------------

    def _begin(self, message: control.Request, visit: int) -> None:
        """A handler that is not async is answered for at once, without a task."""
        headers = message.headers or NO_HEADERS
        request = Request(message.topic, message.payload, headers, message.many)
        try:
            answer = self._handler(request)
        except Exception as error:  # noqa: BLE001 - whoever asked gets it, whatever it is
            self._failed(message.request, error, visit)
            return
        if type(answer) is bytes or not inspect.isawaitable(answer):  # which asks around
            self._reply(message.request, answer, visit)
        else:
            self._running += 1
            self._host.tasks.start_soon(self._finish, message.request, answer, visit)

    async def _finish(self, number: int, answer: Awaitable[Answer], visit: int) -> None:
        try:
            self._reply(number, await answer, visit)
        except Exception as error:  # noqa: BLE001 - likewise
            self._failed(number, error, visit)
        finally:
            self._running -= 1
            self._bell.ring()
        while self._waiting and self._running < self._concurrency:
            since, message = self._waiting.popleft()
            self._begin(message, since)

    def _reply(self, number: int, answer: Answer, visit: int) -> None:
        if visit != self._host.visit:
            return  # who asked was told that the connection is lost
        if isinstance(answer, Reply):
            message = control.Reply(number, None, dict(answer.headers), answer.payload, last=True)
        else:
            message = control.Reply(number, None, {}, answer or b"", last=True)
        try:
            self._host.send(message)
        except BusnodeError as error:  # too large, or not bytes
            self._failed(number, error, visit)

    def _failed(self, number: int, error: Exception, visit: int) -> None:
        logger.warning("%s: the handler failed: %r", self.topic, error)
        if visit != self._host.visit:
            return
        text = str(error) if isinstance(error, BusnodeError) else f"{type(error).__name__}: {error}"
        payload = text.encode(errors="replace")[:TEXT_BYTES_MAX]
        self._host.send(control.Reply(number, RequestFailed.code, {}, payload, last=True))
