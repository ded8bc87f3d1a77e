"""Which tasks have a priority or a retry schedule of their own."""

from typing import Final, NamedTuple

from busnode.tasks.ranges import Numbers
from busnode.wire.retry_schedule import Schedule

SETS_MAX: Final = 32
"""Different traits whose tasks are kept as sets of numbers, a bit for each: a program that enqueues
uses a few. Of what goes beyond, each task takes an entry in a table."""


class Traits(NamedTuple):
    priority: int = 0
    retry: Schedule | None = None


PLAIN: Final = Traits()


class TraitTable:
    """Tasks that have none cost nothing."""

    def __init__(self) -> None:
        self._sets: dict[Traits, Numbers] = {}
        self._others: dict[int, Traits] = {}

    def put(self, number: int, traits: Traits) -> None:
        if traits == PLAIN:
            return
        numbers = self._sets.get(traits)
        if numbers is None:
            if len(self._sets) >= SETS_MAX:
                self._others[number] = traits
                return
            numbers = self._sets[traits] = Numbers()
        numbers.add(number)

    def of(self, number: int) -> Traits:
        for traits, numbers in self._sets.items():
            if number in numbers:
                return traits
        return self._others.get(number, PLAIN)

    def forget(self, first: int, last: int) -> None:
        """They are finished."""
        for traits in list(self._sets):
            numbers = self._sets[traits]
            if numbers.discard_run(first, last) and not numbers:
                del self._sets[traits]
        if self._others:
            for number in range(first, last + 1):
                self._others.pop(number, None)
