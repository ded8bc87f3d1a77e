"""Where each task of a queue is: it can be given out, waits for its time, is with a worker, is a
dead letter, or something about it is being written down.

Only what is not as it was enqueued takes an object: a ready task is a bit, a delayed one an entry
in the heap as well. Dead letters and failed tasks keep their rows here, and are never dropped for
want of room: their number is bounded by what the log has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from busnode.tasks.leases import Leases
from busnode.tasks.ranges import CHUNK, FULL, SHIFT, Numbers, Prefix, Run, bit_runs
from busnode.tasks.ready import ReadyOrder
from busnode.tasks.rows import UNTOUCHED, Row
from busnode.tasks.timers import Timers
from busnode.tasks.traits import TraitTable

State = Literal["ready", "delayed", "retrying", "leased", "settling", "dead"]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task in a listing."""

    number: int
    state: State
    row: Row
    worker: str | None
    fence: int | None
    expires_at_s: float | None


class Places:
    """All numbers up to the extent, each in exactly one place."""

    def __init__(self, dead_keep_us: int) -> None:
        self.extent = 0
        """The last number there is."""
        self.finished = Prefix()
        self.ready = ReadyOrder()
        self.leases = Leases()
        self.dead = Numbers()
        self.finishing = Numbers()
        """A record says that they are finished, and is not durable yet."""
        self.arriving = Numbers()
        """Carried here, and it is not durable yet that they are not elsewhere any more."""
        self.changing: dict[int, Row] = {}
        """A record says that they are so, and is not durable yet."""
        self.rows: dict[int, Row] = {}
        self.traits = TraitTable()
        self.delayed = 0
        self.retrying = 0
        self._timers = Timers()
        self._dead_keep_us = dead_keep_us
        self._dead_timers = Timers()
        self._alive_from = 1
        """All before it are finished or dead."""

    @property
    def settling(self) -> int:
        return len(self.finishing) + len(self.changing) + len(self.arriving)

    @property
    def first_due_us(self) -> int | None:
        return self._timers.first_us

    # Changes --------------------------------------------------------------------------------------

    def put(self, number: int, due_us: int, now_us: int) -> None:
        """A task that nobody has: it can be given out, or is so later."""
        if due_us <= now_us:
            self.ready.add(number, self.traits.of(number).priority)
            return
        self._timers.push(due_us, number)
        if self._is_retried(number):
            self.retrying += 1
        else:
            self.delayed += 1

    def bury(self, number: int, dead_us: int) -> None:
        self.dead.add(number)
        self._dead_timers.push(dead_us + self._dead_keep_us, number)

    def withdraw(self, number: int) -> None:
        """Take a task out of its place: whoever does so puts it into another one."""
        self._alive_from = min(self._alive_from, number)  # it may have been dead
        if self.changing.pop(number, None) is not None:
            return
        if (
            self.leases.end(number)
            or self.ready.discard(number)
            or self.dead.discard(number)
            or self.arriving.discard(number)
        ):
            return
        self._leave_timers(number)

    def finish(self, runs: Sequence[Run]) -> None:
        """They were finishing, and it is durable."""
        for first, last in runs:
            self.finishing.discard_run(first, last)
            self.finished.add_run(first, last)
            self.traits.forget(first, last)
            if self.rows:
                for number in range(first, last + 1):
                    self.rows.pop(number, None)

    def come_due(self, now_us: int, count_max: int) -> None:
        """Those whose time has come can be given out."""
        for number in self._timers.take(now_us, count_max):
            # What was withdrawn meanwhile is on its way out: nothing else takes it from its timer.
            if number not in self.finishing and number not in self.finished:
                self._leave_timers(number)
                self.ready.add(number, self.traits.of(number).priority)

    def dead_over(self, now_us: int, count_max: int) -> list[int]:
        """Dead letters that nobody has acted on for too long."""
        return [
            number
            for number in self._dead_timers.take(now_us, count_max)
            # It may have been requeued, and may have died again since.
            if number in self.dead
            and (self.rows[number].dead_us or 0) + self._dead_keep_us <= now_us
        ]

    def _leave_timers(self, number: int) -> None:
        if self._is_retried(number):
            self.retrying -= 1
        else:
            self.delayed -= 1

    def _is_retried(self, number: int) -> bool:
        return self.rows.get(number, UNTOUCHED).attempts > 0

    # What is where --------------------------------------------------------------------------------

    def row(self, number: int) -> Row | None:
        """As it will be when all that is written is durable; None if it is as it was enqueued."""
        return self.changing.get(number) or self.rows.get(number)

    def first_alive(self) -> int | None:
        """The first that is neither finished nor a dead letter. It goes on from where it was found
        the last time: there may be a million dead letters before it."""
        first = max(self._alive_from, self.finished.floor)
        found: int | None = None
        for chunk in range(first >> SHIFT, (self.extent >> SHIFT) + 1):
            bits = FULL & ~(self.finished.bits(chunk) | self.dead.bits(chunk))
            base = chunk << SHIFT
            bits &= -1 << max(0, first - base)
            if bits:
                found = base + (bits & -bits).bit_length() - 1
                break
        self._alive_from = self.extent + 1 if found is None else min(found, self.extent + 1)
        return None if found is None or found > self.extent else found

    def is_idle(self, number: int) -> bool:
        """Whether it is unfinished, and neither with a worker nor settling."""
        return (
            number <= self.extent
            and number not in self.finished
            and number not in self.finishing
            and number not in self.arriving
            and number not in self.changing
            and number not in self.leases
        )

    def find(self, number: int) -> TaskRow | None:
        """None for one that is finished or was never there."""
        if number > self.extent or number in self.finished:
            return None
        row = self.row(number) or UNTOUCHED
        grant = self.leases.grants.get(number)
        if grant is not None:
            fence = number + grant.offset
            return TaskRow(number, "leased", row, grant.name, fence, grant.expires_at_s)
        chunk, bit = number >> SHIFT, number & (CHUNK - 1)
        state: State
        if not self.is_idle(number):
            state = "settling"
        elif number in self.dead:
            state = "dead"
        elif self.ready.bits(chunk) >> bit & 1:
            state = "ready"
        else:
            state = "retrying" if row.attempts else "delayed"
        return TaskRow(number, state, row, None, None, None)

    def unfinished(
        self, state: State | None = None, after_no: int = 0, before_no: int | None = None
    ) -> Iterator[int]:
        """The numbers in this state, or all, ascending: a thousand that do not match cost as much
        as one. Those in the middle may have changed since the first was told."""
        first = max(after_no + 1, self.finished.floor)
        last = self.extent if before_no is None else min(self.extent, before_no - 1)
        for chunk in range(first >> SHIFT, (last >> SHIFT) + 1):
            base = chunk << SHIFT
            bits = FULL & ~self.finished.bits(chunk) & self._candidates(state, chunk)
            for run_first, run_last in bit_runs(bits, base):
                for number in range(max(run_first, first), min(run_last, last) + 1):
                    if state is None:
                        yield number
                    else:
                        found = self.find(number)
                        if found is not None and found.state == state:
                            yield number

    def oldest(self) -> int | None:
        """The first that is neither finished nor a dead letter."""
        for chunk in range(self.finished.floor >> SHIFT, (self.extent >> SHIFT) + 1):
            bits = FULL & ~self.finished.bits(chunk) & ~self.dead.bits(chunk)
            for first, last in bit_runs(bits, chunk << SHIFT):
                number = max(first, self.finished.floor)
                if number <= min(last, self.extent):
                    return number
        return None

    def _candidates(self, state: State | None, chunk: int) -> int:
        """Which of a chunk can be in that state."""
        match state:
            case "ready":
                return self.ready.bits(chunk)
            case "dead":
                return self.dead.bits(chunk)
            case "delayed" | "retrying" | "leased":
                settling = self.finishing.bits(chunk) | self.arriving.bits(chunk)
                return ~(self.ready.bits(chunk) | self.dead.bits(chunk) | settling)
            case "settling":
                return ~(self.ready.bits(chunk) | self.dead.bits(chunk))
            case None:
                return FULL
