"""What becomes of tasks at which an attempt has failed: when they are tried again, or that they are
dead letters now."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from busnode.tasks.journal import ROWS_MAX, Failed
from busnode.tasks.places import Places
from busnode.tasks.rows import DEAD, UNTOUCHED, Row
from busnode.wire.carried_task import ERROR_BYTES_MAX, Attempt, cut
from busnode.wire.retry_schedule import Schedule

_SPREAD: Final = 0.6180339887498949
"""Added again and again, and taken modulo 1, it spreads a batch's random numbers evenly."""


class Failures:
    """Of one queue."""

    def __init__(self, places: Places, default_retry: Schedule) -> None:
        self._places = places
        self._default_retry = default_retry

    def dues(self, numbers: Iterable[int], now_us: int, random: float) -> dict[int, int]:
        """When each is tried again, or `DEAD`."""
        dues: dict[int, int] = {}
        for place, number in enumerate(numbers):
            attempt = self._places.rows.get(number, UNTOUCHED).attempts + 2
            schedule = self._places.traits.of(number).retry or self._default_retry
            if attempt > schedule.attempts_max:
                dues[number] = DEAD
            else:
                wait_s = schedule.wait_s(attempt, (random + place * _SPREAD) % 1.0)
                dues[number] = now_us + round(wait_s * 1_000_000)
        return dues

    def records(
        self,
        numbers: Sequence[int],
        worker: str,
        error: str,
        now_us: int,
        dues: Mapping[int, int],
        attempted: int,
    ) -> Iterator[Failed]:
        """What is to be written. From now on they are settling."""
        error = cut(error, ERROR_BYTES_MAX)
        shared: dict[int, Attempt] = {}
        for at in range(0, len(numbers), ROWS_MAX):
            part = numbers[at : at + ROWS_MAX]
            attempts: list[int] = []
            for number in part:
                row = self._places.rows.get(number, UNTOUCHED)
                attempt = row.attempts + attempted
                why = shared.get(attempt)
                if why is None:
                    why = shared[attempt] = Attempt(attempt, now_us, worker, error)
                self._places.changing[number] = row.failed(attempt, dues[number], now_us, why)
                attempts.append(attempt)
            part_dues = [dues[number] for number in part]
            yield Failed(part, attempts, part_dues, now_us, worker, error)

    def apply(self, failed: Failed) -> dict[int, Row]:
        """It is durable; returns those that are dead letters now."""
        places = self._places
        died: dict[int, Row] = {}
        for number in failed.numbers:
            row = places.changing.pop(number, None)
            if row is None:
                continue  # it has been finished elsewhere meanwhile
            places.rows[number] = row
            if row.dead_us is not None:
                places.bury(number, row.dead_us)
                died[number] = row
            else:
                places.put(number, row.due_us, failed.at_us)
        return died
