"""A consumer's place in another node's log.

What the log's holder commits comes to the home by itself, once for all consumers there. A consumer
that stands right before it takes it; one that is behind has its home fetch what is between, and
what comes meanwhile is passed over, because it will be fetched too. So the hand-over from replay to
live needs no luck: a number beyond the one expected is fetched, one below is dropped.
"""

from typing import Final

PIECE_BYTES: Final = 512 * 1024
"""What is fetched at once for one consumer: one round trip each."""


class RemoteCursor:
    """Decides what is taken, passed over and fetched. It does none of it."""

    __slots__ = ("_heard_no", "end_no", "fetching", "next_no", "since_us")

    def __init__(self, after_no: int, end_no: int, since_us: int | None = None) -> None:
        self.next_no = after_no + 1
        """What the consumer must get next."""
        self.end_no = end_no
        """How far a copy somewhere is known to reach."""
        self.since_us = since_us
        """While its place is not known: the moment from which on it reads."""
        self.fetching = False
        self._heard_no = 0
        """How far a copy was said to reach since something was asked for."""

    @property
    def is_placed(self) -> bool:
        return self.since_us is None

    @property
    def behind(self) -> int:
        """Messages that are known to be there and were not taken."""
        return max(0, self.end_no + 1 - self.next_no)

    def wants(self) -> bool:
        """Whether something must be fetched: its place in the log, or what it lacks."""
        return not self.fetching and (not self.is_placed or self.end_no >= self.next_no)

    def asked(self) -> None:
        """Somebody was asked for its place, or for what it lacks."""
        self.fetching = True
        self._heard_no = 0

    def answered(self) -> None:
        """There is nothing more to come of what was asked for."""
        self.fetching = False

    def reaches(self, end_no: int) -> None:
        """A copy is known to reach as far."""
        if end_no > self.end_no:
            self.end_no = end_no
        if end_no > self._heard_no:
            self._heard_no = end_no

    def arrived(self, first_no: int, last_no: int, has_room: bool) -> bool:
        """Something came by itself; whether the consumer takes it."""
        self.reaches(last_no)
        if self.fetching or not self.is_placed or not has_room:
            return False
        return self._take(first_no, last_no)

    def fetched(self, first_no: int, last_no: int) -> bool:
        """Something came that was asked for; whether the consumer takes it."""
        self.reaches(last_no)
        return self._take(first_no, last_no)

    def _take(self, first_no: int, last_no: int) -> bool:
        if first_no > self.next_no or last_no < self.next_no:
            return False
        self.next_no = last_no + 1
        return True

    def placed(self, after_no: int) -> None:
        """Its holder has found where it begins."""
        self.since_us = None
        self.next_no = after_no + 1

    def skipped(self, last_no: int) -> None:
        """Its holder does not have the range up to a number, and nobody else is known to."""
        if last_no >= self.next_no:
            self.next_no = last_no + 1

    def ends(self, end_no: int) -> None:
        """Its holder has no more than this. What was known of another copy, now gone, is not; what
        was heard since the holder was asked may be of one that has come."""
        self.end_no = max(end_no, self.next_no - 1, self._heard_no)
