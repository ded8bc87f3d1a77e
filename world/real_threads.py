"""The only threads of a node. They do what waits for a disk, and belong to the real files."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

import trio


class _Round:
    """One call of `run`: shared by the threads that carry it out and the task that waits."""

    def __init__(self, jobs: Sequence[Callable[[], None]], slices: int) -> None:
        self.outcomes: list[OSError | None] = [None] * len(jobs)
        self.bug: Exception | None = None
        self.given_up = False
        self._jobs = jobs
        self._slices = slices
        self._slices_left = slices
        self._lock = Lock()
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()

    def work_off(self, first: int) -> None:
        """Runs in a thread. Whoever ends last wakes the task: one wake-up for one round."""
        try:
            for index in range(first, len(self._jobs), self._slices):
                try:
                    self._jobs[index]()
                except OSError as error:
                    self.outcomes[index] = error
        except Exception as error:  # noqa: BLE001  it is raised again in the task that waits
            self.bug = error
        with self._lock:
            self._slices_left -= 1
            last = self._slices_left == 0
        if last:
            with suppress(trio.RunFinishedError):  # nobody waits any more
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        if not self.given_up:
            trio.lowlevel.reschedule(self._task)


class Threads:
    """Some threads for one purpose, for all nodes of this process.

    `trio.to_thread` costs two hand-overs for each job; here a round of any size costs one for each
    thread and one wake-up of the loop. A thread starts when there is more to do than there are
    threads, and ends with the process.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._queue: SimpleQueue[tuple[_Round, int]] = SimpleQueue()
        self._threads = 0
        self._slices = 0
        """Those that wait or are being worked off."""
        self._lock = Lock()
        os.register_at_fork(after_in_child=self._forget)

    @trio.lowlevel.enable_ki_protection
    async def run(
        self, jobs: Sequence[Callable[[], None]], *, wait_for_all: bool
    ) -> list[OSError | None]:
        """Carry out jobs in parallel; the outcome of each.

        When it is cancelled it still waits for all of them, or leaves them to themselves.
        """
        if not jobs:
            return []
        slices = min(self._threads_max, len(jobs))
        round_ = _Round(jobs, slices)
        with self._lock:
            self._slices += slices
            while self._threads < min(self._slices, self._threads_max):
                self._start()
        for first in range(slices):
            self._queue.put((round_, first))

        def abort(_: object) -> trio.lowlevel.Abort:
            if wait_for_all:
                return trio.lowlevel.Abort.FAILED
            round_.given_up = True
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if round_.bug is not None:
            raise round_.bug
        return round_.outcomes

    def _start(self) -> None:
        name = f"{self._name}-{self._threads}"
        Thread(target=self._work, name=name, daemon=True).start()
        self._threads += 1

    def _work(self) -> None:
        while True:
            round_, first = self._queue.get()
            round_.work_off(first)
            del round_  # an idle thread keeps no file alive
            with self._lock:
                self._slices -= 1

    def _forget(self) -> None:
        """A forked child has none of its parent's threads."""
        self._queue = SimpleQueue()
        self._threads = self._slices = 0
        self._lock = Lock()
