"""A queue in numbers."""

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Since the owner has the queue."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    """Attempts that have failed, or whose lease ran out."""
    expired: int = 0
    """Of these, leases that ran out."""
    dead: int = 0
    repeated: int = 0
    """Tasks that were dropped because their key, or they themselves, were there already."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A queue at one moment."""

    ready: int
    delayed: int
    retrying: int
    leased: int
    settling: int
    dead: int
    enqueued_total: int
    completed_total: int
    failed_total: int
    expired_total: int
    dead_total: int
    repeated_total: int
    oldest_enqueued_us: int | None
    """When that one of the tasks was enqueued which comes first in the log; no dead letter."""
    first_due_us: int | None
    """When a task that waits is due next."""
    floor: int
    """The first number that is not finished."""
    extent: int
    """The last number there is."""
    fence: int
    """The last fence that was given out."""

    @property
    def unfinished(self) -> int:
        """All but dead letters."""
        return self.ready + self.delayed + self.retrying + self.leased + self.settling
