"""Calendars that somebody sets."""

import trio

from busnode.testing.sim.trouble.kind import Fault, kind

JUMP_S = (60.0, 3 * 3600.0)
"""From a clock that was a little wrong to one in the next time zone but two; far less than what is
kept for a day needs to expire."""


@kind("clock_forward")
async def clock_forward(fault: Fault) -> None:
    await _jump(fault, 1)


@kind("clock_back")
async def clock_back(fault: Fault) -> None:
    await _jump(fault, -1)


async def _jump(fault: Fault, sign: int) -> None:
    """It jumps, and is set right again later."""
    clock = fault.stage.cluster[fault.entry.node].clock
    jump_s = sign * fault.stage.entropy(fault.entry.number).between(*JUMP_S)
    clock.jump(jump_s)
    fault.begun(fault.entry.node, f"by {jump_s:.0f} s")
    await trio.sleep(fault.entry.lasts_s)
    clock.jump(-jump_s)
