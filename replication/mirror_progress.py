"""How far one mirror has got with our logs, and what its word is worth.

A machine without IO. A mirror is *in force* once it holds all that was durable here when it was
chosen: from then on an ack waits for it. One that lets us wait for too long is let go.
"""

from typing import Final

from busnode.wire.ids import LogId

SILENT_S: Final = 2.0
"""How long publishes wait for a mirror that does not answer."""


class MirrorProgress:
    """One mirror of one origin."""

    def __init__(self) -> None:
        self.in_force = False
        self._safe: dict[LogId, int] = {}
        self._behind: dict[LogId, int] = {}
        """Logs of which it lacks something that is durable here: up to which number."""
        self._unanswered: dict[LogId, tuple[int, float]] = {}
        """What was sent and not synced there yet: up to which number, of each log, and since when
        nothing of it has moved. Each log for itself: the copy of one may be lost to writing while
        the others go on."""
        self._asked_at: float | None = None
        """Since when it lets us wait for what it has."""
        self._begun = False

    def safe_no(self, log_id: LogId) -> int:
        """Up to which number it has synced a log."""
        return self._safe.get(log_id, 0)

    @property
    def behind(self) -> int:
        """Messages that it still lacks of those that were durable when it was chosen."""
        return sum(end_no - self.safe_no(log_id) for log_id, end_no in self._behind.items())

    def lacks(self, log_id: LogId, end_no: int) -> None:
        """A log that it must catch up with before it is in force."""
        if end_no > self.safe_no(log_id):
            self._behind[log_id] = end_no

    def absent(self, log_id: LogId, first_no: int, last_no: int) -> None:
        """A range that cannot be sent, since it has expired or cannot be read here either."""
        if first_no <= self._behind.get(log_id, 0) <= last_no:
            self._behind[log_id] = first_no - 1
            self._catch_up(log_id)
            self._judge()

    def asked(self, now: float) -> None:
        """It was asked to be our mirror."""
        self._asked_at = now

    def sent(self, log_id: LogId, last_no: int, now: float) -> None:
        """Something went out that it must answer, unless it had that already."""
        if last_no > self.safe_no(log_id):
            _, since = self._unanswered.get(log_id, (0, now))
            self._unanswered[log_id] = last_no, since

    def synced(self, log_id: LogId, safe_no: int, now: float) -> None:
        """It has synced a log up to a number."""
        if safe_no <= self.safe_no(log_id):
            return
        self._safe[log_id] = safe_no
        self._catch_up(log_id)
        last_no, _ = self._unanswered.pop(log_id, (0, now))
        if last_no > safe_no:
            self._unanswered[log_id] = last_no, now

    def heard(self, now: float, *, begun: bool) -> None:
        """It has answered; once it has begun, that it lacks nothing puts it in force."""
        self._asked_at = None if begun else now
        self._begun = begun
        self._judge()

    def is_silent(self, now: float) -> bool:
        """Whether it has let us wait for too long."""
        if self._asked_at is not None and now - self._asked_at >= SILENT_S:
            return True
        return any(now - since >= SILENT_S for _, since in self._unanswered.values())

    def _catch_up(self, log_id: LogId) -> None:
        if self._behind.get(log_id, 0) <= self.safe_no(log_id):
            self._behind.pop(log_id, None)

    def _judge(self) -> None:
        if self._begun and not self._behind:
            self.in_force = True
