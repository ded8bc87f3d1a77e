"""What a message may carry."""

from collections.abc import Sequence
from typing import cast

from busnode.wire.errors import BatchTooLarge, Refused
from busnode.wire.limits import PAYLOAD_BYTES_MAX

Payload = bytes | bytearray | memoryview


def checked(payload: Payload) -> bytes:
    """A payload that a batch can carry."""
    if not isinstance(payload, bytes):
        kind: type = type(payload)
        if kind not in (bytearray, memoryview):
            raise Refused(f"payload of type {kind.__name__}; expected bytes: encode it")
        payload = bytes(payload)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise BatchTooLarge(f"payload of {len(payload)} bytes; the limit is {PAYLOAD_BYTES_MAX}")
    return payload


def checked_many(payloads: Sequence[Payload]) -> Sequence[bytes]:
    """All of them, or none when one cannot be carried."""
    if set(map(type, payloads)) - {bytes} or max(map(len, payloads), default=0) > PAYLOAD_BYTES_MAX:
        return [checked(payload) for payload in payloads]
    return cast("Sequence[bytes]", payloads)
