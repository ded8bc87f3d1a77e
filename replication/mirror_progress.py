"""How far one mirror has got with our logs, and what its word is worth.

A machine without IO. A mirror is *in force* once it holds all that was durable here when it was
chosen: from then on an ack waits for it. One that lets us wait for too long is let go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from busnode.wire.ids import LogId

SILENT_S: Final = 2.0
"""How long publishes wait for a mirror that does not answer."""


@dataclass(slots=True)
class _Lack:
    """What it lacks of one log: what comes behind a number, up to another one."""

    had_no: int
    end_no: int
    message_bytes: float
    absent: tuple[int, int] = 0, -1
    """What was met last that cannot be sent, first and last number: behind it may be no more."""


class MirrorProgress:
    """One mirror of one origin."""

    def __init__(self) -> None:
        self.in_force = False
        self.behind = 0
        """Messages that it still lacks of those that were durable when it was chosen."""
        self.behind_bytes = 0.0
        """The same in bytes, as far as messages of one log are alike."""
        self.total = 0
        """Messages that it lacked when it was chosen."""
        self.total_bytes = 0.0
        self._safe: dict[LogId, int] = {}
        self._behind: dict[LogId, _Lack] = {}
        """Logs of which it lacks something that is durable here."""
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
    def logs_behind(self) -> int:
        return len(self._behind)

    @property
    def unanswered(self) -> Mapping[LogId, tuple[int, float]]:
        """Logs of which it has not synced what was sent: up to which number, and since when."""
        return self._unanswered

    def lacks(
        self, log_id: LogId, end_no: int, first_no: int = 1, message_bytes: float = 0.0
    ) -> None:
        """A log that it must catch up with before it is in force. The log begins with `first_no`,
        and a message of it takes so many bytes."""
        had_no = self.safe_no(log_id)
        if end_no > had_no:
            lack = _Lack(min(max(had_no, first_no - 1), end_no), end_no, message_bytes)
            self._behind[log_id] = lack
            self.total += end_no - lack.had_no
            self.total_bytes += (end_no - lack.had_no) * message_bytes
            self._count(lack, end_no - lack.had_no)

    def absent(self, log_id: LogId, first_no: int, last_no: int) -> None:
        """A range that cannot be sent, since it has expired or cannot be read here either."""
        lack = self._behind.get(log_id)
        if lack is None:
            return
        before_no, until_no = lack.absent
        if before_no <= first_no <= until_no + 1:
            first_no, last_no = before_no, max(last_no, until_no)
        lack.absent = first_no, last_no
        if first_no <= lack.end_no <= last_no:
            end_no = max(lack.had_no, first_no - 1)
            self._count(lack, end_no - lack.end_no)
            lack.end_no = end_no
            self._catch_up(log_id, lack)
            self._judge()

    def asked(self, now: float) -> None:
        """It was asked to be our mirror."""
        self._asked_at = now

    def sent(self, log_id: LogId, last_no: int, now: float) -> None:
        """Something went out, or is to, that it must answer, unless it had that already."""
        if last_no > self.safe_no(log_id):
            _, since = self._unanswered.get(log_id, (0, now))
            self._unanswered[log_id] = last_no, since

    def synced(self, log_id: LogId, safe_no: int, now: float) -> None:
        """It has synced a log up to a number."""
        if safe_no <= self.safe_no(log_id):
            return
        self._safe[log_id] = safe_no
        lack = self._behind.get(log_id)
        if lack is not None:
            had_no = min(max(lack.had_no, safe_no), lack.end_no)
            self._count(lack, lack.had_no - had_no)
            lack.had_no = had_no
            self._catch_up(log_id, lack)
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

    def waiting_s(self, now: float) -> float:
        """For how long it has let us wait, at most, without any answer about a log."""
        return max((now - since for _, since in self._unanswered.values()), default=0.0)

    def _count(self, lack: _Lack, more: int) -> None:
        self.behind += more
        self.behind_bytes += more * lack.message_bytes

    def _catch_up(self, log_id: LogId, lack: _Lack) -> None:
        if lack.end_no <= max(lack.had_no, self.safe_no(log_id)):
            del self._behind[log_id]
            if not self._behind:
                self.behind_bytes = 0.0  # what rounding has left

    def _judge(self) -> None:
        if self._begun and not self._behind:
            self.in_force = True
