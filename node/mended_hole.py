"""Waiting for a hole in a log to be filled from another copy."""

from typing import Final

import trio

from busnode.node.subscription import Mender
from busnode.segments.damage import Hole
from busnode.segments.store import Log

MENDING_S: Final = 30.0
"""How long another copy is waited for."""


async def wait_mended(mender: Mender, log: Log, hole: Hole) -> bool:
    """Whether another copy has filled it, and it is worth reading again."""
    answered, answers = trio.Event(), list[bool]()

    def answer(is_worth_reading: bool) -> None:
        answers.append(is_worth_reading)
        answered.set()

    if mender.ask(log, hole, answer):
        with trio.move_on_after(MENDING_S):
            await answered.wait()
    return any(answers)
