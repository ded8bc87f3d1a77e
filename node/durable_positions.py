"""Positions of durable subscriptions: kept on the node under a name, as persistent messages.

Each save appends the whole position to the log of `/$sys/durable/<name>`; the newest one counts.
They are messages like any other, so they are synced, replayed and later mirrored in the same way.
"""

from typing import Any, Final, cast

import msgpack

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.wire.batches import decode_columns
from busnode.wire.errors import BadBatch, BadTopic, Refused
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.topics import check_topic

PREFIX: Final = "/$sys/durable/"

Position = dict[LogId, MsgNo]


def topic_of(name: str) -> Topic:
    """The topic under which a position is kept. Refused when the name cannot be part of a topic."""
    try:
        if "/" in name:
            raise BadTopic("it has a /")
        return check_topic(PREFIX + name)
    except BadTopic as error:
        raise Refused(f"durable name {name!r} cannot be used: {error.text}") from error


def encode_position(position: Position) -> bytes:
    """A position as a payload: {brokerId: {topic: msgNo}}."""
    packed = msgpack.packb(nest(position))
    assert isinstance(packed, bytes)
    return packed


def decode_position(payload: bytes) -> Position:
    """Raises BadBatch for anything else."""
    try:
        nested: Any = msgpack.unpackb(payload, max_array_len=0, max_ext_len=0)
        return {
            LogId(BrokerId(bytes(broker_id)), Topic(str(topic))): MsgNo(int(msg_no))
            for broker_id, topics in nested.items()
            for topic, msg_no in topics.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise BadBatch(f"a stored position cannot be read: {error!r:.200}") from error


def nest(position: Position) -> dict[BrokerId, dict[str, int]]:
    """A position in the shape of the wire."""
    nested: dict[BrokerId, dict[str, int]] = {}
    for (broker_id, topic), msg_no in position.items():
        nested.setdefault(broker_id, {})[topic] = msg_no
    return nested


def flatten(nested: dict[BrokerId, dict[str, int]]) -> Position:
    # Cast as a whole: a position may have forty thousand cursors, and while they are gone through
    # everybody waits.
    return {
        LogId(broker_id, topic): msg_no
        for broker_id, topics in nested.items()
        for topic, msg_no in cast("dict[Topic, MsgNo]", topics).items()
    }


class DurablePositions:
    """The newest position for each name, taken from the logs at the start."""

    def __init__(self) -> None:
        self._positions: dict[str, tuple[int, Position]] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def load(self, log: Log) -> None:
        """Take over what a log of positions holds, if it is newer than what is known."""
        name = log.log_id.topic.removeprefix(PREFIX)
        for found in read_batches(log, max(0, log.committed_no - 1)):
            if isinstance(found, Hole):
                continue
            header, body = found
            try:
                position = decode_position(decode_columns(body, header.count).payloads[-1])
            except BadBatch:
                continue
            if name not in self._positions or self._positions[name][0] <= header.utc_us:
                self._positions[name] = header.utc_us, position

    def get(self, name: str) -> Position | None:
        found = self._positions.get(name)
        return None if found is None else dict(found[1])

    def moved(self, name: str, cursors: Position) -> Position:
        """What the whole position would be when some cursors have moved."""
        return {**(self.get(name) or {}), **cursors}

    def next_utc_us(self, name: str, now_us: int) -> int:
        """When the next position of a name is saved. Later than the one before, whatever the
        calendar says: the latest is the one that counts."""
        found = self._positions.get(name)
        return now_us if found is None else max(now_us, found[0] + 1)

    def keep(self, name: str, position: Position, utc_us: int) -> None:
        self._positions[name] = utc_us, position

    def names(self) -> list[str]:
        return list(self._positions)
