"""A queue group: several members, of whom exactly one gets each batch."""

from collections import deque
from functools import partial
from typing import Final, NamedTuple

from busnode.node.handed import Handed
from busnode.node.subscription import LogCursor, Mender, Subscription
from busnode.node.unfinished import Unfinished
from busnode.segments.damage import Hole
from busnode.segments.store import Cold, Log, Range
from busnode.wire.frames import HEADER_BYTES, TRANSPORT_AT, Flags, Transport, read_header
from busnode.wire.ids import LogId, Pattern, Topic
from busnode.wire.limits import KIB
from busnode.world.entropy import Entropy

FILL_BYTES: Final = 64 * KIB
"""What is read from a log at once, unless one batch is larger: of the smallest batches it has 800,
and to take these apart takes 5 ms."""


class QueueGroup:
    """The members of one group that have the same pattern: clients of this node, and other nodes
    that stand for members there.

    For what is published here it has one place in each log for all of them. What is committed is
    handed out batch by batch, at random among those that have credit; when nobody has, it waits in
    the log. What another node has chosen us for goes to a client here, and never on.
    """

    def __init__(
        self, name: str, pattern: Pattern, entropy: Entropy, mender: Mender | None = None
    ) -> None:
        self.is_peer = False
        self.name = name
        self.pattern = pattern
        self.members: list[Subscription] = []
        self._entropy = entropy
        self._mender = mender
        self._cursors: dict[LogId, LogCursor] = {}
        self._ready: deque[LogCursor] = deque()
        """Places in logs that may have more, in turn."""
        self._fetching: dict[LogCursor, Subscription] = {}
        """Those whose next range is being fetched from the disk, over a member's connection."""
        self._held: deque[Handed] = deque()
        """Records read from a log that no member had credit for."""
        self._forwarded: deque[Handed] = deque()
        """Records that another node has sent, which hears when a member is done with them."""

    @property
    def has_clients(self) -> bool:
        """Whether a member is a client of this node."""
        return any(not member.is_peer for member in self.members)

    # As a listener --------------------------------------------------------------------------------

    def may_have(self, topic: Topic) -> bool:
        del topic
        return True  # each member was let in because it may have all that the pattern matches

    def offer_at_once(self, batches: memoryview, count: int) -> bool:
        del batches, count
        return False  # they are handed out one by one

    def offer(self, batches: bytes, count: int) -> None:
        del count
        for batch in split(batches):
            members = self._in_scope(self.members, batch.flags)
            able = [member for member in members if member.has_room()] or members
            if able:
                chosen = self._choose(able)
                chosen.offer(forwarded(batch.data) if chosen.is_peer else batch.data, batch.count)

    def dropped_before(self, count: int) -> None:
        del count  # who would have got one of them is not known

    def read(self, log: Log, after_no: int) -> None:
        self._cursors[log.log_id] = LogCursor(log, after_no)
        self.committed(log)

    def committed(self, log: Log) -> None:
        cursor = self._cursors.get(log.log_id)
        if cursor is not None and not cursor.queued:
            cursor.queued = True
            self._ready.append(cursor)
            self._distribute()

    def pump(self) -> None:
        for member in list(self.members):
            member.pump()

    # From another node ----------------------------------------------------------------------------

    def offer_forwarded(self, batches: bytes) -> None:
        """Another node has chosen this one for messages that are not persistent."""
        members = [member for member in self.members if not member.is_peer]
        for batch in split(batches) if members else ():
            self._choose([m for m in members if m.has_room()] or members).offer(
                batch.data, batch.count
            )

    def hand_forwarded(self, handed: Handed) -> None:
        """Another node has chosen this one for records of its log."""
        self._forwarded.append(handed)
        self._distribute_forwarded()

    def report_forwarded(self, log_id: LogId, first_no: int, last_no: int, reason: str) -> None:
        """Another node cannot serve a range of its log to the group."""
        members = [member for member in self.members if not member.is_peer]
        if members:
            self._choose(members).report(log_id, first_no, last_no, reason)

    def _distribute_forwarded(self) -> None:
        able = [member for member in self._able() if not member.is_peer]
        while able and self._forwarded:
            chosen = self._choose(able)
            chosen.hand_over(self._forwarded.popleft())
            if not chosen.has_room():
                able.remove(chosen)

    # Members --------------------------------------------------------------------------------------

    def join(self, member: Subscription) -> None:
        self.members.append(member)
        member.unfinished = Unfinished()
        member.refill = partial(self._serve, member)
        self._distribute()

    def leave(self, member: Subscription) -> None:
        """What it has not sent, and what its client was not done with, goes to the others."""
        self.members.remove(member)
        unfetched = [each for each, fetcher in self._fetching.items() if fetcher is member]
        for cursor in unfetched:
            del self._fetching[cursor]
            self._ready.append(cursor)
        handed, live = member.give_back()
        self._held.extendleft(each for each in reversed(handed) if not each.is_remote)
        self._forwarded.extendleft(each for each in reversed(handed) if each.is_remote)
        if not self.has_clients:
            # What has made its hop goes no further. The node that chose us hears that nobody is
            # left here, and gives all that we have not finished to others.
            self._forwarded.clear()
        if self.members and (handed or live or unfetched):
            for batches, count in live:
                self.offer(batches, count)
            self.has_credit()

    def has_credit(self) -> None:
        """A member has credit again."""
        self._distribute()
        self.pump()

    # Handing out ----------------------------------------------------------------------------------

    def _choose(self, members: list[Subscription]) -> Subscription:
        """One of them at random; another node counts for as many members as it has."""
        at = int(self._entropy.random() * sum(member.weight for member in members))
        for member in members:
            at -= member.weight
            if at < 0:
                return member
        return members[-1]

    def _able(self) -> list[Subscription]:
        return [member for member in self.members if member.has_room()]

    def _in_scope(self, members: list[Subscription], flags: int) -> list[Subscription]:
        """Those whom a message may reach."""
        if flags & Flags.GLOBAL == Flags.GLOBAL:
            return members
        remote = bool(flags & Flags.REMOTE)
        return [member for member in members if member.is_peer == remote]

    def _serve(self, member: Subscription) -> None:
        """It has sent what it was handed: who is fast gets more of what waits."""
        if not member.is_peer and self._forwarded:
            self._distribute_forwarded()
        while member.has_room() and (self._held or self._fill([member])):
            if self._whom([member]):
                member.hand_over(self._held.popleft())
            elif self._held:
                return  # the first of what waits is for others

    def _distribute(self) -> None:
        self._distribute_forwarded()
        able = self._able()
        while able and (self._held or self._fill(able)):
            whom = self._whom(able)
            if whom:
                chosen = self._choose(whom)
                chosen.hand_over(self._held.popleft())
                if not chosen.has_room():
                    able.remove(chosen)
            elif self._held:
                return

    def _whom(self, able: list[Subscription]) -> list[Subscription]:
        """Who of those that are able may get what waits first; what is for nobody that is left in
        the group is dropped."""
        while self._held:
            flags = read_header(memoryview(self._held[0].data), 0).flags
            if self._in_scope(self.members, flags):
                return self._in_scope(able, flags)
            self._held.popleft()
        return []

    def _fill(self, able: list[Subscription]) -> bool:
        """Read the next range of some log into memory."""
        while self._ready:
            cursor = self._ready[0]
            found = cursor.reader.next_in_memory(FILL_BYTES, FILL_BYTES)
            if found is None:
                cursor.queued = False
                self._ready.popleft()
                continue
            if isinstance(found, Cold):
                self._ready.popleft()
                self._fetching[cursor] = able[0]
                able[0].fetch(found, partial(self._fetched, cursor, found))
                continue
            log_id = cursor.log.log_id
            read = found if isinstance(found, Hole) else _read(cursor, found)
            if isinstance(read, Hole):
                self._ready.popleft()
                then = partial(self._mended, cursor, read)
                if self._mender is None or not self._mender.ask(cursor.log, read, then):
                    self._ready.append(cursor)
                    self._report(able, log_id, read)
                continue
            self._ready.rotate(-1)
            for batch in split(read):
                if self._in_scope(self.members, batch.flags):
                    numbers = batch.first_no, batch.first_no + batch.count - 1
                    self._held.append(Handed(log_id, *numbers, batch.data, is_remote=False))
            if self._held:
                return True
        return False

    def _report(self, able: list[Subscription], log_id: LogId, hole: Hole) -> None:
        own = [member for member in able if not member.is_peer] or able
        self._choose(own).report(log_id, hole.first_no, hole.last_no, hole.told)

    def _mended(self, cursor: LogCursor, hole: Hole, readable: bool) -> None:
        if readable:
            cursor.reader = cursor.log.reader(hole.first_no - 1)
        elif self.members:
            self._report(self.members, cursor.log.log_id, hole)
        self._ready.append(cursor)
        self.has_credit()

    def _fetched(self, cursor: LogCursor, cold: Cold, error: OSError | None) -> None:
        if self._fetching.pop(cursor, None) is not None:  # else its member has left meanwhile
            cursor.reader.fetched(cold, error)
            self._ready.append(cursor)
            self.has_credit()


def _read(cursor: LogCursor, found: Range) -> bytes | Hole:
    try:
        return read_range(found)
    except OSError as error:
        cursor.reader.suspect(found)
        return Hole(
            found.first_no, found.last_no, found.file.path, found.offset, found.length,
            f"cannot be read: {error}",
        )  # fmt: skip


def read_range(found: Range) -> bytes:
    """What a range holds that is in memory, or as good as."""
    if found.data is not None:
        return bytes(found.data)
    buffer = bytearray(found.length)
    with memoryview(buffer) as view:
        if found.file.read_into(view, found.offset) != found.length:
            raise OSError(f"{found.file.path} ends before byte {found.offset + found.length}")
    return bytes(buffer)


class SplitBatch(NamedTuple):
    data: bytes
    count: int  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]
    flags: int
    first_no: int


def split(batches: bytes) -> list[SplitBatch]:
    """The batches of a run one by one."""
    found: list[SplitBatch] = []
    at = 0
    with memoryview(batches) as view:
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            data = bytes(view[at : at + header.length])
            found.append(SplitBatch(data, header.count, header.flags, header.first_no))
            at += header.length
    return found


def forwarded(batch: bytes) -> bytes:
    """The batch as it goes to another node: its one hop is used up."""
    flagged = bytearray(batch)
    flagged[TRANSPORT_AT] |= Transport.FORWARDED
    return bytes(flagged)
