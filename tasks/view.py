"""What can be asked of a queue."""

from collections.abc import Iterator

from busnode.tasks.ages import Ages
from busnode.tasks.fences import Fences
from busnode.tasks.places import Places, State, TaskRow
from busnode.tasks.ranges import Run
from busnode.tasks.rows import Row
from busnode.tasks.statistics import Statistics, Totals


class QueueView:
    """Looks, and changes nothing."""

    def __init__(self, name: str, first_fence: int, dead_keep_s: float) -> None:
        self.name = name
        self.totals = Totals()
        self._places = Places(round(dead_keep_s * 1_000_000))
        self._fences = Fences(first_fence)
        self._ages = Ages()

    @property
    def available(self) -> int:
        """How many a poll could get now."""
        return min(len(self._places.ready), self._fences.left)

    @property
    def floor(self) -> int:
        """The first number that is not finished: what lies before it in the log is not needed."""
        return self._places.finished.floor

    @property
    def extent(self) -> int:
        """The last number there is."""
        return self._places.extent

    @property
    def fence(self) -> int:
        """The last that was given out."""
        return self._fences.next - 1

    @property
    def first_due_us(self) -> int | None:
        """When a tick makes something ready; past, when there was more than a tick may do."""
        return self._places.first_due_us

    def statistics(self) -> Statistics:
        places, totals = self._places, self.totals
        oldest = places.oldest()
        return Statistics(
            ready=len(places.ready),
            delayed=places.delayed,
            retrying=places.retrying,
            leased=len(places.leases),
            settling=places.settling,
            dead=len(places.dead),
            enqueued_total=totals.enqueued,
            completed_total=totals.completed,
            failed_total=totals.failed,
            expired_total=totals.expired,
            dead_total=totals.dead,
            repeated_total=totals.repeated,
            oldest_enqueued_us=None if oldest is None else self._ages.of(oldest),
            first_due_us=places.first_due_us,
            floor=self.floor,
            extent=places.extent,
            fence=self.fence,
        )

    def rows(self, state: State | None, after_no: int, limit: int) -> list[TaskRow]:
        """The tasks in this state, or all, by number."""
        found: list[TaskRow] = []
        for number in self._places.unfinished(state, after_no):
            row = self._places.find(number)
            if row is not None:
                found.append(row)
            if len(found) >= limit:
                break
        return found

    def find(self, number: int) -> TaskRow | None:
        """One as it is now; None when it is finished or was never there."""
        return self._places.find(number)

    def finished_runs(self) -> Iterator[Run]:
        return self._places.finished.runs()

    def unfinished(self) -> Iterator[tuple[int, Row | None]]:
        """All tasks and dead letters, by number, with their rows where they have one."""
        for number in self._places.unfinished():
            yield number, self._places.row(number)

    def carry_before(self, number: int) -> Iterator[tuple[int, Row | None]]:
        """Tasks and dead letters below a number that are neither with a worker nor settling: what
        must be carried before the log up to there can go. `recovery.carry` makes a `Carried` of the
        row and of what the record says."""
        for each in self._places.unfinished(before_no=number):
            if self._places.is_idle(each):
                yield each, self._places.rows.get(each)
