"""The only threads of a node. They do what waits for a disk, and belong to the real files."""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock, Thread

import trio

logger = logging.getLogger(__name__)


class _Round:
    """One call of `run`: shared by the threads that carry it out and the task that waits."""

    def __init__(self, jobs: Sequence[Callable[[], None]], slices: int, bell: int) -> None:
        self.outcomes: list[OSError | None] = [None] * len(jobs)
        self.bug: Exception | None = None
        self._jobs = jobs
        self._slices = slices
        self._slices_left = slices
        self._bell = bell
        self._given_up = False
        self._lock = Lock()

    def work_off(self, first: int) -> None:
        """Runs in a thread. Whoever ends last wakes the task: one wake-up for one round."""
        try:
            for index in range(first, len(self._jobs), self._slices):
                self.outcomes[index] = _outcome(self._jobs[index])
        except Exception as error:  # noqa: BLE001  it is raised again in the task that waits
            self.bug = error
        with self._lock:
            self._slices_left -= 1
            if self._slices_left:
                return
            if self._given_up:
                os.close(self._bell)
            else:
                os.eventfd_write(self._bell, 1)

    def give_up(self) -> None:
        """Nobody waits any more; the bell is closed by whoever comes last."""
        with self._lock:
            self._given_up = True
            if not self._slices_left:
                os.close(self._bell)


class _Unwatched:
    """A job for which nobody waits, and of whose failure nobody hears."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._job = job

    def work_off(self, first: int) -> None:
        del first  # there is but one
        try:
            _outcome(self._job)
        except Exception:
            logger.exception("a job for which nobody waits failed")


class Threads:
    """Some threads for one purpose, for all nodes of this process.

    Both ways go through an eventfd, on which threads wait without Python's lock. Measured there and
    back with nothing to do: 25 µs; with a queue and trio's token 49, with `trio.to_thread` 60 or
    more. A round of any size costs one wake-up for each thread and one of the loop. A thread starts
    when there is more to do than there are threads, and ends with the process.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of its parent's threads, and must not wake them."""
        self._threads = 0
        self._slices = 0
        """Those that wait or are being worked off."""
        self._waiting: deque[tuple[_Round | _Unwatched, int]] = deque()
        self._work = -1
        """It counts those that wait, and lets as many threads through."""
        self._bells: list[int] = []
        """Which nobody uses just now."""
        self._lock = Lock()

    @trio.lowlevel.enable_ki_protection
    async def run(
        self, jobs: Sequence[Callable[[], None]], *, wait_for_all: bool
    ) -> list[OSError | None]:
        """Carry out jobs in parallel; the outcome of each.

        When it is cancelled it still waits for all of them, or leaves them to themselves. Where the
        process has no descriptor left for a bell, those that must be done are done here, blocking,
        and others raise OSError. There is one again as soon as a round has ended.
        """
        if not jobs:
            return []
        slices = min(self._threads_max, len(jobs))
        try:
            bell = self._take_bell()
        except OSError:
            if not wait_for_all:
                raise
            return [_outcome(job) for job in jobs]
        round_ = _Round(jobs, slices, bell)
        self._hand_over(round_, slices)
        try:
            with trio.CancelScope(shield=wait_for_all):
                await trio.lowlevel.wait_readable(bell)
        except BaseException:
            round_.give_up()
            raise
        os.eventfd_read(bell)
        self._bells.append(bell)
        if round_.bug is not None:
            raise round_.bug
        return round_.outcomes

    def leave(self, job: Callable[[], None]) -> None:
        """Have a job done for which nobody waits; an OSError of it is dropped. OSError where there
        is no descriptor to wake a thread with: then it is not done."""
        with self._lock:
            self._open()
        self._hand_over(_Unwatched(job), 1)

    def _hand_over(self, round_: _Round | _Unwatched, slices: int) -> None:
        with self._lock:
            self._slices += slices
            while self._threads < min(self._slices, self._threads_max):
                self._start()
        for first in range(slices):
            self._waiting.append((round_, first))
        os.eventfd_write(self._work, slices)

    def _open(self) -> None:
        if self._work < 0:
            self._work = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)

    def _take_bell(self) -> int:
        with self._lock:
            self._open()
            if self._bells:
                return self._bells.pop()
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def _start(self) -> None:
        name = f"{self._name}-{self._threads}"
        Thread(target=self._run, args=(self._work,), name=name, daemon=True).start()
        self._threads += 1

    def _run(self, work: int) -> None:
        while True:
            os.eventfd_read(work)
            round_, first = self._waiting.popleft()
            round_.work_off(first)
            del round_  # an idle thread keeps no file alive
            with self._lock:
                self._slices -= 1


def _outcome(job: Callable[[], None]) -> OSError | None:
    try:
        job()
    except OSError as error:
        return error
    return None
