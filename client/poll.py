"""What a worker's loop iterates over: tasks one by one, or lists of them.

A loop that is left, by `break` or by an exception, lets go of its iterator, and with it of what was
prefetched and not begun: others get that at once. A task that is in hand stays leased until
somebody settles it. (An async generator would do the same only when the event loop gets round to
it, and trio warns of each.)
"""

from types import TracebackType
from typing import Self

from busnode.client.task import Task
from busnode.client.worker import Worker


class Polling:
    """A poll that goes on until it is closed or let go of; `async with` closes it in sight."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __del__(self) -> None:
        self._worker.close()

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what was not begun; the loop ends."""
        self._worker.close()

    async def aclose(self) -> None:
        self._worker.close()


class Poll(Polling):
    """`async for task in queue.poll(): …`"""

    async def __anext__(self) -> Task:
        taken = await self._worker.take_up_to(1)
        if not taken:
            raise StopAsyncIteration
        return taken[0]


class PollMany(Polling):
    """`async for tasks in queue.poll_many(100): …`"""

    def __init__(self, worker: Worker, count: int) -> None:
        super().__init__(worker)
        self._count = count

    async def __anext__(self) -> list[Task]:
        taken = await self._worker.take_up_to(self._count)
        if not taken:
            raise StopAsyncIteration
        return taken
