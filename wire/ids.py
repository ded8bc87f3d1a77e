"""The names of things: who wrote a log, who is connected, where a message stands."""

from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", bytes)
"""GUID of one incarnation of a node, 16 bytes."""

Topic = NewType("Topic", str)
"""A topic that has passed `topics.check_topic`."""

Pattern = NewType("Pattern", str)
"""A pattern that has passed `topics.check_pattern`."""

MsgNo = NewType("MsgNo", int)
"""Sequence number of a persistent message in one log, from 1."""

ClientNo = NewType("ClientNo", int)
"""Number that a node gives a client connection."""

ProducerId = NewType("ProducerId", int)
"""Random u64 that a producer draws once; with producerSeq it names a batch wherever it turns up."""

BROKER_ID_BYTES = 16
NO_BROKER = BrokerId(bytes(BROKER_ID_BYTES))
"""What a batch carries before a node has stamped it."""


class LogId(NamedTuple):
    """One log: all persistent messages of one incarnation and one topic."""

    broker_id: BrokerId
    topic: Topic

    def __str__(self) -> str:
        return f"{self.broker_id.hex()[:8]}:{self.topic}"


class Cursor(NamedTuple):
    """The last message that a consumer has finished with in one log."""

    broker_id: BrokerId
    topic: Topic
    msg_no: MsgNo
