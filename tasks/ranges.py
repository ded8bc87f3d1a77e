"""Sets of numbers that lie close together: a bit for each, 1024 of them in one integer.

Runs as pairs were the first idea. They are smaller when all is in order; but a million delayed
tasks that end at random are half a million runs, and each new end moves megabytes of list. Bits
cost the same however the numbers lie, and a whole run is as cheap as one number.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

Run = tuple[int, int]
"""Numbers from the first to the last, both included."""

SHIFT: Final = 10
CHUNK: Final = 1 << SHIFT
FULL: Final = (1 << CHUNK) - 1


def runs_of(numbers: Iterable[int]) -> tuple[Run, ...]:
    """The same numbers as runs; they may come in any order, each but once."""
    ordered = sorted(numbers)
    if not ordered:
        return ()
    first = ordered[0]
    if ordered[-1] - first == len(ordered) - 1:
        return ((first, ordered[-1]),)
    runs: list[Run] = []
    last = first
    for number in ordered:
        if number > last + 1:
            runs.append((first, last))
            first = number
        last = number
    runs.append((first, last))
    return tuple(runs)


def bit_runs(bits: int, base: int) -> Iterator[Run]:
    """The runs of ones in one integer, whose lowest bit stands for `base`."""
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        base += zeros
        yield base, base + ones - 1
        bits >>= ones
        base += ones


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """The same in ascending order with those that touch each other made one."""
    held: Run | None = None
    for first, last in runs:
        if held is not None and held[1] + 1 == first:
            held = held[0], last
            continue
        if held is not None:
            yield held
        held = first, last
    if held is not None:
        yield held


class Numbers:
    """A set. Measured: a number 0.2 µs to add, to find or to remove; a run of 1000 the same."""

    __slots__ = ("_bits", "_count", "_order")

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._order: list[int] = []
        """A heap of the chunks that are there, and some that were."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return self._bits.get(number >> SHIFT, 0) >> (number & (CHUNK - 1)) & 1 == 1

    def bits(self, chunk: int) -> int:
        """Those of one chunk: the lowest bit stands for chunk * CHUNK."""
        return self._bits.get(chunk, 0)

    @property
    def chunk_count(self) -> int:
        """What it takes of memory."""
        return len(self._bits)

    @property
    def chunks(self) -> list[int]:
        return sorted(self._bits)

    def add(self, number: int) -> None:
        self._set(number >> SHIFT, 1 << (number & (CHUNK - 1)))

    def discard(self, number: int) -> bool:
        """Whether it was there."""
        return self._clear(number >> SHIFT, 1 << (number & (CHUNK - 1))) == 1

    def add_run(self, first: int, last: int) -> None:
        for chunk, mask in _masks(first, last):
            self._set(chunk, mask)

    def add_all(self, others: "Numbers") -> None:
        for chunk, mask in others._bits.items():
            self._set(chunk, mask)

    def discard_run(self, first: int, last: int) -> int:
        """How many of them were there."""
        return sum(self._clear(chunk, mask) for chunk, mask in _masks(first, last))

    def first(self) -> int | None:
        """The lowest."""
        chunk = self._lowest()
        if chunk is None:
            return None
        bits = self._bits[chunk]
        return (chunk << SHIFT) + (bits & -bits).bit_length() - 1

    def take(self, count: int) -> list[Run]:
        """Remove that many, the lowest first."""
        taken: list[Run] = []
        while count > 0:
            chunk = self._lowest()
            if chunk is None:
                break
            for first, last in bit_runs(self._bits[chunk], chunk << SHIFT):
                end = min(last, first + count - 1)
                taken.append((first, end))
                self._clear(chunk, _mask(first, end))
                count -= end - first + 1
                if count == 0:
                    break
        return list(joined(taken))

    def runs(self) -> Iterator[Run]:
        """All of them, ascending. Chunks that change meanwhile are told as they are then."""
        return joined(
            run for chunk in self.chunks for run in bit_runs(self.bits(chunk), chunk << SHIFT)
        )

    def _lowest(self) -> int | None:
        order = self._order
        while order and order[0] not in self._bits:
            heappop(order)
        return order[0] if order else None

    def _set(self, chunk: int, mask: int) -> None:
        old = self._bits.get(chunk)
        if old is None:
            heappush(self._order, chunk)
            self._bits[chunk] = mask
            self._count += mask.bit_count()
        else:
            new = old | mask
            self._bits[chunk] = new
            self._count += (new ^ old).bit_count()

    def _clear(self, chunk: int, mask: int) -> int:
        old = self._bits.get(chunk, 0)
        there = old & mask
        if not there:
            return 0
        if there == old:
            del self._bits[chunk]
        else:
            self._bits[chunk] = old ^ there
        count = there.bit_count()
        self._count -= count
        return count


class Prefix:
    """A set that grows from 1 on and has few holes: all below the floor, and some above it."""

    __slots__ = ("above", "floor")

    def __init__(self) -> None:
        self.floor = 1
        """The lowest number that is not there."""
        self.above = Numbers()

    def __len__(self) -> int:
        return self.floor - 1 + len(self.above)

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self.above

    def runs(self) -> Iterator[Run]:
        below = [(1, self.floor - 1)] if self.floor > 1 else []
        return joined([*below, *self.above.runs()])

    def bits(self, chunk: int) -> int:
        base = chunk << SHIFT
        if base + CHUNK <= self.floor:
            bits = FULL
        else:
            below = (1 << self.floor - base) - 1 if base < self.floor else 0
            bits = self.above.bits(chunk) | below
        return bits if chunk else bits & ~1  # there is no number 0

    def add_run(self, first: int, last: int) -> None:
        if first > self.floor:
            self.above.add_run(first, last)
            return
        if last < self.floor:
            return
        floor = last + 1
        self.above.discard_run(self.floor, last)
        while ones := _ones_from(self.above.bits(floor >> SHIFT), floor & (CHUNK - 1)):
            self.above.discard_run(floor, floor + ones - 1)
            floor += ones
        self.floor = floor


def _ones_from(bits: int, place: int) -> int:
    bits >>= place
    return (~bits & (bits + 1)).bit_length() - 1


def _mask(first: int, last: int) -> int:
    """The bits of numbers in one chunk."""
    return ((1 << last - first + 1) - 1) << (first & (CHUNK - 1))


def _masks(first: int, last: int) -> Iterator[tuple[int, int]]:
    chunk, end = first >> SHIFT, last >> SHIFT
    while chunk < end:
        stop = (chunk + 1 << SHIFT) - 1
        # Whole chunks share one integer: so a long run costs little memory.
        yield chunk, FULL if not first & (CHUNK - 1) else _mask(first, stop)
        first = stop + 1
        chunk += 1
    if first <= last:
        yield chunk, _mask(first, last)
