"""Claims as they are written down and told: messages of a system topic like any other."""

import logging
from collections.abc import Iterable
from typing import Final

import msgpack

from busnode.segments.batch_iterator import read_batches
from busnode.segments.damage import Hole
from busnode.segments.store import Log
from busnode.tasks.claims import Claimed
from busnode.wire.batches import decode_columns
from busnode.wire.control import TaskClaim
from busnode.wire.errors import BadBatch
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, Topic

logger = logging.getLogger(__name__)

CLAIMS: Final = Topic("/$sys/task/claims")


def message_of(claimed: Claimed) -> TaskClaim:
    return TaskClaim(claimed.origin, claimed.claimer, claimed.claimed_us, list(claimed.extents))


def encode_claim(claimed: Claimed) -> bytes:
    """[origin, claimer, when, [[queue, msgNo]]]"""
    packed = msgpack.packb(
        [claimed.origin, claimed.claimer, claimed.claimed_us, list(claimed.extents)]
    )
    assert isinstance(packed, bytes)
    return packed


def read_claims(log: Log) -> Iterable[Claimed]:
    """Those of one log; what cannot be read is as good as never heard."""
    for found in read_batches(log):
        if isinstance(found, Hole):
            continue
        header, body = found
        try:
            for payload in decode_columns(body, header.count).payloads:
                yield decode_claim(payload)
        except BadBatch as error:
            logger.warning("claims in %s cannot be read: %s", log.log_id, error)


def decode_claim(payload: bytes) -> Claimed:
    try:
        origin, claimer, claimed_us, extents = msgpack.unpackb(payload, max_ext_len=0)
        if {len(origin), len(claimer)} != {BROKER_ID_BYTES}:
            raise ValueError("brokerId of the wrong length")
        rows = tuple((str(queue), int(last_no)) for queue, last_no in extents)
        return Claimed(BrokerId(bytes(origin)), BrokerId(bytes(claimer)), int(claimed_us), rows)
    except (ValueError, TypeError) as error:
        raise BadBatch(f"a claim cannot be read: {error!r:.200}") from error
