"""How long to wait before trying to connect again."""

from typing import Final

FIRST_S: Final = 0.05
"""A node that restarts is back within half a second: the first tries should find it so."""

MOST_S: Final = 5.0
"""A cluster that was away for an hour is found again within this time."""

STEADY_S: Final = 5.0
"""A connection that lived this long was a good one: what broke it is taken for a new fault."""


class Backoff:
    """Doubles the wait with each failure, and spreads it so that clients do not come all at once.

    It knows no clock and draws nothing: both are told.
    """

    def __init__(self) -> None:
        self._failures = 0

    def failed(self, draw: float) -> float:
        """Nobody could be reached. How long to wait, with `draw` from [0, 1)."""
        whole = min(MOST_S, FIRST_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 32)
        return whole * (0.5 + draw / 2)

    def lost(self, lived_s: float, draw: float) -> float:
        """A connection broke. One that had lived is replaced at once; a short one counts as a
        failure, or a node that accepts and hangs up would be dialled in a tight loop."""
        if lived_s >= STEADY_S:
            self._failures = 0
            return 0.0
        return self.failed(draw)
