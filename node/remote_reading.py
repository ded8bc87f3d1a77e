"""A subscription's places in other nodes' logs: what it is handed, and fetched.

Its home may hold a copy of such a log. That is one of the places from which it is fetched.
"""

from collections.abc import Iterator
from typing import Final, Protocol

import trio

from busnode.node.durable_positions import Position
from busnode.node.handed import Handed
from busnode.node.subscription import Subscription
from busnode.replication.remote_cursor import PIECE_BYTES, RemoteCursor
from busnode.wire.ids import LogId, MsgNo

Start = str | int | None

FETCHES_MAX: Final = 4
"""Logs from which one subscription fetches at once."""

PLACINGS_MAX: Final = 64
"""Logs in which its place is looked for at once: the answer is short, but reads from a disk."""


class Fetcher(Protocol):
    """Who can ask other nodes."""

    def fetch(
        self,
        reading: "RemoteReading",
        log_id: LogId,
        after_no: int,
        since_us: int | None,
        length: int,
    ) -> bool:
        """Ask somebody who holds the log; False when nobody does now. The answer is one call of
        `placed`, `ended` or `lacked`, with `fetched` for all that came before, or one of `lost`."""
        ...

    def reach(self, log_id: LogId) -> int | None:
        """The last number of a log that anybody has, as far as it is known; None: nobody has it."""
        ...


class RemoteReading:
    """Reads other nodes' logs for one subscription. Its home feeds it and fetches for it."""

    def __init__(
        self,
        subscription: Subscription,
        fetcher: Fetcher,
        start: Start,
        given: Position,
        now_us: int,
    ) -> None:
        self.subscription = subscription
        self.cursors: dict[LogId, RemoteCursor] = {}
        self.taken_up = False
        """Until then its logs have no places yet, and what comes of them waits at their holders."""
        self.closed = False
        self.lacking: dict[LogId, dict[object, int]] = {}
        """Of each log, who has said since something was asked for that it lacks it, and up to which
        number."""
        self._served: dict[LogId, None] = {}
        """Logs of which something has come since it was asked for."""
        self._fetcher = fetcher
        self._fetches = 0
        self._placings = 0
        self._starved: dict[LogId, None] = {}
        """Logs from which nothing was fetched because there was no room."""
        self._unplaced: dict[LogId, None] = {}
        """Logs in which its place is looked for when others are found."""
        self._gaps: dict[LogId, tuple[int, int, str]] = {}
        """Ranges that nobody can serve, told when all that lies before them was sent."""
        self._untold: dict[LogId, int] = {}
        """Places that were found too late for the answer to the client, and are told behind it."""
        self._early: dict[LogId, tuple[int, int]] = {}
        self._position_is_told = False
        self._start = start
        self.given = given
        """Where its client says that it is, also in logs that are nowhere."""
        self._began_us = now_us
        self._placed = trio.Event()
        subscription.refill = self.refill
        subscription.fetched_logs = self.cursors

    @property
    def whom(self) -> tuple[int, int]:
        return self.subscription.client_no, self.subscription.number

    def pump(self) -> None:
        self.subscription.pump()

    @property
    def behind(self) -> int:
        return sum(cursor.behind for cursor in self.cursors.values())

    # Places ---------------------------------------------------------------------------------------

    def take_up(self, log_id: LogId, first_no: int, end_no: int) -> None:
        """Begin with a log that was there when the subscription began."""
        match self._start:
            case "latest":
                cursor = RemoteCursor(end_no, end_no)
            case "earliest":
                cursor = RemoteCursor(first_no - 1, end_no)
            case _:
                cursor = self._late(log_id, first_no, end_no)
        self.cursors[log_id] = cursor

    def _late(self, log_id: LogId, first_no: int, end_no: int) -> RemoteCursor:
        """A log that came up later: what it has since the subscription began is new."""
        match self._start:
            case int():
                return RemoteCursor(0, end_no, self._start)
            case "earliest":
                # The client must be told of a beginning that is not 1; it is when a place is found.
                return RemoteCursor(0, end_no, None if first_no == 1 else 0)
            case "latest":
                return RemoteCursor(0, end_no, self._began_us)
            case _:
                return RemoteCursor(self.given.get(log_id, 0), end_no)

    async def begin(self) -> None:
        """All logs that were there have been taken up; wait until it has a place in each."""
        self.taken_up = True
        early, self._early = self._early, {}
        for log_id, (first_no, end_no) in early.items():
            self.reaches(log_id, first_no, end_no)
        for log_id, cursor in list(self.cursors.items()):
            self._fetch(log_id, cursor)
        while not all(cursor.is_placed for cursor in self.cursors.values()):
            self._placed = trio.Event()
            await self._placed.wait()

    def _heard_early(self, log_id: LogId, first_no: int, end_no: int) -> None:
        """What comes while logs are still taken up is looked at when that is done."""
        if not self.closed:
            known = self._early.get(log_id, (first_no, end_no))
            self._early[log_id] = min(first_no, known[0]), max(end_no, known[1])

    def position(self) -> Iterator[tuple[LogId, MsgNo]]:
        """Where it stands in each log, as far as that is known: what the client is answered."""
        self._position_is_told = True
        for log_id, cursor in self.cursors.items():
            if cursor.is_placed:
                yield log_id, MsgNo(cursor.next_no - 1)

    # What comes -----------------------------------------------------------------------------------

    def reaches(self, log_id: LogId, first_no: int, end_no: int) -> None:
        """Somebody holds a log as far as this."""
        if not self.taken_up:
            self._heard_early(log_id, first_no, end_no)
            return
        cursor = self.cursors.get(log_id)
        if cursor is None:
            cursor = self.cursors[log_id] = self._late(log_id, first_no, end_no)
        cursor.reaches(end_no)
        self._fetch(log_id, cursor)

    def from_the_beginning(self, log_id: LogId, end_no: int) -> None:
        """A log that was there and has only now become its client's to read."""
        if not self.taken_up:
            self._heard_early(log_id, 1, end_no)
            return
        cursor = self.cursors[log_id] = RemoteCursor(0, end_no)
        self._fetch(log_id, cursor)

    def fetch_from_now_on(self, log_id: LogId) -> None:
        """A log that was read here is another node's, where it grows."""
        log, after_no = self.subscription.let_go(log_id)
        self.cursors[log_id] = RemoteCursor(after_no, log.committed_no)
        self.reaches(log_id, log.first_no, log.committed_no)

    def arrived(self, handed: Handed) -> None:
        """Records came by themselves, as they were committed."""
        log_id, first_no, last_no, *_ = handed
        if not self.taken_up:
            self._heard_early(log_id, first_no, last_no)
            return
        cursor = self.cursors.get(log_id)
        if cursor is None:
            if first_no == 1:  # the log has just begun
                cursor = RemoteCursor(self.given.get(log_id, 0), last_no)
            else:
                cursor = self._late(log_id, first_no, last_no)
            self.cursors[log_id] = cursor
        # Before the client knows its position nothing is taken: it would name what is yet to come.
        has_room = self.subscription.opened and self.subscription.has_space()
        if cursor.arrived(first_no, last_no, has_room):
            self.subscription.hand_over(handed)
        elif cursor.wants():
            if self.subscription.opened and not has_room and first_no <= cursor.next_no:
                self.subscription.witness.slow("moved back to replay")
            self._fetch(log_id, cursor)

    def placed(self, log_id: LogId, after_no: int) -> None:
        """The place in a log was found."""
        cursor = self._answered(log_id)
        if not cursor.is_placed:
            cursor.placed(after_no)
            self._placed.set()
            if self._position_is_told:
                self._untold[log_id] = after_no
        self._go_on(log_id, cursor)

    def fetched(self, handed: Handed) -> None:
        """Some of what was asked for has come."""
        self._served[handed.log_id] = None
        if self.cursors[handed.log_id].fetched(handed.first_no, handed.last_no):
            self.subscription.hand_over(handed)

    def ended(self, log_id: LogId, end_no: int | None) -> None:
        """All has come that was asked for. With a number: the holder has no more than that."""
        cursor = self._answered(log_id)
        if end_no is not None:
            cursor.ends(end_no)
            if log_id in self.lacking and log_id in self._served:
                # Who has served it was asked in place of one that lacks it: others may have more.
                cursor.reaches(self._fetcher.reach(log_id) or 0)
        self._go_on(log_id, cursor)

    def lacked(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        """The holder cannot serve a range, nor can those who were asked before."""
        cursor = self._answered(log_id)
        if last_no:
            # Who lacks less has what comes behind that.
            last_no = min([last_no, *self.lacking.pop(log_id, {}).values()])
            cursor.asked()  # until it is told nothing is taken: a GAP overtakes what waits
            self._gaps[log_id] = first_no, last_no, reason
        self._go_on(log_id, cursor)

    def lost(self, log_id: LogId) -> None:
        """The holder is gone before it has answered: somebody else may have the log."""
        self._go_on(log_id, self._answered(log_id))

    def _answered(self, log_id: LogId) -> RemoteCursor:
        cursor = self.cursors[log_id]
        cursor.answered()
        if cursor.is_placed:
            self._fetches -= 1
            self.subscription.reserve(-PIECE_BYTES)
        else:
            self._placings -= 1
        return cursor

    def _go_on(self, log_id: LogId, cursor: RemoteCursor) -> None:
        """Who has waited longer comes first."""
        self.refill()
        self._fetch(log_id, cursor)

    # What is asked for ----------------------------------------------------------------------------

    def refill(self) -> None:
        """There is room again."""
        if self._untold and self.subscription.opened:
            self._tell_places()
        if self._gaps and not self.subscription.waiting:
            self._tell_gaps()
        while self._unplaced and self._placings < PLACINGS_MAX:
            self._fetch_first(self._unplaced)
        while self._starved and self._may_fetch():
            self._fetch_first(self._starved)
        if self._starved:
            self.subscription.when_room(self.refill)

    def _tell_places(self) -> None:
        untold, self._untold = self._untold, {}
        for log_id, after_no in untold.items():
            self.subscription.place(log_id, after_no)

    def _tell_gaps(self) -> None:
        gaps, self._gaps = self._gaps, {}
        for log_id, (first_no, last_no, reason) in gaps.items():
            cursor = self.cursors[log_id]
            cursor.answered()
            cursor.skipped(last_no)
            self.subscription.report(log_id, first_no, last_no, reason)
            self._fetch(log_id, cursor)

    def _fetch_first(self, waiting: dict[LogId, None]) -> None:
        log_id = next(iter(waiting))
        del waiting[log_id]
        self._fetch(log_id, self.cursors[log_id])

    def close(self) -> None:
        """The subscription has ended: nothing is taken or asked for any more."""
        self.closed = True
        self.taken_up = False
        self.subscription.reserve(-PIECE_BYTES * self._fetches)

    def _may_fetch(self) -> bool:
        return self._fetches < FETCHES_MAX and self.subscription.has_room()

    def _fetch(self, log_id: LogId, cursor: RemoteCursor) -> None:
        if not cursor.wants():
            return
        length = PIECE_BYTES if cursor.is_placed else 0
        if length and not self._may_fetch():
            self._starved[log_id] = None
            self.subscription.when_room(self.refill)
        elif not length and self._placings >= PLACINGS_MAX:
            self._unplaced[log_id] = None
        elif self._fetcher.fetch(self, log_id, cursor.next_no - 1, cursor.since_us, length):
            cursor.asked()
            self._served.pop(log_id, None)
            if length:
                self._fetches += 1
                self.subscription.reserve(length)
            else:
                self._placings += 1
