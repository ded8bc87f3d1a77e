"""A queue group: several members, of whom exactly one gets each batch."""

from collections import deque
from functools import partial

from busnode.node.subscription import PIECE_BYTES, LogCursor, Subscription
from busnode.segments.damage import Hole
from busnode.segments.store import Log, Range
from busnode.wire.frames import HEADER_BYTES, read_header
from busnode.wire.ids import LogId, Pattern
from busnode.world.entropy import Entropy


class QueueGroup:
    """The members of one group at one node that have the same pattern.

    It has one place in each log for all of them. What is committed is handed out batch by batch, at
    random among those that have credit; when nobody has, it waits in the log.
    """

    def __init__(self, name: str, pattern: Pattern, entropy: Entropy) -> None:
        self.name = name
        self.pattern = pattern
        self.members: list[Subscription] = []
        self._entropy = entropy
        self._cursors: dict[LogId, LogCursor] = {}
        self._ready: deque[LogCursor] = deque()
        """Places in logs that may have more, in turn."""
        self._held: deque[tuple[Log, bytes]] = deque()
        """Records read from a log that no member had credit for."""

    # As a listener --------------------------------------------------------------------------------

    def offer_at_once(self, batches: memoryview, count: int) -> bool:
        del batches, count
        return False  # they are handed out one by one

    def offer(self, batches: bytes, count: int) -> None:
        del count
        able = self._able() or self.members
        for batch, messages in split(batches):
            self._choose(able).offer(batch, messages)

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

    # Members --------------------------------------------------------------------------------------

    def join(self, member: Subscription) -> None:
        self.members.append(member)
        member.refill = partial(self._serve, member)
        self._distribute()

    def leave(self, member: Subscription) -> None:
        """What it has not sent goes to the others."""
        self.members.remove(member)
        handed, live = member.give_back()
        self._held.extendleft(reversed(handed))
        if self.members and (handed or live):
            for batches, count in live:
                self.offer(batches, count)
            self.has_credit()

    def has_credit(self) -> None:
        """A member has credit again."""
        self._distribute()
        self.pump()

    # Handing out ----------------------------------------------------------------------------------

    def _choose(self, members: list[Subscription]) -> Subscription:
        return members[int(self._entropy.random() * len(members))]

    def _able(self) -> list[Subscription]:
        return [member for member in self.members if member.has_room()]

    def _serve(self, member: Subscription) -> None:
        """It has sent what it was handed: who is fast gets more of what waits."""
        while member.has_room() and (self._held or self._fill([member])):
            member.hand_over(*self._held.popleft())

    def _distribute(self) -> None:
        able = self._able()
        while able and (self._held or self._fill(able)):
            chosen = self._choose(able)
            chosen.hand_over(*self._held.popleft())
            if not chosen.has_room():
                able.remove(chosen)

    def _fill(self, able: list[Subscription]) -> bool:
        """Read the next range of some log into memory: as much as one piece, never more."""
        while self._ready:
            cursor = self._ready[0]
            found = cursor.reader.next_range(PIECE_BYTES)
            if found is None:
                cursor.queued = False
                self._ready.popleft()
                continue
            self._ready.rotate(-1)
            if isinstance(found, Hole):
                self._choose(able).report(cursor, found)
                continue
            self._held.extend((cursor.log, record) for record, _ in split(read_range(found)))
            return True
        return False


def read_range(found: Range) -> bytes:
    buffer = bytearray(found.length)
    with memoryview(buffer) as view:
        if found.file.read_into(view, found.offset) != found.length:
            raise OSError(f"{found.file.path} ends before byte {found.offset + found.length}")
    return bytes(buffer)


def split(batches: bytes) -> list[tuple[bytes, int]]:
    """The batches of a run one by one, each with its number of messages."""
    found: list[tuple[bytes, int]] = []
    at = 0
    with memoryview(batches) as view:
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            found.append((bytes(view[at : at + header.length]), header.count))
            at += header.length
    return found
