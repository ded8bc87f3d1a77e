"""Task queues for code without async."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import anyio

from busnode.client.blocking_thread import BlockingContext, Thread
from busnode.client.hooks import Hooks
from busnode.client.new_task import Retry, Seconds
from busnode.client.payloads import Payload
from busnode.client.poll import Poll, PollMany
from busnode.client.queue import Queue
from busnode.client.task import LEASE_S, Task, TaskReceipt
from busnode.client.task_admin import DeadLetter, DeadLetters, QueueStatus
from busnode.client.task_event import TaskEvent
from busnode.wire.errors import TimedOut
from busnode.world.real_anyio import run_in_thread

T = TypeVar("T")
H = TypeVar("H", bound=Callable[[TaskEvent], object])


class BlockingTask:
    """See `Task`. `with task:` completes it, or fails it with what was raised."""

    __slots__ = ("_thread", "task")

    def __init__(self, thread: Thread, task: Task) -> None:
        self._thread = thread
        self.task = task

    def __repr__(self) -> str:
        return repr(self.task)

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def queue(self) -> str:
        return self.task.queue

    @property
    def payload(self) -> bytes:
        return self.task.payload

    @property
    def headers(self) -> Mapping[str, str]:
        return self.task.headers

    @property
    def attempt(self) -> int:
        return self.task.attempt

    @property
    def fence(self) -> int:
        return self.task.fence

    @property
    def enqueued(self) -> datetime:
        return self.task.enqueued

    def complete(self) -> str:
        return self._thread.call(self.task.complete)

    def fail(self, error: str | BaseException, *, permanent: bool = False) -> str:
        return self._thread.call(self.task.fail, error, permanent=permanent)

    def extend(self, lease: float = LEASE_S) -> None:
        self._thread.call(self.task.extend, lease)

    def release(self) -> None:
        self._thread.call(self.task.release)

    def __enter__(self) -> "BlockingTask":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self.task.__aexit__, kind, error, traceback)


class BlockingPolling(Generic[T]):
    """`for task in queue.poll(): …`; leaving the loop gives back what was not begun.

    One thread at a time may use it.
    """

    def __init__(self, thread: Thread, poll: Poll | PollMany, wrap: Callable[[Any], T]) -> None:
        self._thread = thread
        self._poll = poll
        self._wrap = wrap

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the loop is over, and with it all polls
            self._thread.start(self._poll.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self.get()

    def get(self, timeout: float | None = None) -> T:
        """The next; TimedOut when none came in `timeout` seconds, and nothing is lost.
        StopIteration when it is closed."""
        return self._wrap(self._thread.call(self._next, timeout))

    async def _next(self, timeout: float | None) -> Any:
        with anyio.move_on_after(timeout):
            try:
                return await anext(self._poll)
            except StopAsyncIteration:
                return None
        raise TimedOut(f"no task in {timeout:g} s")

    def close(self) -> None:
        self._thread.call(self._poll.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class BlockingDeadLetters:
    """See `DeadLetters`."""

    def __init__(self, thread: Thread, dead: DeadLetters) -> None:
        self._thread = thread
        self._dead = dead

    @property
    def silent(self) -> Mapping[str, str]:
        return self._dead.silent

    def show(self, task_id: str) -> DeadLetter | None:
        return self._thread.call(self._dead.show, task_id)

    def requeue(self, *ids: str, payload: Payload | None = None) -> list[str]:
        return self._thread.call(self._dead.requeue, *ids, payload=payload)

    def delete(self, *ids: str) -> list[str]:
        return self._thread.call(self._dead.delete, *ids)

    def purge(self) -> int:
        return self._thread.call(self._dead.purge)

    def list(
        self,
        *,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        return self._thread.call(
            self._dead.list, error=error, since=since, until=until, limit=limit
        )


class BlockingQueue:
    """See `Queue`. Hooks run in worker threads."""

    def __init__(self, thread: Thread, queue: Queue) -> None:
        self.name = queue.name
        self.dead = BlockingDeadLetters(thread, queue.dead)
        self._thread = thread
        self._queue = queue

    def __repr__(self) -> str:
        return repr(self._queue)

    def enqueue(
        self,
        payload: Payload,
        *,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        due: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        window: Seconds | None = None,
        retry: Retry | None = None,
        require: Literal["mirrored"] | None = None,
    ) -> TaskReceipt:
        return self._thread.call(
            self._queue.enqueue,
            payload,
            headers=headers,
            delay=delay,
            due=due,
            priority=priority,
            key=key,
            window=window,
            retry=retry,
            require=require,
        )

    def enqueue_many(
        self,
        payloads: Sequence[Payload],
        *,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        due: datetime | None = None,
        priority: int = 0,
        keys: Sequence[str] | None = None,
        window: Seconds | None = None,
        retry: Retry | None = None,
        require: Literal["mirrored"] | None = None,
    ) -> list[TaskReceipt]:
        return self._thread.call(
            self._queue.enqueue_many,
            payloads,
            headers=headers,
            delay=delay,
            due=due,
            priority=priority,
            keys=keys,
            window=window,
            retry=retry,
            require=require,
        )

    def poll(self, *, lease: float = LEASE_S, prefetch: int = 1) -> BlockingPolling[BlockingTask]:
        poll = self._queue.poll(lease=lease, prefetch=prefetch)
        return BlockingPolling(self._thread, poll, self._task)

    def poll_many(
        self, n: int = 100, *, lease: float = LEASE_S, prefetch: int | None = None
    ) -> BlockingPolling[list[BlockingTask]]:
        poll = self._queue.poll_many(n, lease=lease, prefetch=prefetch)
        return BlockingPolling(self._thread, poll, self._tasks)

    def _task(self, task: Task | None) -> BlockingTask:
        if task is None:
            raise StopIteration
        return BlockingTask(self._thread, task)

    def _tasks(self, tasks: list[Task] | None) -> list[BlockingTask]:
        if tasks is None:
            raise StopIteration
        return [BlockingTask(self._thread, task) for task in tasks]

    def complete(self, tasks: Sequence[BlockingTask]) -> str:
        return self._thread.call(self._queue.complete, _own(tasks))

    def fail(
        self, tasks: Sequence[BlockingTask], error: str | BaseException, *, permanent: bool = False
    ) -> str:
        return self._thread.call(self._queue.fail, _own(tasks), error, permanent=permanent)

    def extend(self, tasks: Sequence[BlockingTask], lease: float = LEASE_S) -> None:
        self._thread.call(self._queue.extend, _own(tasks), lease)

    def release(self, tasks: Sequence[BlockingTask]) -> None:
        self._thread.call(self._queue.release, _own(tasks))

    def on_completed(self, hook: H) -> H:
        self._queue.on_completed(partial(run_in_thread, hook))
        return hook

    def on_failed(self, hook: H) -> H:
        self._queue.on_failed(partial(run_in_thread, hook))
        return hook

    def hooks(self) -> BlockingContext[Hooks]:
        return BlockingContext(self._thread, self._queue.hooks)

    def status(self) -> QueueStatus:
        return self._thread.call(self._queue.status)


def _own(tasks: Sequence[BlockingTask]) -> list[Task]:
    return [each.task for each in tasks]
