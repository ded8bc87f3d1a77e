"""Packing messages into batches: the hot path of publishing.

Messages of one topic with the same flags share a *lane*; its open batch takes them in the order in
which they come, from whomever. Batches wait in a queue in the order in which they were begun, and
whoever writes to the socket takes them out when it takes more, open or not: so a batch is as large
as the time that the one before it took, and nothing waits for a timer.

An *owner* is whoever appends to a lane. It is granted a piece of the open batch and fills it
with a subtraction and an `append` for each message, nothing else (measured: 0.2 µs with the
`await`); what is kept for a message besides is done once for each grant. Whatever ends a grant
(the batch is packed, another owner comes) takes back what is left of it, and the owner asks anew.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from busnode.client.batch import Batch, Lane, Owner, no_grant
from busnode.client.room import Room
from busnode.wire.batches import Columns
from busnode.wire.errors import Refused
from busnode.wire.frames import Flags
from busnode.wire.ids import Topic
from busnode.wire.limits import BATCH_MESSAGES_MAX, KIB

MIRRORED: Final = "mirrored"
"""What a publisher may require."""

SCOPES: Final = {"global": Flags.GLOBAL, "local": Flags.LOCAL, "remote": Flags.REMOTE}

MESSAGE_CHARGE: Final = 64
"""Counted for each message beside its bytes: about what Python takes for it. With it one counter
bounds memory, the size of a batch and its number of messages."""

BATCH_CHARGE_MAX: Final = BATCH_MESSAGES_MAX * MESSAGE_CHARGE
"""256 KiB: from there on a larger batch gains nothing. A larger message is a batch of its own."""

GRANT_CHARGE: Final = 64 * KIB
"""A grant: some 340 small messages, a quarter of a batch. They carry the time of its beginning, so
it should be short: at the speed of one publisher that is 0.2 ms. A quarter of it cost 6 % more."""

SAME_TIME_US: Final = 1000
"""Messages of a batch that come within a millisecond carry the same time, and most batches no
column of times: it costs as much to write and to read as all the rest of packing."""

LANES_MAX: Final = 4096
"""Lanes that are kept although nothing waits in them: those of the topics in use."""


class Batching:
    """All lanes of a client, and the batches that wait to be written."""

    def __init__(self, persistent: Room, plain: Room) -> None:
        self.rooms = {True: persistent, False: plain}
        self._queues: dict[bool, deque[Batch]] = {True: deque(), False: deque()}
        self.lanes: dict[tuple[str, bool, str, str | None], Lane] = {}
        """By topic, persistence, scope and what is required."""
        self._lanes_max = LANES_MAX
        self._held: dict[Lane, None] = {}
        """Lanes in which somebody has a grant."""
        self._plain_next = False
        self.grants = True
        """False while nothing is written: then each message gets the time at which it came."""

    def lane(self, topic: Topic, persistent: bool, scope: str, require: str | None = None) -> Lane:
        """The lane of a topic that was checked."""
        key = (topic, persistent, scope, require)
        lane = self.lanes.get(key)
        if lane is None:
            flags = SCOPES.get(scope)
            if flags is None:
                raise Refused(f"scope {scope!r:.40}; expected {', '.join(SCOPES)}")
            if persistent:
                flags |= Flags.PERSISTENT
            if require == MIRRORED and persistent:
                flags |= Flags.MIRROR_REQUIRED
            elif require is not None:
                what = f"require {require!r:.40}" if persistent else "require without persistent"
                raise Refused(f"{what}; a persistent message may require {MIRRORED!r}")
            if len(self.lanes) >= self._lanes_max:
                kept = {key: each for key, each in self.lanes.items() if each.open}
                self.lanes.clear()  # in place: it is looked up from outside
                self.lanes.update(kept)
                self._lanes_max = max(LANES_MAX, 2 * len(kept))
            lane = self.lanes[key] = Lane(topic, flags)
        return lane

    def room(self, lane: Lane) -> Room:
        return self.rooms[lane.persistent]

    def waiting(self, persistent: bool) -> deque[Batch]:
        """The batches that nobody has taken yet, the oldest first."""
        return self._queues[persistent]

    def place(
        self,
        lane: Lane,
        owner: Owner,
        payload: bytes,
        headers: Mapping[str, str] | None,
        message_id: str | None,
        charge: int,
        utc_us: int,
    ) -> Batch:
        """Put a message into its lane, and grant the owner more if it can be had.

        `charge` was taken from the lane's room before.
        """
        batch = self._begin(lane, owner, charge, utc_us)
        batch.add(payload, headers, message_id)
        self._grant(lane, batch, owner)
        return batch

    def place_many(
        self,
        lane: Lane,
        owner: Owner,
        payloads: list[bytes],
        charge: int,
        utc_us: int,
        headers: Mapping[str, str] | None = None,
    ) -> Batch:
        """As `place`, for messages that fit into one batch together and have the same headers."""
        batch = self._begin(lane, owner, charge, utc_us)
        batch.add_many(payloads, headers)
        return batch

    def place_alone(
        self, lane: Lane, owner: Owner, columns: Columns, charge: int, utc_us: int
    ) -> Batch:
        """Make messages a batch that takes no others."""
        self._end_grant(lane)
        lane.open = None
        batch = self._begin(lane, owner, charge, utc_us)
        batch.payloads = list(columns.payloads)
        batch.ids = None if columns.ids is None else list(columns.ids)
        batch.headers = None if columns.headers is None else list(columns.headers)
        lane.open = None
        return batch

    def _begin(self, lane: Lane, owner: Owner, charge: int, utc_us: int) -> Batch:
        self._end_grant(lane)
        batch = lane.open
        if batch is None or batch.charge + charge > BATCH_CHARGE_MAX:
            batch = lane.open = Batch(lane)
            self._queues[lane.persistent].append(batch)
        batch.charge += charge
        index = len(batch.payloads)
        if not batch.shares or batch.shares[-1][1] is not owner:
            batch.shares.append((index, owner))
        if not batch.stamps or not 0 <= utc_us - batch.stamps[-1][1] < SAME_TIME_US:
            batch.stamps.append((index, utc_us))
        return batch

    def _grant(self, lane: Lane, batch: Batch, owner: Owner) -> None:
        granted = min(GRANT_CHARGE, BATCH_CHARGE_MAX - batch.charge)
        if self.grants and granted > 0 and self.rooms[lane.persistent].take(granted):
            owner.room = lane.granted = granted
            owner.append = batch.payloads.append
            lane.holder = owner
            self._held[lane] = None

    def _end_grant(self, lane: Lane) -> None:
        owner = lane.holder
        if owner is not None:
            assert lane.open is not None
            lane.open.charge += lane.granted - owner.room
            left, owner.room, owner.append = owner.room, 0, no_grant
            lane.holder = None
            del self._held[lane]
            self.rooms[lane.persistent].give_back(left)

    def end_grants(self) -> None:
        """Let the next message of each owner be looked at: time has passed."""
        for lane in list(self._held):
            self._end_grant(lane)

    def next_batch(self, *, persistent: bool) -> Batch | None:
        """The batch to write next, taken out of the queue; `persistent` ones only where allowed.

        The two kinds take turns, so that neither waits for the other to end.
        """
        self._plain_next = not self._plain_next
        for kind in (not self._plain_next, self._plain_next):
            queue = self._queues[kind]
            if queue and (persistent or not kind):
                batch = queue.popleft()
                lane = batch.lane
                if lane.open is batch:
                    self._end_grant(lane)
                    lane.open = None
                return batch
        return None
