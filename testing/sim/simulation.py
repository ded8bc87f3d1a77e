"""Runs a program in virtual time, the same way each time."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")


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
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = deterministic
        scheduler._r.setstate(state)
