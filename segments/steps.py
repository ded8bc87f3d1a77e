"""Work on large files, done in steps: whoever has an event loop lets others have their turn between
them, and waits for the disk without blocking; tools just work it off.

A step says what must be done before the work goes on. What a sync raises is raised in the work.
"""

from collections.abc import Generator
from typing import NamedTuple, TypeVar

from busnode.world.files import AppendFile, Files, ReadFile


class Fetch(NamedTuple):
    """Bring a range into memory. If that fails, the reading that follows tells why."""

    file: ReadFile
    offset: int
    length: int


class Sync(NamedTuple):
    """Make a file durable, or the names in a directory."""

    file: AppendFile | None
    directory: str | None = None


Step = Fetch | Sync | None
"""None: something was done that took a while."""

T = TypeVar("T")
Steps = Generator[Step, None, T]


def work_off(files: Files, steps: Steps[T]) -> T:
    """Do it all at once, waiting for the disk."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Sync):
                try:
                    if step.file is not None:
                        step.file.sync()
                    if step.directory is not None:
                        files.sync_directory(step.directory)
                except OSError as error:
                    step = steps.throw(error)
                    continue
            step = next(steps)
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()
