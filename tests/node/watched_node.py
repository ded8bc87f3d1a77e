"""`busnode` with an eye on its event loop: each long step of a task is written to a file, as the
moment, milliseconds of the processor's time, and the task's name.

Python collects garbage now and then, in whichever step has come to it: that is written on its own,
as that of a task `gc`.
"""

import gc
from functools import partial
from pathlib import Path
from time import monotonic, thread_time

import trio

from busnode.node.cli import main

from .raw_client import LoopWatch

WORTH_A_LINE_S = 0.01


class WrittenWatch(LoopWatch):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._gc_began_s = 0.0
        gc.callbacks.append(self._collect)

    def _collect(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._gc_began_s = thread_time()
        else:
            took_s = thread_time() - self._gc_began_s
            self._began += took_s  # whose step it is in need not answer for it
            self._write(took_s, "gc")

    def _write(self, took_s: float, name: str) -> None:
        if took_s > WORTH_A_LINE_S:
            with self._path.open("a") as file:
                file.write(f"{monotonic()} {1e3 * took_s:.1f} {name}\n")

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = 0.0
        super().after_task_step(task)
        self._write(self.longest_s, self.longest)


def run_watched(path: str) -> None:
    """Runs the command line that the process was given."""
    run = partial(trio.run, instruments=[WrittenWatch(Path(path))])
    setattr(trio, "run", run)  # noqa: B010  # no checker takes a partial for a function
    main()
