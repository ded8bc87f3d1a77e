"""Planted bugs: what the checkers must find, so that a run that finds nothing says something.

A mutant changes production classes while it is applied, from outside: production code has no
switches. It names the faults that make it likely to show.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from busnode.testing.sim.schedule import Profile

SEEDS_MAX: Final = 50
"""Within so many seeds each must be found."""


class Patch:
    """Replaces attributes, and puts them back."""

    def __init__(self, mutant: str) -> None:
        self._mutant = mutant
        self.planted: list[tuple[Any, str, Any]] = []
        """Where, and what was there before."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        self.planted.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def is_named_in(self, error: str) -> bool:
        """Whether an error was raised in what is planted, or by a call of it."""
        planted = (owner.__dict__[name] for owner, name, _ in self.planted)
        names = [
            f"{self._mutant}.<locals>.",
            *(each.__qualname__ for each in planted if callable(each)),
        ]
        return any(name in error for name in names)

    def undo(self) -> None:
        while self.planted:
            owner, name, before = self.planted.pop()
            setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    bug: str
    profile: Profile
    plant: Callable[[Patch], None]
    by: str | None
    """The checker that must find it; None: any."""

    @contextmanager
    def applied(self) -> Generator[Patch]:
        patch = Patch(self.name)
        try:
            self.plant(patch)
            yield patch
        finally:
            patch.undo()


MUTANTS: Final[dict[str, Mutant]] = {}
"""All of them by name."""


def short(name: str, **weights: float) -> Profile:
    """A short run under these faults and no others."""
    return Profile(name, weights, faults=10, trouble_s=12.0, lasts_s=(0.2, 3.0))


POWER: Final = short("power", power_loss=2, power_loss_of_pair=2, slow_disk=1, torn_write=1)
DISK: Final = short("disk", fsync_eio=2, short_write=1, append_enospc=1, power_loss=2, slow_disk=1)
LINKS: Final = short("links", partition=1, link_reset=1, mirror_change=1, slow_disk=1, kill=1)
HOMES: Final = short("homes", kill=2, client_reset=2, restart=1, client_cut=1)
IN_FLIGHT: Final = short("in flight", slow_disk=5, kill=2, client_reset=5, restart=1)
CAPTIVE: Final = short("captive", slow_disk=3, client_captive=6)
LINKED: Final = short("linked", link_reset=1)
ROT: Final = short("rot", flip_origin=2, flip_mirror=2, flip_index=1, restart=1, kill=1)
SLOW: Final = short("slow", slow_disk=4, slow_link=1)
CALM: Final = short("calm", kill=1)
GONE: Final = replace(
    short("gone", flip_all_copies=6, kill=2, restart=1, flip_origin=1, client_cut=2),
    retain_s=(2.0, 4.0, 3600.0),
)
DEATHS: Final = short("deaths", kill=2, restart=1, power_loss=1, slow_disk=2)


def mutant(
    bug: str, profile: Profile, *, by: str | None = None
) -> Callable[[Callable[[Patch], None]], Mutant]:
    """Make a function that plants a bug a mutant, by the function's name. It counts as found when
    the checker `by` complains, or any if none is named."""

    def add(plant: Callable[[Patch], None]) -> Mutant:
        made = Mutant(plant.__name__, bug, profile, plant, by)
        MUTANTS[made.name] = made
        return made

    return add
