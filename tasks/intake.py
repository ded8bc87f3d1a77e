"""What becomes of tasks when they come into a queue: most can be given out at once, as a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from busnode.tasks.keys import Keys
from busnode.tasks.places import Places
from busnode.tasks.ranges import Numbers, runs_of
from busnode.tasks.rows import UNTOUCHED, row_of
from busnode.tasks.traits import Traits
from busnode.wire.carried_task import Carried
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import TaskOptions

ORIGINS_MAX: Final = 1000
"""Incarnations whose tasks were taken over and are remembered: a node that has restarted so often
has none of the oldest one's logs any more."""


@dataclass(slots=True)
class Odd:
    """Of a batch, those about which something must be written down first."""

    repeats: list[int] = field(default_factory=list[int])
    """By their keys."""
    dropped: list[int] = field(default_factory=list[int])
    """Copies of tasks that are here already, or were."""
    faulty: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    arrivals: dict[BrokerId, dict[int, TaskOptions]] = field(
        default_factory=dict[BrokerId, dict[int, TaskOptions]]
    )


class Intake:
    """Puts tasks into their places."""

    def __init__(self, places: Places, default_retry: Schedule, broker_id: BrokerId) -> None:
        self.keys = Keys()
        self.taken: dict[BrokerId, Numbers] = {}
        """What was taken over of other incarnations, by number there."""
        self.ids: dict[str, Numbers] = {}
        """What was taken over, by the two parts of a task's id. The same task may come on several
        ways: one node may have it from its first owner, and another from one in between."""
        self._places = places
        self._default_retry = default_retry
        self._broker_id = broker_id

    def take_in(
        self, first_no: int, count: int, options: Sequence[TaskOptions | None] | None, now_us: int
    ) -> Odd:
        places = self._places
        assert first_no > places.extent
        if first_no > places.extent + 1:
            # Nobody can read them, so nobody can do them.
            places.finished.add_run(places.extent + 1, first_no - 1)
        places.extent = first_no + count - 1
        odd = Odd()
        first_wait_us = _us(self._default_retry.first_wait_s)
        if options is None and not first_wait_us:
            places.ready.add_run(first_no, places.extent)
            return odd
        plain: list[int] = []
        for number, each in enumerate(options or [None] * count, first_no):
            if each is not None:
                self._sort(number, each, now_us, odd)
            elif first_wait_us:
                places.put(number, now_us + first_wait_us, now_us)
            else:
                plain.append(number)
        for first, last in runs_of(plain):
            places.ready.add_run(first, last)
        return odd

    def place(self, number: int, options: TaskOptions, now_us: int) -> None:
        """Where its options say."""
        places, carried = self._places, options.carried
        places.traits.put(number, Traits(options.priority, options.retry))
        if carried is None:
            first_wait_s = (options.retry or self._default_retry).first_wait_s
            delay_us = max(options.delay_ms * 1000, _us(first_wait_s))
            places.put(number, max(options.due_us or 0, now_us + delay_us), now_us)
            return
        row = row_of(carried)
        if row is not None:
            places.rows[number] = row
        if carried.dead_us is not None:
            places.bury(number, carried.dead_us)
        else:
            places.put(number, carried.due_us, now_us)

    def _sort(self, number: int, options: TaskOptions, now_us: int, odd: Odd) -> None:
        carried = options.carried
        if options.fault is not None and carried is None:
            odd.faulty.setdefault(options.fault, []).append(number)
            return
        if options.key is not None:
            # One that was carried was accepted once, and is never dropped for its key.
            if carried is None and self.keys.is_repeat(options.key, now_us):
                odd.repeats.append(number)
                return
            enqueued_us = now_us if carried is None else carried.enqueued_us
            self.keys.remember(options.key, enqueued_us + options.window_ms * 1000)
        if carried is None or carried.origin is None:
            self.place(number, options, now_us)
        elif self._takes(carried, carried.origin):
            self._places.arriving.add(number)
            odd.arrivals.setdefault(carried.origin, {})[number] = options
        else:
            odd.dropped.append(number)

    def _takes(self, carried: Carried, origin: BrokerId) -> bool:
        """Whether the copy counts, and not the one that it was made of."""
        if origin == self._broker_id:
            if not self._is_as_it_was(carried):
                return False
            self._places.withdraw(carried.number)
            self._places.finishing.add(carried.number)
            return True
        taken = self.taken_from(origin)
        if carried.number in taken:
            return False
        taken.add(carried.number)
        return self._is_new(carried.id)

    def taken_from(self, origin: BrokerId) -> Numbers:
        """What was taken over of one incarnation."""
        taken = self.taken.get(origin)
        if taken is None:
            taken = self.taken[origin] = Numbers()
            if len(self.taken) > ORIGINS_MAX:
                del self.taken[next(iter(self.taken))]
        return taken

    def _is_new(self, task_id: str) -> bool:
        first, number = parts_of(task_id)
        if first == self._broker_id.hex():
            return not 0 < number <= self._places.extent
        known = self.ids.get(first)
        if known is None:
            known = self.ids[first] = Numbers()
            if len(self.ids) > ORIGINS_MAX:
                del self.ids[next(iter(self.ids))]
        if number in known:
            return False
        known.add(number)
        return True

    def let_go(self, origin: BrokerId, number: int, task_id: str) -> None:
        """It goes on elsewhere, and may come again."""
        if origin in self.taken:
            self.taken[origin].discard(number)
        first, place = parts_of(task_id)
        if first in self.ids:
            self.ids[first].discard(place)

    def _is_as_it_was(self, carried: Carried) -> bool:
        """Whether nothing has happened to a task of this log since it was copied. A dead letter may
        be copied as a task: that is how one is requeued with changes."""
        if not self._places.is_idle(carried.number):
            return False
        row = self._places.rows.get(carried.number, UNTOUCHED)
        last_failure_us = row.history[-1].at_us if row.history else None
        copied_us = carried.history[-1].at_us if carried.history else None
        was_dead, is_dead = carried.dead_us is not None, row.dead_us is not None
        return last_failure_us == copied_us and (is_dead or not was_dead)


def parts_of(task_id: str) -> tuple[str, int]:
    """The incarnation that has accepted a task, and its number there; 0 for what is no id."""
    first, _, text = task_id.partition("-")
    return first, int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _us(wait_s: float) -> int:
    return round(wait_s * 1_000_000)
