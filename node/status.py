"""What there is to know about a running node, as plain values that JSON can carry.

All of it is bounded, in size and in work: it is put together in one go, while everybody else waits.
"""

import json
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from busnode import __version__
from busnode.node.access import check_right
from busnode.node.cluster_status import cluster_status
from busnode.node.task_status import task_status
from busnode.security.rules import Rights
from busnode.wire import limits
from busnode.wire.errors import Refused
from busnode.wire.ids import Pattern, Topic
from busnode.wire.topics import check_pattern, matches
from busnode.world.real_process import resident_bytes

if TYPE_CHECKING:
    from busnode.node.node import RunningNode
    from busnode.node.session import ClientSession
    from busnode.node.subscription import Subscription
    from busnode.segments.store import Log

ROWS_MAX: Final = 1000
"""Clients, subscriptions, logs and flaws, each."""

PEERS_MIN: Final = 60
"""Other nodes that a status has however short it is to be: who asks all nodes finds them there."""

LOGS_EXAMINED_MAX: Final = 10_000
"""Logs whose sizes are compared, and places in logs that are added up: 15 ms."""

TOPICS_EXAMINED_MAX: Final = 5_000
"""Topics that one request for topics is matched against; the next one goes on from there."""

ANSWER_BYTES_MAX: Final = limits.REQUEST_BYTES_MAX - 4 * limits.KIB
"""What fits into one reply."""

STATUS: Final = Topic("/$sys/status")

Status = dict[str, Any]


def unready(node: "RunningNode") -> str | None:
    """Why clients should not come here, or None."""
    if node.draining:
        return "draining: this node is leaving"
    if not node.serving:
        return "starting: this node takes no clients yet"
    if node.incarnations.failure is not None:
        return f"storage: persistent messages are refused: {node.incarnations.failure}"
    return None


def status(node: "RunningNode", rows_max: int = ROWS_MAX) -> Status:
    """All of it; lists are cut to `rows_max`, with the whole number beside them."""
    publishing = node.publishing
    examined = list(islice(node.store.logs(), LOGS_EXAMINED_MAX)) if rows_max else []
    logs = nlargest(rows_max, examined, key=_size_bytes)
    flaws = node.store.flaws()
    reason = unready(node)
    return {
        "name": node.name,
        "cluster_id": node.config.cluster_id,
        "broker_id": node.broker_id.hex(),
        "version": __version__,
        "uptime_s": round(node.world.clock.monotonic() - node.started_at, 3),
        "utc_us": node.world.clock.utc_us(),
        "addresses": node.listeners.addresses(),
        "ready": reason is None,
        "unready_reason": reason,
        "draining": node.draining,
        "incarnations": node.incarnations.count,
        "counters": {
            "messages_live": publishing.messages_live,
            "messages_persistent": publishing.messages_persistent,
            "repeats": publishing.repeats,
            "commits": node.committer.commits,
            "received_bytes": _received_bytes(node),
            "logs_poisoned": len(node.committer.poisoned),
            "messages_forwarded": publishing.messages_forwarded,
            "messages_from_peers": publishing.messages_from_peers,
        },
        "cluster": cluster_status(node.peers, node.world, max(rows_max, PEERS_MIN)),
        "requests_under_way": len(node.bidding.requests),
        "providers": node.bidding.requests.providers,
        "durable_names": len(node.durable),
        "tasks": task_status(node.task_queues, node.task_home, rows_max),
        "rss_bytes": resident_bytes(),
        "clients_count": len(node.sessions),
        "clients": _clients(node, rows_max),
        "logs_count": sum(1 for _ in node.store.logs()),
        "logs_examined": len(examined),
        "logs": [_log(log) for log in logs],
        "flaws_count": len(flaws),
        "flaws": [str(flaw) for flaw in flaws[:rows_max]],
    }


def _received_bytes(node: "RunningNode") -> int:
    """From clients, those that have left too."""
    here = sum(session.received_bytes for session in node.sessions.values())
    return node.departed.received_bytes + here


def _size_bytes(log: "Log") -> int:
    return log.size_bytes


def _log(log: "Log") -> Status:
    return {
        "broker_id": log.log_id.broker_id.hex(),
        "topic": log.log_id.topic,
        "first_no": log.first_no,
        "last_no": log.committed_no,
        "bytes": log.size_bytes,
        "holes": len(log.holes()),
        "poisoned": log.poisoned,
    }


def _clients(node: "RunningNode", rows_max: int) -> list[Status]:
    subscriptions_left = rows_max
    cursors_left = LOGS_EXAMINED_MAX
    clients: list[Status] = []
    for session in islice(node.sessions.values(), rows_max):
        mine = node.subscriptions.of(session)
        shown: list[Status] = []
        for subscription in islice(mine.values(), subscriptions_left):
            cursors_left -= len(subscription.cursors)
            shown.append(_subscription(node, session, subscription, counted=cursors_left >= 0))
        subscriptions_left -= len(shown)
        clients.append(
            {
                "client_no": session.client_no,
                "name": session.name,
                "address": str(session.peer),
                "received_bytes": session.received_bytes,
                "sent_bytes": session.outgoing.sent_bytes,
                "subscriptions_count": len(mine),
                "subscriptions": shown,
                "queues": [
                    {"queue": queue, "wants": wants}
                    for queue, wants in islice(node.task_home.polls_of(session), rows_max)
                ],
            }
        )
    return clients


def _subscription(
    node: "RunningNode", session: "ClientSession", subscription: "Subscription", *, counted: bool
) -> Status:
    behind: int | None = None
    if counted:
        behind = subscription.behind
        reading = node.subscriptions.readings.get(subscription)
        behind += 0 if reading is None else reading.behind
    return {
        "number": subscription.number,
        "pattern": subscription.pattern,
        "durable": subscription.durable,
        "behind": behind,
        "credit_bytes": subscription.credit_bytes,
        "dropped": subscription.dropped_total,
        "idle": why_idle(session, subscription),
    }


def why_idle(session: "ClientSession", subscription: "Subscription") -> str:
    """What a subscription waits for, as one of a few words."""
    if not subscription.opened:
        return "starting"
    if not subscription.waiting:
        return "caught up"
    if session.outgoing.blocked:
        return "socket full"
    return "no credit" if subscription.credit_bytes <= 0 else "sending"


# As answers of the system -------------------------------------------------------------------------


def answer_status(node: "RunningNode", payload: bytes, rights: Rights | None) -> Status:
    """The status, with lists short enough for one reply, and no longer than `rows` if that is
    asked for. Who is no administrator gets what it takes to find the other nodes, which every
    client is told. Refused for a payload that makes no sense."""
    shape = 'expected {"rows": 1000} or nothing'
    given = read_object(payload, shape)
    rows_max = given.pop("rows", ROWS_MAX)
    if given or not isinstance(rows_max, int) or rows_max < 0:
        raise Refused(f"the payload has something that makes no sense; {shape}")
    rows_max = min(rows_max, ROWS_MAX)
    if rights is not None and not rights.allows("admin", STATUS):
        if rows_max:
            check_right(rights, "admin", STATUS)
        return _directory(node)
    while True:
        found = status(node, rows_max)
        if rows_max == 0 or len(json.dumps(found)) <= ANSWER_BYTES_MAX:
            return found
        rows_max //= 4


def _directory(node: "RunningNode") -> Status:
    """Which nodes there are, and nothing else."""
    shown = ("name", "broker_id", "clients_at", "link", "dials_us", "error")
    peers = cluster_status(node.peers, node.world, PEERS_MIN)["peers"]
    return {
        "name": node.name,
        "broker_id": node.broker_id.hex(),
        "cluster_id": node.config.cluster_id,
        "cluster": {"peers": [{each: row[each] for each in shown} for row in peers]},
    }


def answer_topics(node: "RunningNode", payload: bytes, rights: Rights | None) -> Status:
    """Topics that match, from an offset on, as far as who asks may subscribe to them; `next` is
    where to go on, or None at the end.

    The offset counts all topics, in the order in which this node has met them, so that a page
    costs the same wherever it begins. Refused for a payload that makes no sense.
    """
    pattern, offset, limit = _paging(payload)
    topics = node.router.topics()
    rows: list[Status] = []
    size_bytes = 0
    at = offset
    for topic in islice(topics, offset, offset + TOPICS_EXAMINED_MAX):
        if matches(pattern, topic) and (rights is None or rights.allows("subscribe", topic)):
            row = _topic(topic, node.router.logs(Pattern(str(topic))))
            size_bytes += len(json.dumps(row)) + 2
            if len(rows) == limit or size_bytes > ANSWER_BYTES_MAX:
                break
            rows.append(row)
        at += 1
    count = len(topics) if rights is None else None
    return {"topics": rows, "next": at if at < len(topics) else None, "count": count}


def _topic(topic: str, logs: Iterator["Log"]) -> Status:
    found = list(logs)
    return {
        "topic": topic,
        "logs": len(found),
        "messages": sum(max(0, log.committed_no + 1 - log.first_no) for log in found),
        "bytes": sum(map(_size_bytes, found)),
    }


def _paging(payload: bytes) -> tuple[Pattern, int, int]:
    shape = 'expected {"pattern": "/orders/*", "offset": 0, "limit": 100} or a part of it'
    asked: Status = {"pattern": "/*", "offset": 0, "limit": ROWS_MAX, **read_object(payload, shape)}
    match asked:
        case {"pattern": str(pattern), "offset": int(offset), "limit": int(limit)}:
            if len(asked) == 3 and 0 <= offset < 2**63 and limit > 0:
                return check_pattern(pattern), offset, min(limit, ROWS_MAX)
        case _:
            pass
    raise Refused(f"the payload has something that makes no sense; {shape}")


def read_object(payload: bytes, shape: str) -> Status:
    """The JSON object that a question holds, an empty one where it holds nothing; or Refused."""
    try:
        given: Any = json.loads(payload or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(f"the payload is no JSON; {shape}") from error
    found: Status = {}
    if not isinstance(given, dict):
        raise Refused(f"the payload is no JSON object; {shape}")
    found |= given
    return found
