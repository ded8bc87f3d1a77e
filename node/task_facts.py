"""What a node knows of the tasks of other incarnations, written down for whoever comes after it.

An heir has a copy of all that its predecessor has written, and may have older copies, or none, of
what that one had read. These are facts that hold for good: what is finished stays so, and what goes
on elsewhere is not let go of there before another has it. Only who has accepted a task may follow
those that have it elsewhere, and then goes on with it in its own log.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import msgpack

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.tasks.ranges import Numbers
from busnode.wire.batches import decode_columns
from busnode.wire.errors import BadBatch
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, Topic
from busnode.wire.shapes import is_list

logger = logging.getLogger(__name__)

FACTS: Final = Topic("/$sys/task/facts")

RUNS_MAX: Final = 4096
"""In one message: at 18 bytes each, 72 KiB."""

Kind = Literal["finished", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Of tasks by their numbers in the log of an origin."""

    kind: Kind
    origin: BrokerId
    queue: str
    numbers: Numbers


def encode_fact(fact: Fact) -> list[bytes]:
    """[kind, origin, queue, [first, last, first, last …]], in as many messages as it takes."""
    runs = list(fact.numbers.runs())
    payloads: list[bytes] = []
    for at in range(0, len(runs), RUNS_MAX):
        ends = [end for run in runs[at : at + RUNS_MAX] for end in run]
        packed = msgpack.packb([fact.kind, fact.origin, fact.queue, ends])
        assert isinstance(packed, bytes)
        payloads.append(packed)
    return payloads


def read_facts(log: Log) -> Iterator[Fact]:
    """What one incarnation knew; what cannot be read is as good as never heard. OSError."""
    for found in read_batches(log):
        if isinstance(found, Hole):
            continue
        header, body = found
        try:
            for payload in decode_columns(body, header.count).payloads:
                yield _decode(payload)
        except BadBatch as error:
            logger.warning("facts in %s cannot be read: %s", log.log_id, error)


def _decode(payload: bytes) -> Fact:
    try:
        kind, origin, queue, ends = msgpack.unpackb(payload, max_ext_len=0)
        if kind not in get_args(Kind) or len(origin) != BROKER_ID_BYTES or not is_list(ends):
            raise ValueError("not a kind, an origin, a queue and pairs of numbers")
        numbers = Numbers()
        for first, last in zip(ends[::2], ends[1::2], strict=True):
            numbers.add_run(int(first), int(last))
        return Fact(kind, BrokerId(bytes(origin)), str(queue), numbers)
    except (ValueError, TypeError) as error:
        raise BadBatch(f"a fact cannot be read: {error!r:.200}") from error
