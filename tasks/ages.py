"""When the task with a number was enqueued, roughly: a mark now and then."""

from bisect import bisect_right
from typing import Final

MARKS_MAX: Final = 4096
APART_US: Final = 1_000_000


class Ages:
    """Told in the order of numbers. The answer is right to a second while there are few marks; when
    there are too many every second one goes, and it is a little too old."""

    def __init__(self) -> None:
        self._first_nos: list[int] = []
        self._enqueued_us: list[int] = []

    def note(self, first_no: int, enqueued_us: int) -> None:
        if self._enqueued_us and abs(enqueued_us - self._enqueued_us[-1]) < APART_US:
            return
        self._first_nos.append(first_no)
        self._enqueued_us.append(enqueued_us)
        if len(self._first_nos) > MARKS_MAX:
            del self._first_nos[1::2]
            del self._enqueued_us[1::2]

    def of(self, number: int) -> int | None:
        place = bisect_right(self._first_nos, number)
        return self._enqueued_us[place - 1] if place else None

    def forget(self, floor: int) -> None:
        """Nobody will ask for what lies below."""
        place = bisect_right(self._first_nos, floor) - 1
        if place > 0:
            del self._first_nos[:place]
            del self._enqueued_us[:place]
