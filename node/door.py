"""A listener's door: who is let in, and who has not said who it is yet.

Refusing is cheap: one look at a table, one frame if the socket takes it, and nothing is kept. Those
who were let in and do not greet are bounded in number; when there are too many, who has waited the
longest goes, so that one who greets at once gets in whatever a flood does.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from busnode.node.event_kinds import LIMITED
from busnode.node.events import Tell
from busnode.node.memory_budget import MemoryBudget
from busnode.node.receipts import encode_refusal
from busnode.node.turn import Turn
from busnode.security.quotas import Arrivals
from busnode.wire.errors import BusnodeError, LimitReached
from busnode.world.clock import Clock
from busnode.world.network import Stream

HALF_OPEN: Final = "connections that had not greeted were let go: --half-open-max"


class Guest(Protocol):
    """A connection that was let in."""

    def close(self) -> None:
        """End it at once."""
        ...


class Door:
    """One of several of a node, which count addresses together."""

    def __init__(
        self,
        name: str,
        arrivals: Arrivals,
        clock: Clock,
        half_open_max: int,
        budget: MemoryBudget,
        tell: Tell,
        turn: Turn,
        say: Callable[[BusnodeError], bytes] | None = None,
    ) -> None:
        """`say` puts a refusal into words of the listener's own, if they are not frames."""
        self.name = name
        self.turn = turn
        """All doors of a node have the same."""
        self._say = say or _frame
        self.refused = 0
        self.pushed_out = 0
        """Connections that had not greeted and had to go for newer ones."""
        self._arrivals = arrivals
        self._clock = clock
        self._half_open_max = half_open_max
        self._budget = budget
        self._tell = tell
        self._half_open: dict[Guest, None] = {}

    @property
    def half_open(self) -> int:
        """Connections that have not greeted yet."""
        return len(self._half_open)

    def lets_in(self, stream: Stream) -> bool:
        """Whether somebody may come in; then it is counted until it leaves. Otherwise it is told
        why, and its stream is closed."""
        error: LimitReached | None
        if self._budget.is_full:
            error = LimitReached(
                f"this node keeps {self._budget.used_bytes:,} bytes for others and takes nobody "
                "new meanwhile: --memory-max",
                retry_after_s=1.0,
            )
        else:
            error = self._arrivals.come(stream.peer.host, self._clock.monotonic())
        if error is None:
            return True
        self.refused += 1
        self._tell(LIMITED, door=self.name, why=error)
        _send_last(stream, self._say(error))
        return False

    def wait_for(self, guest: Guest) -> None:
        """It has yet to greet."""
        self._half_open[guest] = None
        if len(self._half_open) > self._half_open_max:
            oldest = next(iter(self._half_open))
            del self._half_open[oldest]
            self.pushed_out += 1
            self._tell(LIMITED, door=self.name, why=HALF_OPEN)
            oldest.close()

    def greeted(self, guest: Guest) -> None:
        self._half_open.pop(guest, None)

    def left(self, host: str, guest: Guest | None = None) -> None:
        """One that was let in is gone."""
        if guest is not None:
            self._half_open.pop(guest, None)
        self._arrivals.leave(host)


def turn_away(stream: Stream, error: BusnodeError) -> None:
    """Say why, if it can be said in one go, and close."""
    _send_last(stream, _frame(error))


def _frame(error: BusnodeError) -> bytes:
    return encode_refusal(error, None, None)


def _send_last(stream: Stream, data: bytes) -> None:
    with suppress(OSError):
        stream.send(data)
    stream.close()
