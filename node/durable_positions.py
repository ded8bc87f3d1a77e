"""Durable subscriptions: registered with their home under a name, as persistent messages.

Each save appends the whole registration to the log of `/$sys/durable/<name>`: what the client
wants, and its position. They are messages like any other, so they are synced and mirrored in the
same way. The newest one counts, wherever in the cluster it is.
"""

from typing import Any, Final, NamedTuple, cast

import msgpack

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.wire.batches import decode_columns
from busnode.wire.errors import BadBatch, BadTopic, LimitReached, Refused
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.limits import KIB, SUBSCRIBE_BYTES_MAX
from busnode.wire.topics import check_topic

PREFIX: Final = "/$sys/durable/"

REGISTRATION_BYTES_MAX: Final = SUBSCRIBE_BYTES_MAX - 4 * KIB
"""A registration must fit into the frame in which it is told to another node, and its position into
the answer to a subscription."""

Position = dict[LogId, MsgNo]


class Registration(NamedTuple):
    """A durable subscription as it is kept."""

    saved_us: int
    """When. It grows with each save, whatever the calendar says."""
    pattern: str
    client: str
    """The name that its client has given."""
    position: Position


def topic_of(name: str) -> Topic:
    """The topic under which a position is kept. Refused when the name cannot be part of a topic."""
    try:
        if "/" in name:
            raise BadTopic("it has a /")
        return check_topic(PREFIX + name)
    except BadTopic as error:
        raise Refused(f"durable name {name!r} cannot be used: {error.text}") from error


def encode_registration(registration: Registration) -> bytes:
    """A registration as a payload: [pattern, client, {brokerId: {topic: msgNo}}]. LimitReached when
    nobody could be told of it any more."""
    _, pattern, client, position = registration
    packed = msgpack.packb([pattern, client, nest(position)])
    assert isinstance(packed, bytes)
    if len(packed) > REGISTRATION_BYTES_MAX:
        raise LimitReached(
            f"a position of {len(position)} logs takes {len(packed)} bytes; the limit of what is "
            f"kept for a durable subscription is {REGISTRATION_BYTES_MAX}"
        )
    return packed


def decode_registration(payload: bytes, saved_us: int) -> Registration:
    """Raises BadBatch for anything else."""
    try:
        unpacked: Any = msgpack.unpackb(payload, max_array_len=3, max_ext_len=0)
        pattern, client, nested = unpacked
        position = {
            LogId(BrokerId(bytes(broker_id)), Topic(str(topic))): MsgNo(int(msg_no))
            for broker_id, topics in nested.items()
            for topic, msg_no in topics.items()
        }
        return Registration(saved_us, str(pattern), str(client), position)
    except (ValueError, AttributeError, TypeError) as error:
        raise BadBatch(f"a registration cannot be read: {error!r:.200}") from error


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
    """The newest registration for each name that this node knows."""

    def __init__(self) -> None:
        self._registrations: dict[str, Registration] = {}

    def __len__(self) -> int:
        return len(self._registrations)

    def load(self, log: Log) -> None:
        """Take over what a log of registrations holds, if it is newer than what is known."""
        name = log.log_id.topic.removeprefix(PREFIX)
        for found in read_batches(log, max(0, log.committed_no - 1)):
            if isinstance(found, Hole):
                continue
            header, body = found
            try:
                payload = decode_columns(body, header.count).payloads[-1]
                self.learn(name, decode_registration(payload, header.utc_us))
            except BadBatch:
                continue

    def learn(self, name: str, registration: Registration) -> None:
        """Something was kept under a name, here or elsewhere; the newest counts."""
        known = self._registrations.get(name)
        if known is None or known.saved_us <= registration.saved_us:
            self._registrations[name] = registration

    def registration(self, name: str) -> Registration | None:
        return self._registrations.get(name)

    def get(self, name: str) -> Position | None:
        """The position of a name; it is the caller's."""
        found = self._registrations.get(name)
        return None if found is None else dict(found.position)

    def moved(self, name: str, cursors: Position, now_us: int) -> Registration:
        """What is to be kept when some cursors of a registered name have moved. Later than the one
        before, whatever the calendar says: the latest is the one that counts."""
        saved_us, pattern, client, position = self._registrations[name]
        return Registration(max(now_us, saved_us + 1), pattern, client, {**position, **cursors})

    def names(self) -> list[str]:
        return list(self._registrations)
