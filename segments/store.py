"""The store as an interface: what a node asks of whatever keeps its logs.

`files` and `memory` are the two that come with busnode; another is found by its name in the entry
point group `busnode.storage`. All are held to the same tests (tests/segments/store_contract.py).

A store holds the logs of the running incarnation, of earlier ones, and copies of other nodes' logs.
One task owns it. `append` only writes; `commit` makes durable all that was appended before it, and
only then do readers see it. Opening a store, `commit`, `next_range`, `first_at` and `examine` may
wait for a disk, and so do `begin`, the first `create` of another node's incarnation, and `expire`
where a log loses its last segment; nothing else does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from busnode.segments.damage import Flaw, Hole, Mended, Patch
from busnode.segments.retention import Expired, RetentionRules
from busnode.segments.steps import Steps
from busnode.wire.ids import BrokerId, LogId, MsgNo
from busnode.world.clock import Clock
from busnode.world.files import Bytes, Files, ReadFile


@dataclass(frozen=True, slots=True)
class Range:
    """Whole records of one log as they lie in a file: what `Stream.send_range` takes.

    The range may begin before the number that was asked for: a record is a batch, and its reader
    skips what it has. The file stays open as long as somebody holds the range.
    """

    file: ReadFile
    offset: int
    length: int
    first_no: MsgNo
    last_no: MsgNo
    data: Bytes | None = None
    """What it holds, where that was read already."""
    stored_us: int = 0
    """When the newest of it and of what lies beside it was stored, as far as it is durable."""


@dataclass(frozen=True, slots=True)
class Cold:
    """A range that lies on the disk alone: `range.file.fetch` it, then tell the reader."""

    range: Range


class LogReader(Protocol):
    """Walks through one log for one consumer; it holds a place, not a copy."""

    @property
    def next_no(self) -> MsgNo:
        """The number that comes next."""
        ...

    def next_range(self, bytes_max: int) -> Range | Hole | None:
        """What comes next: records, a hole that this copy cannot serve, or None: nothing yet.

        A range is about `bytes_max` long at most, and at least one record. This waits for the disk
        and raises OSError when it cannot be read: it is for tools.
        """
        ...

    def next_in_memory(self, bytes_max: int, data_max: int) -> Range | Hole | Cold | None:
        """The same without waiting for a disk: a range that can be sent at once, with its data when
        that is no more than `data_max`; one that must be fetched first; a hole where one cannot be
        read. Raises OSError only for what has nothing to do with the disk."""
        ...

    def fetched(self, cold: Cold, error: OSError | None) -> None:
        """A range was fetched, or cannot be: it comes next, or a hole in its place. Raises an error
        that has nothing to do with the disk."""
        ...

    def suspect(self, found: Range) -> None:
        """A range that was given as one in memory could not be read after all: from now on it and
        what lies near it is cold for every reader, so that who asks again learns of it in time."""
        ...


class Log(Protocol):
    """All persistent messages of one incarnation and topic, as far as this store has them."""

    @property
    def log_id(self) -> LogId: ...

    @property
    def first_no(self) -> MsgNo:
        """The oldest number that is not expired."""
        ...

    @property
    def next_no(self) -> MsgNo:
        """The number that the next message gets."""
        ...

    @property
    def committed_no(self) -> MsgNo:
        """The last number that is durable; 0 when there is none."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def stored_us(self) -> int:
        """When the newest of it was stored, by this node's clock."""
        ...

    @property
    def poisoned(self) -> str | None:
        """Why this log takes no more, or None."""
        ...

    def append(
        self, records: Bytes, count: int, utc_us_max: int, stored_us: int | None = None
    ) -> None:
        """Write records that carry the numbers from `next_no` on; they hold `count` messages.

        `stored_us` is for a copy: when their origin stored them, by this node's clock. Without it
        they count as stored when they are committed.

        Raises LogPoisoned when this or an earlier write or sync failed: then it never takes more.
        """
        ...

    def take_up_again(self) -> None:
        """Let a copy that takes no more go on behind what is durable of it, in files of its own:
        what was lost is sent again. Never for a log that this node writes itself: its numbers were
        given away. LogPoisoned, and all stays as it is, when that is not possible yet."""
        ...

    def skip_to(self, next_no: MsgNo) -> None:
        """Leave a hole up to `next_no`: only for a copy whose origin has dropped that range."""
        ...

    @property
    def appended_no(self) -> MsgNo:
        """The last number that was appended, durable or not; 0 when there is none."""
        ...

    def reader(self, after_no: int, *, ahead: bool = False) -> LogReader:
        """Read what comes after a number. What has expired since arrives as a hole.

        `ahead` reads also what is not durable yet, from a durable number on: for a mirror, which
        makes it durable at the same time.
        """
        ...

    def first_at(self, utc_us: int) -> MsgNo:
        """The first number from which on all that is not older than a moment is found."""
        ...

    def tail_after(self, size_bytes: int) -> MsgNo:
        """A number behind which about the last `size_bytes` of the log lie."""
        ...

    def examine(self, offset: Range) -> list[Hole]:
        """Look again at records that somebody found damaged; what is damaged is remembered."""
        ...

    def examine_steps(self, msg_no: int) -> Steps[list[Hole]]:
        """The same for what lies around a number, in steps."""
        ...

    def holes(self) -> list[Hole]:
        """All that this copy is known not to have between `first_no` and `next_no`."""
        ...

    def mend(self, patches: Sequence[Patch]) -> Steps[list[Mended]]:
        """Put records into holes of one segment, in steps; durable when it ends. What is
        filled now; the others can be tried again.

        BadRecord unless the records are good and the first that a hole lacks, OSError when the disk
        fails: then all is as it was before.
        """
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit brought: logs that moved, and logs that are lost to writing."""

    logs: list[Log]
    poisoned: list[Log] = field(default_factory=list[Log])


class Store(Protocol):
    def begin(self, broker_id: BrokerId) -> None:
        """Take up a new incarnation; durable when it returns. SecondWriter if it is known."""
        ...

    def create(self, log_id: LogId) -> Log:
        """The log, made when it is not there yet: for the one who writes it."""
        ...

    def get(self, log_id: LogId) -> Log | None: ...

    def logs(self) -> Iterator[Log]:
        """All logs, in a fixed order."""
        ...

    def dirty(self) -> bool:
        """Whether anything waits for a commit."""
        ...

    async def commit(self) -> Committed:
        """Make durable what was appended before the call: one sync for all that is pending.

        One at a time. Appending may go on meanwhile, and belongs to the next one.
        """
        ...

    def expire(self, rules: RetentionRules, most: int | None = None) -> list[Expired]:
        """Drop whole segments that the rules no longer keep; with `most` no more than so many, and
        the next call goes on."""
        ...

    def flaws(self) -> list[Flaw]:
        """What opening found wrong that costs no message."""
        ...

    def close(self) -> None:
        """Make all durable and let go of everything. The store is of no more use."""
        ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store behaves; the same for every kind of storage."""

    segment_bytes_max: int = 64 * 1024 * 1024
    """A segment is the unit of retention and repair: large enough that there are few."""
    segment_age_s_max: float = 3 * 3600.0
    """An eighth of the default retention: a silent topic keeps messages that much longer."""
    open_files_max: int = 1024
    """Files open at once for appending, and as many for reading; one more while all are synced."""


class Storage(Protocol):
    """What an entry point in `busnode.storage` must be: it opens a store.

    `directory` is the node's data directory; a storage that needs none leaves it alone.
    """

    def __call__(
        self, files: Files, clock: Clock, directory: str, options: StoreOptions
    ) -> Store: ...
