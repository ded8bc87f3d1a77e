"""Long work on files, carried out between other things: see `segments.steps`."""

from contextlib import suppress
from typing import TypeVar

import trio

from busnode.segments.steps import Fetch, Step, Steps, Sync
from busnode.world.files import Files

T = TypeVar("T")


async def carry_out(files: Files, steps: Steps[T]) -> T:
    """Work it off; others have their turn between the steps, and while the disk is waited for."""
    try:
        step = next(steps)
        while True:
            failed = await _do(files, step)
            step = next(steps) if failed is None else steps.throw(failed)
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()


async def _do(files: Files, step: Step) -> OSError | None:
    match step:
        case Fetch(file, offset, length) if length and not file.is_in_memory(offset, length):
            with suppress(OSError):
                await file.fetch(offset, length)
        case Sync(file, directory):
            outcomes = await files.sync_all(
                [] if file is None else [file], [] if directory is None else [directory]
            )
            return next((error for error in outcomes if error is not None), None)
        case _:
            await trio.lowlevel.checkpoint()
    return None
