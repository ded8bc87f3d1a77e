"""How a service is, judged by its heartbeats. Pure: moments in, changes out."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

State = Literal["healthy", "unresponsive", "dead"]

HEALTHY: Final = "healthy"
UNRESPONSIVE: Final = "unresponsive"
DEAD: Final = "dead"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a service may be silent."""

    unresponsive_s: float = 30.0
    dead_s: float = 120.0

    @property
    def unresponsive_us(self) -> int:
        return round(self.unresponsive_s * 1e6)

    @property
    def dead_us(self) -> int:
        return round(self.dead_s * 1e6)


class Change(NamedTuple):
    """From this moment on a service was so."""

    at_us: int
    state: State
    beat_us: int
    """The last heartbeat before it, or the one that it is."""


@dataclass(slots=True)
class Pulse:
    """One service. What was told is never taken back: a beat that comes late, behind a younger
    one, changes nothing."""

    patience: Patience
    state: State | None = None
    """None before the first beat."""
    beat_us: int = 0
    beats: int = 0

    def beat(self, at_us: int) -> list[Change]:
        changes = self.passed(at_us)
        self.beats += 1
        self.beat_us = max(self.beat_us, at_us)
        if self.state != HEALTHY and at_us == self.beat_us:
            self.state = HEALTHY
            changes.append(Change(at_us, HEALTHY, at_us))
        return changes

    def passed(self, now_us: int) -> list[Change]:
        """Time has come so far without a beat."""
        changes: list[Change] = []
        if self.state == HEALTHY and now_us - self.beat_us >= self.patience.unresponsive_us:
            self.state = UNRESPONSIVE
            at_us = self.beat_us + self.patience.unresponsive_us
            changes.append(Change(at_us, UNRESPONSIVE, self.beat_us))
        if self.state == UNRESPONSIVE and now_us - self.beat_us >= self.patience.dead_us:
            self.state = DEAD
            changes.append(Change(self.beat_us + self.patience.dead_us, DEAD, self.beat_us))
        return changes

    @property
    def next_us(self) -> int | None:
        """When silence makes the next difference; None when it makes none any more."""
        match self.state:
            case "healthy":
                return self.beat_us + self.patience.unresponsive_us
            case "unresponsive":
                return self.beat_us + self.patience.dead_us
            case _:
                return None
