"""What one node tells of the logs that it holds, for whoever puts together what all nodes hold.

It comes in pages, each of which costs the same wherever it begins, and a few milliseconds at most.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from busnode.node.status import ANSWER_BYTES_MAX, read_object
from busnode.security.rules import Rights
from busnode.wire.errors import Refused
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId, LogId, Pattern, Topic
from busnode.wire.topics import check_pattern, matches

if TYPE_CHECKING:
    from busnode.node.node import RunningNode
    from busnode.segments.store import Log

ROWS_MAX: Final = 500
"""Logs in one answer: 7 ms."""

LOGS_EXAMINED_MAX: Final = 5_000
"""Logs that one question is matched against; the next one goes on from there: 8 ms."""

Row = dict[str, Any]


def answer_logs(node: "RunningNode", payload: bytes, rights: Rights | None) -> Row:
    """Logs that match a pattern, from an offset on, or those that are named, as far as who asks may
    subscribe to them; `next` is where to go on, or None at the end. Refused for a payload that
    makes no sense."""
    pattern, offset, limit, named = _asked(payload)
    teller = _Teller(node)
    rows: list[Row] = []
    size_bytes = 0
    at = offset
    logs = list(node.store.logs())
    count = len(logs)
    examined = _named(node, named) if named else logs[offset : offset + LOGS_EXAMINED_MAX]
    for log in examined:
        topic = log.log_id.topic
        if (named or matches(pattern, topic)) and (
            rights is None or rights.allows("subscribe", topic)
        ):
            row = teller.row(log)
            size_bytes += len(json.dumps(row)) + 2
            if len(rows) == limit or size_bytes > ANSWER_BYTES_MAX:
                break
            rows.append(row)
        at += 1
    return {
        "node": node.name,
        "broker_id": node.broker_id.hex(),
        "copies_wanted": node.config.mirrors + 1,
        "logs": rows,
        "next": at if not named and at < count else None,
        "count": count if rights is None else None,
    }


def _named(node: "RunningNode", named: Iterable[LogId]) -> list["Log"]:
    found = (node.store.get(log_id) for log_id in named)
    return [log for log in found if log is not None]


class _Teller:
    """Knows of all logs at once what is the same for those of one incarnation."""

    def __init__(self, node: "RunningNode") -> None:
        self._node = node
        self._names = node.peers.names()
        self._written = node.peers.written()

    def row(self, log: "Log") -> Row:
        broker_id, topic = log.log_id
        is_own = broker_id in self._node.ownership
        is_open = broker_id == self._node.broker_id and log.poisoned is None
        row: Row = {
            "broker_id": broker_id.hex(),
            "topic": topic,
            "first_no": log.first_no,
            "last_no": log.committed_no,
            "bytes": log.size_bytes,
            "holes": len(log.holes()),
            "poisoned": log.poisoned,
            "role": "origin" if is_own else "mirror" if broker_id in self._written else "copy",
            "origin": self._node.name if is_own else self._names.get(broker_id),
            "open": is_open,
            "level": None,
            "mirrors": {},
        }
        if is_open:
            streams = self._node.mirroring.streams.values()
            row["level"] = self._node.mirroring.safe(log)[1]
            row["mirrors"] = {
                stream.link.name: stream.progress.safe_no(log.log_id) for stream in streams
            }
        return row


def _asked(payload: bytes) -> tuple[Pattern, int, int, list[LogId]]:
    shape = (
        'expected {"pattern": "/orders/*", "offset": 0, "limit": 100} or a part of it, or '
        '{"logs": [["BROKER_ID", "TOPIC"]]}'
    )
    asked: Row = {
        "pattern": "/*", "offset": 0, "limit": ROWS_MAX, "logs": [], **read_object(payload, shape)
    }  # fmt: skip
    match asked:
        case {"pattern": str(pattern), "offset": int(offset), "limit": int(limit), "logs": list()}:
            if len(asked) == 4 and 0 <= offset < 2**63 and limit > 0:
                named = [_log_id(each, shape) for each in asked["logs"][:ROWS_MAX]]
                return check_pattern(pattern), offset, min(limit, ROWS_MAX), named
        case _:
            pass
    raise Refused(f"the payload has something that makes no sense; {shape}")


def _log_id(told: Any, shape: str) -> LogId:
    try:
        broker_id, topic = told
        log_id = LogId(BrokerId(bytes.fromhex(broker_id)), Topic(str(topic)))
    except (TypeError, ValueError) as error:
        raise Refused(f"{str(told)[:100]} names no log; {shape}") from error
    if len(log_id.broker_id) != BROKER_ID_BYTES:
        raise Refused(f"{str(told)[:100]} names no log; {shape}")
    return log_id
