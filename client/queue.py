"""A task queue, as whoever enqueues and whoever works has it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from busnode.client.everyone import Everyone
from busnode.client.hooks import HookHost, Hooks
from busnode.client.new_task import (
    Retry,
    Seconds,
    Wishes,
    check_payload,
    parse_retry,
)
from busnode.client.outgoing import Outgoing
from busnode.client.payloads import Payload
from busnode.client.poll import Poll, PollMany
from busnode.client.publisher import Publisher
from busnode.client.receipts import Receipts
from busnode.client.subscription import Subscription
from busnode.client.task import (
    COMPLETE,
    EXTEND,
    FAIL,
    LEASE_S,
    REJECT,
    RELEASE,
    Task,
    TaskReceipt,
    check_lease,
    error_text,
    receipt_of,
)
from busnode.client.task_admin import DeadLetters, QueueStatus, queue_status
from busnode.client.task_event import COMPLETED, FAILED, Hook
from busnode.client.worker import PREFETCH_MAX, Worker, WorkerHost
from busnode.wire.control import Hello
from busnode.wire.errors import BadTask
from busnode.wire.ids import MsgNo
from busnode.wire.task_options import check_queue
from busnode.wire.topics import check_topic

H = TypeVar("H", bound=Hook)

TOPIC: Final = "/$task/{}"

AT_ONCE: Final = 32_768
"""Tasks of one `enqueue_many` between two flushes: fewer than a publisher keeps receipts for,
however many others enqueue between."""


class QueueHost(WorkerHost, HookHost, Protocol):
    """What a queue asks of its bus."""

    outgoing: Outgoing
    hello: Hello


class Queue:
    """`bus.queue(name)`. It costs nothing to have; the first task makes the queue."""

    def __init__(
        self,
        host: QueueHost,
        everyone: Everyone[Any],
        subscribe: Callable[[str], Subscription],
        name: str,
        retry: Retry | None,
    ) -> None:
        self.name = check_queue(name)
        self._topic = check_topic(TOPIC.format(name))
        self._host = host
        self._everyone = everyone
        self._subscribe = subscribe
        self._retry = None if retry is None else parse_retry(retry)
        self._hooks: dict[str, list[Hook]] = {COMPLETED: [], FAILED: []}
        self.dead = DeadLetters(everyone, name)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # Enqueueing -----------------------------------------------------------------------------------

    async def enqueue(
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
        """Add a task; returns when it is as safe as an acked message, because it is one.

        It is due `delay` after that, or at `due`. Of those that are due a higher `priority`, from
        -9 to 9, comes first. A task with a `key` that was enqueued within `window` before (five
        minutes if nothing is said) is dropped. `retry` goes before the queue's own schedule.

        BadTask for options that cannot be: then nothing was sent. Cancelled and disconnected it is
        as `publish`: the task is on its way all the same.
        """
        check_payload(payload)
        wishes = Wishes(
            headers=headers,
            delay=delay,
            due=due,
            priority=priority,
            key=key,
            window=window,
            retry=self._retry if retry is None else retry,
        )
        written = wishes.as_headers()
        outgoing = self._host.outgoing
        lane = outgoing.batching.lane(self._topic, True, "global", require)
        batch = await outgoing.admit(lane, lane.plain, payload, written)
        index = len(batch.payloads) - 1
        await outgoing.wait(batch)
        return receipt_of(batch.broker_id, MsgNo(batch.first_no + index), batch.level)

    async def enqueue_many(
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
        """As `enqueue` for each, pipelined, with the same options but for `keys`, one a task. The
        receipts stand in the order of the payloads.

        When a task is refused those before it may have been taken; the error says which were not.
        """
        for payload in payloads:
            check_payload(payload)
        wishes = Wishes(
            headers=headers,
            delay=delay,
            due=due,
            priority=priority,
            window=window,
            retry=self._retry if retry is None else retry,
        )
        shared = wishes.as_headers()
        if keys is not None and len(keys) != len(payloads):
            raise BadTask(f"{len(keys)} keys for {len(payloads)} payloads; expected one for each")
        each = [replace(wishes, key=key).as_headers() for key in keys or ()]
        lane = self._host.outgoing.batching.lane(self._topic, True, "global", require)
        out = Publisher(self._topic, lane, self._host.outgoing)
        receipts: list[TaskReceipt] = []
        for at in range(0, len(payloads), AT_ONCE):
            part = payloads[at : at + AT_ONCE]
            if not each:
                await out.send_many(part, headers=shared)
            else:
                for payload, own in zip(part, each[at:], strict=False):
                    await out.send(payload, headers=own)
            receipts += _receipts(await out.flush())
        return receipts

    # Working --------------------------------------------------------------------------------------

    def poll(self, *, lease: float = LEASE_S, prefetch: int = 1) -> Poll:
        """Tasks one by one, as they come: `async for task in queue.poll(): …`

        A task is this worker's for `lease` seconds from the moment it was given out. `prefetch` is
        how many are given out ahead, the one that the loop has in hand included: with 1 the next
        is asked for when the loop asks. Leaving the loop gives back what it has not begun.
        """
        return Poll(self._worker(lease, prefetch))

    def poll_many(
        self, n: int = 100, *, lease: float = LEASE_S, prefetch: int | None = None
    ) -> PollMany:
        """Lists of 1 to `n` tasks, as they come; otherwise as `poll`.

        Without `prefetch` the next are asked for when the loop asks; with 2 * n they come while it
        works.
        """
        if type(n) is not int or not 1 <= n <= PREFETCH_MAX:
            raise BadTask(f"lists of {n!r:.40} tasks; expected 1 to {PREFETCH_MAX}")
        return PollMany(self._worker(lease, n if prefetch is None else prefetch), n)

    def _worker(self, lease: float, prefetch: int) -> Worker:
        if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
            raise BadTask(f"prefetch of {prefetch!r:.40} tasks; expected 1 to {PREFETCH_MAX}")
        hello = self._host.hello
        identity = (hello.producer_id, hello.name)
        return Worker(self._host, self.name, check_lease(lease), prefetch, identity)

    async def complete(self, tasks: Sequence[Task]) -> str:
        """All of them are done; returns when that is durable, and at which level.

        Raises NotSettled, a LeaseExpired, with the `tasks` that are not this worker's any more; the
        others are complete.
        """
        return await self._host.settling.settle(COMPLETE, tasks)

    async def fail(
        self, tasks: Sequence[Task], error: str | BaseException, *, permanent: bool = False
    ) -> str:
        """As `Task.fail` for each of them."""
        verb = REJECT if permanent else FAIL
        return await self._host.settling.settle(verb, tasks, error_text(error))

    async def extend(self, tasks: Sequence[Task], lease: float = LEASE_S) -> None:
        """As `Task.extend` for each of them."""
        await self._host.settling.settle(EXTEND, tasks, lease_s=check_lease(lease))

    async def release(self, tasks: Sequence[Task]) -> None:
        """As `Task.release` for each of them."""
        await self._host.settling.settle(RELEASE, tasks)

    # What becomes of tasks ------------------------------------------------------------------------

    def on_completed(self, hook: H) -> H:
        """A decorator: the function, async or not, is called with a TaskEvent for each task of this
        queue that is completed, by whomever, while `async with queue.hooks():` runs."""
        self._hooks[COMPLETED].append(hook)
        return hook

    def on_failed(self, hook: H) -> H:
        """Likewise for each that becomes a dead letter."""
        self._hooks[FAILED].append(hook)
        return hook

    def hooks(self) -> Hooks:
        """`async with queue.hooks(): …` calls the registered hooks while the block runs."""
        return Hooks(self._host, self._subscribe, self.name, self._hooks)

    async def status(self) -> QueueStatus:
        """How many tasks there are and in which state, on all nodes together."""
        return await queue_status(self._everyone, self.name)


def _receipts(receipts: Receipts) -> list[TaskReceipt]:
    return [receipt_of(*receipt) for receipt in receipts]
