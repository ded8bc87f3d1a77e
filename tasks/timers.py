"""Which task is due when: a heap."""

from heapq import heappop, heappush
from typing import Final

_NUMBER_BITS: Final = 64
_NUMBER: Final = (1 << _NUMBER_BITS) - 1


class Timers:
    """Due times with numbers of tasks. An entry is one integer, the time above the number: 56 bytes
    with its place in the heap, against 144 for a pair, and there may be a million. Nothing is taken
    out before it is due; whoever takes it looks whether it still matters."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_us(self) -> int | None:
        return self._heap[0] >> _NUMBER_BITS if self._heap else None

    def push(self, due_us: int, number: int) -> None:
        heappush(self._heap, due_us << _NUMBER_BITS | number)

    def take(self, now_us: int, count_max: int) -> list[int]:
        """The numbers that are due, in the order in which they were."""
        taken: list[int] = []
        heap = self._heap
        while heap and heap[0] >> _NUMBER_BITS <= now_us and len(taken) < count_max:
            taken.append(heappop(heap) & _NUMBER)
        return taken
