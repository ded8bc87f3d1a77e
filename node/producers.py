"""Which batches of which producers are in our logs already: repeats are acked, not stored again.

A producer sends again what was not acked, possibly after a reconnect and possibly although it was
stored. What was seen is kept as the numbers themselves, in runs, never as a high-water mark: a
number that was not seen is never taken for a repeat (promise 4).
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log

PRODUCERS_MAX: Final = 10_000
"""Producers remembered at once; those that published last stay."""

RUNS_MAX: Final = 4096
"""Runs remembered at least for one producer. A client has at most 4096 batches in flight, and a
repeat is always one of them."""


LOADED_BYTES: Final = 16 * 1024 * 1024
"""How much of the end of a log is read at the start: what one client may have in flight."""

LOADED_BATCHES_MAX: Final = 100_000
"""How much is read in all at the start, which must not take longer than a fifth of a second."""

LOADED_BATCHES_OF_ONE_MAX: Final = 4 * RUNS_MAX
"""How much of one log is remembered: what four clients may have in flight."""


class SeenRun(NamedTuple):
    """Batches with consecutive numbers of one producer that stand one behind the other in a log."""

    first_seq: int
    ends: list[int]
    """Messages up to the end of each batch: so that one is found without adding up."""
    log: Log
    first_no: int

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.ends)


class Producer:
    """What was seen of one producer, in the order of its numbers."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[SeenRun] = []

    def is_new(self, first_seq: int) -> bool:
        """Whether all numbers from this one on are new: the usual case, one comparison."""
        return not self._runs or first_seq >= self._runs[-1].next_seq

    def find(self, seq: int) -> tuple[Log, int, int] | None:
        """Log, first msgNo and number of messages of a batch that was seen, or None."""
        place = bisect_right(self._firsts, seq) - 1
        if place < 0 or seq >= self._runs[place].next_seq:
            return None
        run = self._runs[place]
        offset = seq - run.first_seq
        before = run.ends[offset - 1] if offset else 0
        return run.log, run.first_no + before, run.ends[offset] - before

    def learn(self, run: SeenRun) -> None:
        """Add a run that may continue the last one."""
        last = self._runs[-1] if self._runs else None
        if (
            last is not None
            and last.log is run.log
            and last.next_seq == run.first_seq
            and last.first_no + last.ends[-1] == run.first_no
        ):
            before = last.ends[-1]
            last.ends.extend(before + end for end in run.ends)
        elif self.find(run.first_seq) is None:
            self.add(run)

    def add(self, run: SeenRun) -> None:
        place = bisect_right(self._firsts, run.first_seq)
        self._firsts.insert(place, run.first_seq)
        self._runs.insert(place, run)
        if len(self._runs) > RUNS_MAX + RUNS_MAX // 4:
            # In one go, so that forgetting costs nothing per run.
            del self._firsts[: RUNS_MAX // 4], self._runs[: RUNS_MAX // 4]


class Producers:
    """All producers that this node remembers.

    After a restart it remembers what the ends of the old logs tell: a batch whose ack was lost with
    the process is then still known when it is sent again.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict()

    def load(self, logs: Iterable[Log]) -> None:
        """Learn from the ends of logs, those written last first, within a budget."""
        batches_left = LOADED_BATCHES_MAX
        for log in sorted(logs, key=lambda log: log.stored_us, reverse=True):
            if not batches_left:
                return
            tail = read_batches(log, log.tail_after(LOADED_BYTES))
            # Of each log the end: what was in flight is there.
            headers = deque(
                (found[0] for found in tail if not isinstance(found, Hole)),
                maxlen=min(batches_left, LOADED_BATCHES_OF_ONE_MAX),
            )
            batches_left -= len(headers)
            for header in headers:
                if header.producer_seq and self._has_place(header.producer_id):
                    seen = SeenRun(header.producer_seq, [header.count], log, header.first_no)
                    self.get(header.producer_id).learn(seen)

    def _has_place(self, producer_id: int) -> bool:
        """Whether it can be learned about without forgetting one that published later."""
        return producer_id in self._producers or len(self._producers) < PRODUCERS_MAX

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
            if len(self._producers) > PRODUCERS_MAX:
                self._producers.popitem(last=False)
        else:
            self._producers.move_to_end(producer_id)
        return producer
