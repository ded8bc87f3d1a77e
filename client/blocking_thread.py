"""The event loop of a blocking client: it runs in a thread of its own."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Thread:
    """The event loop's thread, seen from outside."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def call(self, work: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
        """Run it there and wait; who is interrupted meanwhile, by Ctrl-C say, cancels it."""
        future = self._portal.start_task_soon(partial(work, *args, **named))
        try:
            return future.result()
        finally:
            future.cancel()

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        self._portal.start_task_soon(work)


class BlockingContext(Generic[T]):
    """An async context of the loop's, for a `with`. It is made there, when the block begins."""

    def __init__(self, thread: Thread, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._thread = thread
        self._make = make
        self._context: AbstractAsyncContextManager[T] | None = None

    def __enter__(self) -> Self:
        async def enter() -> None:
            context = self._make()
            await context.__aenter__()
            self._context = context

        self._thread.call(enter)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._context is not None
        self._thread.call(self._context.__aexit__, kind, error, traceback)
