"""A crowd of sockets, watched by an epoll of its own that is itself waited for.

A task that waits for one socket costs some kilobytes and 50 µs to make and end; a socket in an
epoll costs neither. Measured with 5,000 connections that never greet.
"""

import select
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from busnode.world.network import Stream
from busnode.world.task_crowd import TaskCrowd

READY_A_TURN: Final = 1
"""Strangers that are looked at in one turn: 0.1 ms, where the turn itself costs 0.02."""


class RealCrowd:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[Stream, int] = {}
        self._others = TaskCrowd()

    def add(self, stream: Stream) -> None:
        # Only what is a socket and nothing else has one. To ask a protocol took 20 µs.
        number: int | None = getattr(stream, "descriptor", None)
        if number is None:
            self._others.add(stream)
            return
        self._epoll.register(number, select.EPOLLIN)
        self._streams[number] = stream
        self._numbers[stream] = number

    def discard(self, stream: Stream) -> None:
        number = self._numbers.pop(stream, None)
        if number is None:
            self._others.discard(stream)
        else:
            del self._streams[number]
            self._epoll.unregister(number)

    async def run(
        self, ready: Callable[[Stream], None], turn: AbstractAsyncContextManager[None]
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._others.run, ready, turn)
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    async with turn:
                        for number, _ in self._epoll.poll(0, READY_A_TURN):
                            stream = self._streams.get(number)
                            if stream is not None:
                                ready(stream)
        finally:
            self._epoll.close()
            self._streams.clear()
            self._numbers.clear()
