"""Trio in a thread of its own, for a program that runs on asyncio."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


class TrioThread(Generic[T]):
    """Lets somebody on asyncio enter and leave an async context manager of trio.

    Its block runs on asyncio while the inside lives on a loop of its own. What the inside raises
    is raised where it is entered or left. Leaving waits for the thread, also when it is cancelled.
    """

    def __init__(self, inside: AbstractAsyncContextManager[T], name: str) -> None:
        self._inside = inside
        self._name = name
        self._token: trio.lowlevel.TrioToken | None = None
        self._leaving = False
        self._leave = trio.Event()

    async def __aenter__(self) -> T:
        self._loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[T] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        Thread(target=self._work, name=self._name, daemon=True).start()
        try:
            await asyncio.wait((self._entered, self._ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self._ended.done():
            self._ended.result()
        return self._entered.result()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run an async function of trio on the inside's loop and wait for it."""
        assert self._token is not None
        run = partial(trio.from_thread.run, function, trio_token=self._token)
        return await asyncio.to_thread(run)

    async def _end(self) -> None:
        self._ask_to_leave()
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.done():
            try:
                await asyncio.wait((self._ended,))
            except asyncio.CancelledError as error:
                cancelled = error  # it goes on in a moment: the inside is closing
        self._ended.result()
        if cancelled is not None:
            raise cancelled

    def _ask_to_leave(self) -> None:
        self._leaving = True  # before the look at the token: the thread does it the other way round
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._leave.set)

    # In the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for us
            self._tell(self._ended.set_exception, error)
        else:
            self._tell(self._ended.set_result, None)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._leaving:
            return
        async with self._inside as entered:
            self._tell(self._entered.set_result, entered)
            await self._leave.wait()

    def _tell(self, function: Callable[[R], None], value: R) -> None:
        with suppress(RuntimeError):  # asyncio's loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, value)
