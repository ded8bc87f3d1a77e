"""A worker: asks its home for tasks, holds those that have come, and asks again at every new home.

It says how many tasks it can take, and no more ever come than that. Those count against it that
wait here and those that the loop has in hand, until it asks for the next. A loop that does asks
along with what it says of the one in hand, so that the next comes with the answer.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import anyio.lowlevel

from busnode.client.bell import Bell
from busnode.client.patience import Patience
from busnode.client.refusal import again
from busnode.client.settling import Settling
from busnode.client.task import COMPLETE, FAIL, REJECT, Task, tasks_of
from busnode.wire.control import Control, TaskPoll, Tasks
from busnode.wire.errors import BadControl, BusnodeError
from busnode.world.clock import Clock

PREFETCH_MAX: Final = 10_000
"""Tasks that one worker may hold: each has a lease that runs."""


PROMPT_S: Final = 0.05
"""A loop that asked so soon after it had settled a task will most likely do so again."""

ENDS: Final = (COMPLETE, FAIL, REJECT)


class WorkerHost(Protocol):
    """What a worker asks of its bus."""

    clock: Clock
    patience: Patience
    settling: Settling

    def send(self, message: Control) -> bool: ...

    def poll(self, worker: "Worker") -> None:
        """Ask the home for tasks under a new number, now or as soon as there is one."""
        ...

    def end_poll(self, worker: "Worker") -> None: ...


class Worker:
    """The poll of one queue. Begun by the first `take_up_to`, ended by `close`."""

    def __init__(
        self, host: WorkerHost, queue: str, lease_s: float, prefetch: int, identity: tuple[int, str]
    ) -> None:
        self.queue = queue
        self.number = 0
        """Under which the home knows it now; the bus gives it."""
        self.received = 0
        self.expired = 0
        """Tasks whose leases ended here before the loop came to them."""
        self._host = host
        self._lease_s = lease_s
        self._prefetch = prefetch
        self._identity = identity
        self._bell = Bell()
        self._waiting: deque[Task] = deque()
        self._in_hand: list[Task] = []
        self._settled_at: float | None = None
        """When the loop had its answer about the one in hand."""
        self._is_prompt = False
        self._is_known = False
        """Whether the home knows the number."""
        self._asked = 0
        """Tasks that the home may still send."""
        self._open = False
        self._left = self._closed = False
        self._error: BusnodeError | None = None

    # For the loop ---------------------------------------------------------------------------------

    async def take_up_to(self, count: int) -> list[Task]:
        """The next tasks, at least one; those of before are not in hand any more.

        Empty when this is closed. Cancelled, it has taken nothing. Raises what the poll was refused
        with, and Disconnected when the bus is closed.
        """
        self._in_hand = []
        if self._settled_at is not None:  # so it has waited for the answer
            self._is_prompt = self._host.clock.monotonic() - self._settled_at <= PROMPT_S
            self._settled_at = None
        elif self._waiting:
            await anyio.lowlevel.checkpoint()  # else it waits below
        if not (self._open or self._left):
            self._host.patience.check()
            self._open = True
            self._host.poll(self)
        while not self._waiting or self._has_expired():
            if self._closed:
                return []
            self._check()
            self._ask()
            await self._bell.wait()
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self._in_hand = taken
        self._ask()
        return taken

    async def settle(
        self, verb: str, tasks: Sequence[Task], error: str = "", lease_s: float = 0.0
    ) -> str:
        """What is said of one of its tasks. The next comes with the answer where the loop waits for
        that one alone, and was seen to come back at once: a lease must not run while it sleeps."""
        settling = self._host.settling
        if verb not in ENDS or len(tasks) != 1 or self._in_hand != [tasks[0]]:
            return await settling.settle(verb, tasks, error, lease_s)
        level = await settling.settle(verb, tasks, error, lease_s, self)
        self._settled_at = self._host.clock.monotonic()
        return level

    def let_go(self, tasks: Sequence[Task]) -> None:
        self._host.settling.let_go(tasks)

    # Along with what is said of the one in hand ---------------------------------------------------

    def ask_along(self) -> int:
        if self._left or self._error is not None or not (self._is_known and self._is_prompt):
            return 0
        want = max(0, self._room() + len(self._in_hand))
        self._asked += want
        return want

    def not_asked(self, want: int) -> None:
        self._asked -= min(want, self._asked)
        self._bell.ring()

    def close(self) -> None:
        """End the loop, and give back what it has not begun."""
        self.leave()
        self._closed = True
        self._bell.ring()

    def leave(self) -> None:
        """Ask for no more, and give back what the loop has not begun. The bus is closing."""
        if self._open and not self._left:
            self._host.end_poll(self)
            self._host.settling.let_go(list(self._waiting))
        self._left = True
        self._waiting.clear()

    def _check(self) -> None:
        self._host.patience.check()
        if self._error is not None:
            raise again(self._error)

    def _has_expired(self) -> bool:
        """Whether all that waited here has; somebody else has those tasks, or will have."""
        now = self._host.clock.monotonic()
        while self._waiting and self._waiting[0].expires_at <= now:
            self._waiting.popleft()
            self.expired += 1
        return not self._waiting

    def _ask(self) -> None:
        """Say that there is room again, when that is worth a frame."""
        want = self._room()
        if want > 0 and (want * 2 >= self._prefetch or not (self._asked or self._waiting)):
            self._host.send(self.request())

    def _room(self) -> int:
        if self._error is not None or self._left:
            return 0
        return self._prefetch - len(self._waiting) - len(self._in_hand) - self._asked

    # What the bus brings --------------------------------------------------------------------------

    def request(self, *, anew: bool = False, ending: bool = False) -> TaskPoll:
        """What to ask the home for; `anew` at one that knows nothing of us."""
        if anew:
            self._asked = 0
        want = 0 if ending else self._room()
        self._asked += want
        self._is_known = want > 0 or (self._is_known and not anew)
        identity, name = self._identity
        return TaskPoll(self.number, self.queue, want, self._lease_s, identity, name)

    def take(self, message: Tasks) -> None:
        """Raises BadControl for what was not asked for."""
        count = len(message.numbers)
        if count > self._asked or message.queue != self.queue:
            raise BadControl(
                f"{count} tasks of {message.queue}; {self._asked} of {self.queue} were asked for"
            )
        expires_at = self._host.clock.monotonic() + self._lease_s
        self._waiting += tasks_of(message, self, expires_at)
        self._asked -= count
        self.received += count
        self._bell.ring()

    def failed(self, error: BusnodeError) -> None:
        """It was refused: whoever polls learns it when nothing waits here."""
        self._error = error
        self._bell.ring()

    def left(self) -> None:
        """The home is gone. The next one knows nothing of this before it is asked."""
        self._is_known = False

    def ring(self) -> None:
        self._bell.ring()
