"""A crowd of any streams: with a task for each after all."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

import trio

from busnode.world.network import Stream


class TaskCrowd:
    """For networks that have nothing better, such as a simulated one."""

    def __init__(self) -> None:
        self._scopes: dict[Stream, trio.CancelScope] = {}
        self._came = trio.Event()
        self._new: list[Stream] = []
        self._next = trio.Lock()
        """One of them waits for the turn: nobody else should stand behind all of them."""

    def add(self, stream: Stream) -> None:
        self._scopes[stream] = trio.CancelScope()
        self._new.append(stream)
        self._came.set()

    def discard(self, stream: Stream) -> None:
        scope = self._scopes.pop(stream, None)
        if scope is not None:
            scope.cancel()

    async def run(
        self, ready: Callable[[Stream], None], turn: AbstractAsyncContextManager[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                new, self._new = self._new, []
                for stream in new:
                    nursery.start_soon(self._wait, stream, ready, turn)
                await self._came.wait()
                self._came = trio.Event()

    async def _wait(
        self,
        stream: Stream,
        ready: Callable[[Stream], None],
        turn: AbstractAsyncContextManager[None],
    ) -> None:
        scope = self._scopes.get(stream)
        if scope is None:
            return
        with scope:
            while self._scopes.get(stream) is scope:
                with suppress(OSError):  # who receives from it hears of that
                    await stream.wait_readable()
                async with self._next, turn:
                    if self._scopes.get(stream) is scope:
                        ready(stream)
