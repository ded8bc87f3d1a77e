"""A task, as a worker holds it."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from busnode.client.messages import EPOCH, NO_HEADERS
from busnode.wire.control import Tasks
from busnode.wire.errors import BadControl, BadTask, BusnodeError
from busnode.wire.ids import BrokerId, MsgNo
from busnode.wire.limits import TEXT_BYTES_MAX

logger = logging.getLogger("busnode.client")

LEASE_S: Final = 20.0
"""How long a worker may take before others get its task."""

LEASE_S_MAX: Final = 24 * 3600.0
"""Who needs longer extends it meanwhile: a worker that died would block its task for so long."""

COMPLETE: Final = "complete"
FAIL: Final = "fail"
REJECT: Final = "reject"
RELEASE: Final = "release"
EXTEND: Final = "extend"


class Reject(Exception):
    """Raised by a worker for a task that must not be tried again: it becomes a dead letter."""


class TaskReceipt(NamedTuple):
    """One task is safe: under this id for good, here, at this level."""

    id: str
    broker_id: BrokerId
    msg_no: MsgNo
    level: str
    """`mirrored` or `local`."""


def receipt_of(broker_id: BrokerId, msg_no: MsgNo, level: str) -> TaskReceipt:
    return TaskReceipt(f"{broker_id.hex()}-{msg_no}", broker_id, msg_no, level)


class Settler(Protocol):
    """Whoever passes on what a worker says of tasks."""

    async def settle(
        self, verb: str, tasks: Sequence["Task"], error: str = "", lease_s: float = 0.0
    ) -> str:
        """Returns when it is so, and durable; at which level. Raises LeaseExpired for what is not
        ours any more."""
        ...

    def let_go(self, tasks: Sequence["Task"]) -> None:
        """Others may have them; nobody waits for an answer."""
        ...


class Task:
    """A task with a lease. Until that ends nobody else has it.

    `async with task:` completes it, or fails it with what was raised, which goes on from there.
    Cancelled, it is given back. What was settled in the block is left at that.

    A wait that is cancelled changes nothing: what was said of the task is on its way all the same.
    """

    __slots__ = (
        "_headers",
        "_settler",
        "attempt",
        "enqueued_us",
        "expires_at",
        "fence",
        "id",
        "number",
        "owner",
        "payload",
        "queue",
        "settled",
    )

    def __init__(
        self,
        settler: Settler,
        queue: str,
        owner: BrokerId,
        expires_at: float,
        number: int,
        id: str,
        fence: int,
        attempt: int,
        enqueued_us: int,
        headers: Mapping[str, str],
        payload: bytes,
    ) -> None:
        self._settler = settler
        self._headers = headers
        self.settled = False
        """Whether this worker has said what becomes of it."""
        self.queue = queue
        self.id = id
        """Given when it was enqueued, and never changed."""
        self.payload = payload
        self.attempt = attempt
        """1 for the first."""
        self.fence = fence
        """Grows with each lease: whoever writes elsewhere can refuse a lower one."""
        self.enqueued_us = enqueued_us
        self.owner = owner
        """Whose it is now; with `number` the place of the task in its log."""
        self.number = number
        self.expires_at = expires_at
        """When the lease ends, by the clock of the event loop."""

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.queue}, attempt {self.attempt}>"

    @property
    def headers(self) -> Mapping[str, str]:
        """The user's own: those that begin with $ are the queue's."""
        if not self._headers:
            return NO_HEADERS
        return {name: value for name, value in self._headers.items() if name[:1] != "$"}

    @property
    def enqueued(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.enqueued_us)

    async def complete(self) -> str:
        """It is done, and never comes again. Returns when that is durable, and at which level:
        `mirrored` or `local`.

        Raises LeaseExpired where somebody else has it by now, or may have.
        """
        return await self._settler.settle(COMPLETE, (self,))

    async def fail(self, error: str | BaseException, *, permanent: bool = False) -> str:
        """It did not work: try again by the queue's schedule; `permanent`: make it a dead letter
        at once. The level, or LeaseExpired, as above."""
        verb = REJECT if permanent else FAIL
        return await self._settler.settle(verb, (self,), error_text(error))

    async def extend(self, lease: float = LEASE_S) -> None:
        """It takes so many seconds more, from now on. LeaseExpired as above."""
        await self._settler.settle(EXTEND, (self,), lease_s=check_lease(lease))

    async def release(self) -> None:
        """Give it back: others may have it at once, and this was no attempt."""
        await self._settler.settle(RELEASE, (self,))

    async def __aenter__(self) -> "Task":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.complete()
        elif isinstance(error, Exception):
            try:
                await self.fail(error, permanent=isinstance(error, Reject))
            except BusnodeError as failure:  # what went wrong first is what somebody must see
                logger.warning("%r could not be failed: %s", self, failure)
        else:
            self._settler.let_go((self,))


def error_text(error: str | BaseException) -> str:
    """What is kept of an error: as much as a frame takes."""
    if isinstance(error, BaseException):
        error = str(error) if isinstance(error, BusnodeError | Reject) else _described(error)
    return error.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_lease(lease: float) -> float:
    """Seconds; BadTask for what no lease can be."""
    if not 0 < lease <= LEASE_S_MAX:
        raise BadTask(f"lease of {lease!r:.40} s; expected more than 0 and at most {LEASE_S_MAX:g}")
    return float(lease)


def tasks_of(message: Tasks, settler: Settler, expires_at: float) -> list[Task]:
    """The tasks in a frame. Raises BadControl when its columns do not fit together."""
    count = len(message.numbers)
    headers = [NO_HEADERS] * count if message.headers is None else message.headers
    columns = (
        message.numbers,
        message.ids,
        message.fences,
        message.attempts,
        message.enqueued_us,
        headers,
        message.payloads,
    )
    if {len(column) for column in columns} - {count}:
        raise BadControl(f"TASKS with columns of {[len(column) for column in columns]} rows")
    queue, owner = message.queue, message.owner
    return [Task(settler, queue, owner, expires_at, *row) for row in zip(*columns, strict=True)]
