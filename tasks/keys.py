"""Keys of tasks that were enqueued a short while ago: a task with one of them is a repeat.

They are not in the journal: whoever goes on with a queue knows those of its unfinished tasks, and
does what is a repeat of a finished one again.
"""

from itertools import islice
from typing import Final

KEYS_MAX: Final = 1_000_000
"""About 200 MiB. The oldest are forgotten: their repeats are done twice, as without keys."""


class Keys:
    """It knows no clock: it is told the time."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._over_us: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._over_us)

    def is_repeat(self, key: str, enqueued_us: int) -> bool:
        return self._over_us.get(key, 0) > enqueued_us

    def remember(self, key: str, over_us: int) -> None:
        """Until then another task with this key is a repeat."""
        over_us = max(over_us, self._over_us.pop(key, 0))
        self._over_us[key] = over_us
        if len(self._over_us) > self._keys_max:
            del self._over_us[next(iter(self._over_us))]

    def forget(self, now_us: int) -> None:
        """Those that are over. It looks at the oldest: one with a long window keeps younger ones
        in memory, and never more than the limit."""
        over: list[str] = []
        for key, over_us in islice(self._over_us.items(), 10_000):
            if over_us > now_us:
                break
            over.append(key)
        for key in over:
            del self._over_us[key]
