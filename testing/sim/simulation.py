"""Runs a program in virtual time, the same way each time."""

import gc
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final, TypeVar

import trio
import trio.testing

T = TypeVar("T")

CYCLES_LOOKED_FOR: Final = 20_000, 20, 20
"""When the garbage collector looks for cycles: with Python's own 700 it took 7 % of a run."""


def simulate(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` to its end; the seed decides which of several ready tasks goes first.

    Time jumps to the next deadline whenever all tasks wait, so a simulated hour takes as long as
    its work. trio shuffles ready tasks on purpose and has no public way to seed that; this is the
    one that its Hypothesis plugin uses.
    """
    scheduler: Any = import_module("trio._core._run")
    deterministic = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    state = scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    threshold = gc.get_threshold()
    gc.set_threshold(*CYCLES_LOOKED_FOR)
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        gc.set_threshold(*threshold)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = deterministic
        scheduler._r.setstate(state)
