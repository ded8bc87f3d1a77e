"""A crowd of sockets, watched by an epoll of its own that is itself waited for.

A task that waits for one socket costs some kilobytes and 50 µs to make and end; a socket in an
epoll costs neither. Measured with 5,000 connections that never greet.
"""

import select
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import trio

from busnode.world.network import Stream
from busnode.world.task_crowd import TaskCrowd

READY_BEFORE_YIELD: Final = 8
"""Strangers that are looked at before others have their turn: a third of a millisecond. With 3 the
slowest hundredth of a client's messages took as long under a flood."""


@runtime_checkable
class HasDescriptor(Protocol):
    """A stream that is a socket, and nothing but a socket."""

    descriptor: int


class RealCrowd:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[Stream, int] = {}
        self._others = TaskCrowd()

    def add(self, stream: Stream) -> None:
        if not isinstance(stream, HasDescriptor):
            self._others.add(stream)
            return
        number = stream.descriptor
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

    async def run(self, ready: Callable[[Stream], None]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._others.run, ready)
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    for number, _ in self._epoll.poll(0, READY_BEFORE_YIELD):
                        stream = self._streams.get(number)
                        if stream is not None:
                            ready(stream)
        finally:
            self._epoll.close()
            self._streams.clear()
            self._numbers.clear()
