"""The ways between simulated hosts, one for each direction: how long they take, and which are cut.

Several things may be wrong with a way at once, and each ends by itself: so each has a cause, a
word of whoever did it, and a way is open when the last cause is gone.
"""

import math
from dataclasses import dataclass
from typing import Final

import trio

from busnode.testing.sim.entropy import SimEntropy

Way = tuple[str, str]
"""From a host, to a host."""

LATENCY_S: Final = (0.0001, 0.001)
"""The shortest and the longest time on the way: a local network."""

RESENT_S: Final = (0.2, 3.0)
"""How much later something arrives that was lost once or more: TCP sends it again."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a way that is not cut."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    """Added to all that goes there: the least and the most."""
    loss: float = 0.0
    """How much of what goes there is lost and sent again."""


class Ways:
    def __init__(self, entropy: SimEntropy, latency_s: tuple[float, float]) -> None:
        self.latency_s = latency_s
        self._entropy = entropy
        self._cuts: dict[Way, dict[str, None]] = {}
        self._troubles: dict[Way, dict[str, Trouble]] = {}

    def cut(self, way: Way, cause: str) -> bool:
        """Whether it was open before."""
        causes = self._cuts.setdefault(way, {})
        causes[cause] = None
        return len(causes) == 1

    def mend(self, way: Way, cause: str) -> bool:
        """Whether it is open now and was not before."""
        causes = self._cuts.get(way)
        if causes is None or cause not in causes:
            return False
        del causes[cause]
        if causes:
            return False
        del self._cuts[way]
        return True

    def cut_for(self, cause: str) -> list[Way]:
        return [way for way, causes in self._cuts.items() if cause in causes]

    @property
    def all_cut(self) -> list[tuple[Way, list[str]]]:
        return [(way, list(causes)) for way, causes in self._cuts.items()]

    def trouble(self, way: Way, cause: str, trouble: Trouble) -> None:
        self._troubles.setdefault(way, {})[cause] = trouble

    def relieve(self, cause: str) -> None:
        """No way has this trouble any more."""
        for way, troubles in list(self._troubles.items()):
            troubles.pop(cause, None)
            if not troubles:
                del self._troubles[way]

    def arrival(self, sender: str, receiver: str) -> float:
        """When something that is sent now arrives; `math.inf` where the way is cut."""
        way = sender, receiver
        if self._cuts and way in self._cuts:
            return math.inf
        due = trio.current_time() + self._entropy.between(*self.latency_s)
        if self._troubles:
            for trouble in self._troubles.get(way, {}).values():
                due += self._entropy.between(*trouble.delay_s)
                if self._entropy.chance(trouble.loss):
                    due += self._entropy.between(*RESENT_S)
        return due
