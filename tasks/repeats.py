"""What workers said a short while ago: they say it again when an answer was lost on its way."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

REPEATS_MAX: Final = 100_000


class Repeats:
    """The numbers of tasks that were settled, by fence; the oldest are forgotten."""

    def __init__(self, count_max: int = REPEATS_MAX) -> None:
        self._count_max = count_max
        self._numbers: dict[int, int] = {}

    def remember(self, settled: Iterable[tuple[int, int]]) -> None:
        """Fences with numbers."""
        self._numbers.update(settled)
        spare = len(self._numbers) - self._count_max
        if spare > 0:
            for fence in list(islice(self._numbers, spare)):
                del self._numbers[fence]

    def is_repeat(self, number: int, fence: int) -> bool:
        return self._numbers.get(fence) == number
