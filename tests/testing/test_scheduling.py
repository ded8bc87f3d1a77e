"""A canary for trio's private hook for a deterministic order of tasks."""

from importlib import import_module
from typing import Any

import pytest
import trio

from busnode.testing.sim import simulate


def order(seed: int) -> list[int]:
    """In which order ten tasks that are ready together have run, ten times."""
    ran: list[int] = []

    async def run(number: int) -> None:
        for _ in range(10):
            ran.append(number)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(run, number)

    simulate(seed, main)
    return ran


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_gives_one_order(seed: int) -> None:
    assert order(seed) == order(seed)


def test_another_seed_gives_another_order() -> None:
    assert order(1) != order(2)


def test_trio_still_has_the_parts_that_the_simulator_reaches_into() -> None:
    """A new trio without them needs another way: see `simulate` and `freezer`."""
    scheduler: Any = import_module("trio._core._run")
    assert scheduler._ALLOW_DETERMINISTIC_SCHEDULING in (True, False)
    assert hasattr(scheduler._r, "shuffle")
    assert callable(scheduler.Runner.reschedule)
