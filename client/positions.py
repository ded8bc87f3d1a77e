"""A consumer's position: its cursor in each log that it has read."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from xxhash import xxh3_64_hexdigest

from busnode.client.deduplication import Seen
from busnode.wire.errors import Refused
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, MsgNo, Topic

FORMAT: Final = 1


class Position(dict[tuple[BrokerId, Topic], MsgNo]):
    """{(brokerId, topic): msgNo of the last message that is done}.

    It is complete: a log that it does not name is read from 1. So an empty one is not "no
    position" but the very beginning of everything.

    One that a subscription has reached also carries which batches were done last, so that whoever
    goes on from it drops those that stand in a second log as well. Once a cursor was moved by hand
    that counts no more: what is asked for again is not a repeat.
    """

    _seen: Seen = ()
    _seen_at: int | None = None

    def having_seen(self, seen: Seen) -> "Position":
        """The same position, with the batches that were done on the way to it."""
        self._seen = seen
        self._seen_at = hash(frozenset(self.items()))
        return self

    @property
    def seen(self) -> Seen:
        """Batches that were done; none when the position is not where they were done any more."""
        return self._seen if self._seen and self._seen_at == hash(frozenset(self.items())) else ()

    def nested(self) -> dict[BrokerId, dict[str, int]]:
        """As control messages carry it."""
        nested: dict[BrokerId, dict[str, int]] = {}
        for (broker_id, topic), msg_no in self.items():
            nested.setdefault(broker_id, {})[topic] = msg_no
        return nested

    @classmethod
    def of(cls, nested: Mapping[BrokerId, Mapping[str, int]]) -> "Position":
        """From a control message."""
        return cls(
            {
                (broker_id, Topic(topic)): MsgNo(msg_no)
                for broker_id, topics in nested.items()
                for topic, msg_no in topics.items()
            }
        )

    def encode(self) -> str:
        """JSON text that people can read and `decode` can check."""
        logs = {
            broker_id.hex(): dict(sorted(topics.items()))
            for broker_id, topics in sorted(self.nested().items())
        }
        seen = [f"{producer:x} {block:x} {mask:x}" for producer, block, mask in self.seen]
        whole: dict[str, Any] = {"format": FORMAT, "position": logs}
        if seen:
            whole["seen"] = seen
        return json.dumps({**whole, "hash": _hash([logs, seen] if seen else logs)}, indent=1)

    @classmethod
    def decode(cls, text: str | bytes) -> "Position":
        """Refused for anything that `encode` did not write: a wrong cursor would lose messages in
        silence."""
        try:
            whole = json.loads(text)
            if whole["format"] != FORMAT:
                raise Refused(f"position of format {whole['format']}; this version reads {FORMAT}")
            logs = cast("dict[str, dict[str, Any]]", whole["position"])
            seen = cast("list[str]", whole.get("seen", []))
            if whole["hash"] != _hash([logs, seen] if seen else logs):
                raise Refused("position whose hash does not fit: it was damaged or edited by hand")
            position = cls(
                {
                    (_broker_id(broker_id), Topic(topic)): _msg_no(msg_no)
                    for broker_id, topics in logs.items()
                    for topic, msg_no in topics.items()
                }
            )
            return position.having_seen(tuple(_mask(text) for text in seen))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(f"text that is no position: {type(error).__name__} {error}") from error


def _hash(logs: object) -> str:
    return xxh3_64_hexdigest(json.dumps(logs, sort_keys=True, separators=(",", ":")).encode())


def _broker_id(text: str) -> BrokerId:
    raw = bytes.fromhex(text)
    if len(raw) != BROKER_ID_BYTES:
        raise ValueError(f"brokerId of {len(raw)} bytes")
    return BrokerId(raw)


def _mask(text: str) -> tuple[int, int, int]:
    producer, block, mask = (int(word, 16) for word in text.split(" "))
    return producer, block, mask


def _msg_no(value: Any) -> MsgNo:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise ValueError(f"msgNo {value!r:.40}")
    return MsgNo(value)
