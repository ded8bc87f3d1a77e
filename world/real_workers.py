"""Work for all cores: a function called in processes of its own."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def call_in_processes(
    function: Callable[[T], R], arguments: Iterable[T], processes: int
) -> Iterator[R]:
    """What a function of a module returns for each argument, as it is done. Arguments are asked for
    no sooner than they are needed, so there may be no end of them. With one process it is this."""
    if processes == 1:
        yield from map(function, arguments)
        return
    waiting = iter(arguments)
    # Not forked: a fork of a process that has threads may wait for ever for what one of them held.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[R]] = set()
        try:
            while True:
                for argument in islice(waiting, processes + 1 - len(running)):
                    running.add(pool.submit(function, argument))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        finally:
            for each in running:
                each.cancel()
