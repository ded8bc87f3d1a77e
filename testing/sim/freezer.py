"""Pausing a simulated host: its tasks get no time, while time and all other hosts go on.

As a process that was stopped, or a virtual machine that was moved: deadlines pass and bytes arrive
meanwhile, and the host learns of all of them at once when it goes on. trio has no way to do that.
What is done here is to keep a task that becomes ready out of the queue of those that run next;
`tests/testing/test_freezer.py` fails where a new trio does not work like this any more.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

HOST: ContextVar[str] = ContextVar("simulated host")
"""On which host a task runs: set once, in the task from which all others of the host descend."""


STEPS_MAX: Final = 50_000
"""Steps of tasks, of all hosts, within one moment of virtual time. A busy one has a few hundred."""


class Freezer:
    """Which hosts are paused, and which of their tasks would run if they were not."""

    def __init__(self) -> None:
        self.on_stuck: Callable[[], None] | None = None
        """Called when tasks go on and on, and time does not."""
        self._steps = 0
        self._steps_at = -1.0
        self._held: dict[str, list[Any]] = {}
        self._queue: deque[Any] | None = None

    @property
    def frozen(self) -> list[str]:
        return list(self._held)

    def freeze(self, host: str) -> None:
        """From their next step on its tasks wait."""
        self._held.setdefault(host, [])

    def thaw(self, host: str) -> None:
        held = self._held.pop(host, [])
        if held:
            assert self._queue is not None
            self._queue.extend(held)

    def thaw_all(self) -> None:
        for host in self.frozen:
            self.thaw(host)

    def _look_at_the_clock(self, now: float) -> None:
        is_stuck, self._steps, self._steps_at = now == self._steps_at, 0, now
        if is_stuck and self.on_stuck is not None:
            self.on_stuck()

    @contextmanager
    def installed(self) -> Generator[None]:
        """It can pause hosts of a run within this."""
        runner: Any = import_module("trio._core._run").Runner
        reschedule = runner.reschedule
        held = self._held

        def reschedule_unless_frozen(self_: Any, task: Any, *outcome: Any) -> None:
            reschedule(self_, task, *outcome)
            self._steps += 1
            if self._steps >= STEPS_MAX:
                self._look_at_the_clock(self_.clock.current_time())
            if held:
                host = task.context.get(HOST)
                if host in held:
                    assert self_.runq[-1] is task
                    self_.runq.pop()
                    held[host].append(task)
                    self._queue = self_.runq

        runner.reschedule = reschedule_unless_frozen
        try:
            yield
        finally:
            runner.reschedule = reschedule
