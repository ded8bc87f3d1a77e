"""What is known of a task that is not as it was enqueued."""

from typing import Final, NamedTuple

from busnode.wire.carried_task import HISTORY_MAX, Attempt, Carried

DEAD: Final = -1
"""In place of a due time: there will be no further attempt."""


class Row(NamedTuple):
    """Most tasks have none: they are given out once and completed."""

    attempts: int
    """Those that have failed since it was enqueued, or requeued."""
    due_us: int
    """Not before this utc; 0 when it may be given out at once."""
    dead_us: int | None
    """Since when it is a dead letter."""
    history: tuple[Attempt, ...]

    def failed(self, attempts: int, due_us: int, at_us: int, why: Attempt) -> "Row":
        """The same after another attempt that failed; with `DEAD` as due time it was the last."""
        history = (*self.history, why)[-HISTORY_MAX:]
        if due_us == DEAD:
            return Row(attempts, 0, at_us, history)
        return Row(attempts, due_us, None, history)

    def requeued(self) -> "Row":
        """A dead letter that is a task again: all attempts are before it, and it keeps its past."""
        return Row(0, 0, None, self.history)


UNTOUCHED: Final = Row(0, 0, None, ())


def row_of(carried: Carried) -> Row | None:
    """None when it has never failed: then its record alone says all."""
    if carried.attempts or carried.history or carried.dead_us is not None:
        return Row(carried.attempts, carried.due_us, carried.dead_us, carried.history)
    return None
