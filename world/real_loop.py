"""Trio in a thread of its own, for code without async and for code on other loops."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

T = TypeVar("T")


class TrioLoop:
    """A loop that runs while its `with` block does; leaving it cancels all that runs there.

    Any thread may call, also one that runs a loop itself, which then stands still for as long.
    What a task in `nursery` raises ends the loop, and is raised where the block ends.
    """

    def __init__(self, name: str) -> None:
        self.nursery: trio.Nursery
        """For what is to live on when the call that began it returns; to be used on the loop."""
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._ready: Future[trio.lowlevel.TrioToken] = Future()
        self._calls: set[Future[Any]] = set()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._token = self._ready.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.nursery.cancel_scope.cancel)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function there and wait for it. RuntimeError when the loop has ended."""
        answer: Future[T] = Future()
        self._calls.add(answer)
        try:
            self._token.run_sync_soon(self._begin, answer, work, arguments)
            return answer.result()
        finally:
            self._calls.discard(answer)

    # In the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:  # noqa: BLE001 - it is raised where the block ends
            self._failure = error
        for answer in list(self._calls):
            if not answer.done():
                answer.set_exception(RuntimeError("the loop has ended"))

    async def _run(self) -> None:
        async with trio.open_nursery() as self.nursery:
            self._ready.set_result(trio.lowlevel.current_trio_token())
            await trio.sleep_forever()

    def _begin(
        self, answer: Future[T], work: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]
    ) -> None:
        with suppress(RuntimeError):  # it is closed: whoever waits is told when the thread ends
            self.nursery.start_soon(self._answer, answer, work, arguments)

    async def _answer(
        self, answer: Future[T], work: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]
    ) -> None:
        try:
            answer.set_result(await work(*arguments))
        except Exception as error:  # noqa: BLE001 - it is raised where somebody waits for us
            answer.set_exception(error)
