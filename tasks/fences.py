"""Fences grow for ever in one queue: blocks of them are reserved in the journal before they are
used, so that whoever goes on after a crash begins above all that were given out."""

from typing import Final

BLOCK: Final = 1_000_000
"""So many at once: at 100,000 tasks a second a record every five seconds."""


class Fences:
    """Of one queue of one owner."""

    def __init__(self, first: int) -> None:
        self.next = first
        self._ceiling = first - 1
        """Durable: up to here they may be given out."""
        self._asked = first - 1

    @property
    def left(self) -> int:
        """How many can be given out now."""
        return max(0, self._ceiling - self.next + 1)

    @property
    def asked(self) -> int:
        """The highest ceiling that was written down."""
        return self._asked

    def take(self, count: int) -> range:
        assert count <= self.left
        first = self.next
        self.next += count
        return range(first, self.next)

    def skip_to(self, fence: int) -> None:
        """Others, up to this one, may have been given out by somebody who had the tasks before."""
        self.next = max(self.next, fence + 1)

    def reserve(self) -> int | None:
        """The ceiling that is to be written down, if it is time for that."""
        if self._asked - self.next + 1 >= BLOCK // 2:
            return None
        self._asked = self.next - 1 + BLOCK
        return self._asked

    def grant(self, ceiling: int) -> None:
        """It is durable."""
        self._ceiling = max(self._ceiling, ceiling)
