"""What is wrong with a log: holes in its numbers, named by file and byte."""

import posixpath
from dataclasses import dataclass
from typing import NamedTuple

from busnode.wire.ids import MsgNo


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of messages that this copy cannot serve, and where it should have been.

    The bytes stay where they are; another copy can serve the range. `last_no` is 0 when nobody
    here can tell how far it goes.
    """

    first_no: MsgNo
    last_no: MsgNo
    path: str
    offset: int
    length: int
    reason: str

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + self.length

    @property
    def told(self) -> str:
        """The reason as a consumer is told it, which knows the log and not its files."""
        if not self.path:
            return self.reason
        return f"{posixpath.basename(self.path)} at byte {self.offset}: {self.reason}"

    @property
    def costs_nothing(self) -> bool:
        """Bytes between two records that are none: to be stepped over, and no message is missing.
        Only a segment holds such a one; to everybody else it is a flaw."""
        return self.last_no == self.first_no - 1

    @property
    def may_pass(self) -> bool:
        """Whether a disk could not read it, and may be able to another time."""
        return self.reason.startswith(UNREADABLE)

    def __str__(self) -> str:
        numbers = f"{self.first_no}–{self.last_no or '?'}"
        where = f"{self.path} at byte {self.offset}" if self.path else "nowhere here"
        return f"messages {numbers}: {where}, {self.length} bytes: {self.reason}"


class Patch(NamedTuple):
    """Records for a hole: all that it lacks, or one piece of that."""

    hole: Hole
    records: bytes


class Mended(NamedTuple):
    """A hole, or one piece of it, that is filled."""

    hole: Hole
    first_no: MsgNo
    last_no: MsgNo
    quarantine: str | None
    """The file in which the damaged bytes are kept, if there were any."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong that costs no message: an index, a file header, a torn tail."""

    path: str
    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}, {self.length} bytes: {self.reason}"


EXPIRED = "expired: retention has dropped it"
UNREADABLE = "cannot be read"
"""How the reason begins for what a disk did not read: nobody knows whether it is damaged."""
