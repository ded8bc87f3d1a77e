"""Administration of queues: questions to `/$sys/tasks`, which each node answers for its own tasks.

Both ways JSON; times are utc in µs, payloads base64. A node ignores fields that it does not know, a
client those that it does not ask for. An act names ids, and each node does what it says to those
that it owns; ids that it does not know are no error. A refusal is an error of the request.

    {"do": "queues", "queue": name or absent for all, "after": as told}
        {"queues": [{"queue": name, "ready": n, "delayed": n, "retrying": n, "leased": n,
                     "settling": n, "dead": n, "completed": n, "failed": n,
                     "oldest_us": us or null, "orphans": [brokerId]}], "next": as below}
    {"do": "ls", "queue": name, "state": "ready"|"delayed"|"retrying"|"leased"|"settling"|"dead",
     "limit": n, "after": as told}
    {"do": "dead", "queue": name, "error": text in the last error, "since_us": us, "until_us": us,
     "limit": n, "after": as told}
        {"tasks": [row], "next": what `after` is to be for the next page, or null}
    {"do": "show", "queue": name, "ids": [id]}
        {"tasks": [row with "payload", "headers" and "history"]}
    {"do": "requeue", "queue": name, "ids": [id], "payload": base64 or absent}
    {"do": "delete", "queue": name, "ids": [id]}
    {"do": "purge", "queue": name}                       all dead letters
        {"done": [id]}                                   when it is durable; of a purge {"count": n}

    row = {"id": id, "queue": name, "state": as above, "attempts": n, "enqueued_us": us,
           "due_us": us or null, "priority": n, "worker": who had it last or has it, or null,
           "error": the last or null, "failed_us": when that was or null, "payload_bytes": n}
    history = [[attempt, at_us, worker, error]]
"""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from busnode.client.everyone import Asking, Everyone, Status, Told, ask, ask_pages
from busnode.client.messages import EPOCH
from busnode.client.new_task import check_payload
from busnode.client.payloads import Payload
from busnode.client.task_event import Attempt, attempts_of
from busnode.wire.errors import BadTask

TASKS: Final = "/$sys/tasks"

PAGE: Final = 200
"""Rows that a node is asked for at once: with the longest errors they are a quarter of a reply."""

IDS_AT_ONCE: Final = 1000
"""Ids in one request: about 50 KiB."""

TIMEOUT_S: Final = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue, wherever its tasks are."""

    ready: int
    """Due, and nobody has them."""
    delayed: int
    """Not due yet."""
    retrying: int
    """Failed, and waiting for their next attempt."""
    leased: int
    settling: int
    """Settled by a worker, and not durable yet."""
    dead: int
    completed: int
    failed: int
    """Attempts that failed, or whose leases ran out; like `completed` since each node started."""
    oldest: datetime | None
    """When the oldest of those that are not finished was enqueued."""
    nodes: Mapping[str, Mapping[str, Any]]
    """What each node told."""
    silent: Mapping[str, str]
    """Who did not answer, and why: what is in their hands is not counted."""
    orphans: frozenset[str]
    """Incarnations that are no more, and with whose tasks nobody goes on yet: a node that was just
    started does so after 2 s, another one after `--adopt-after`. They are not counted either."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that is not tried any more."""

    id: str
    queue: str
    node: str
    """Whose it is."""
    attempts: int
    enqueued: datetime
    failed: datetime | None
    error: str
    """The last."""
    worker: str
    payload_bytes: int
    payload: bytes | None = None
    """This, `headers` and `history` are there where one letter is shown, not in lists."""
    headers: Mapping[str, str] | None = None
    history: Sequence[Attempt] = ()


Rows = list[dict[str, Any]]
Letters = list[DeadLetter]
Ids = list[str]


class DeadLetters:
    """The dead letters of a queue: `queue.dead`. All nodes of the cluster are asked.

    `silent` says who did not answer the last question, and why; their letters are not in the
    answer, and nothing was done to them.
    """

    def __init__(self, everyone: Everyone[Any], queue: str) -> None:
        self.silent: Mapping[str, str] = {}
        self._everyone = everyone
        self._queue = queue

    async def list(
        self,
        *,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Letters:
        """Those whose last error contains a text, and that died in a time; the oldest first."""
        asked: dict[str, Any] = {"do": "dead", "queue": self._queue, "limit": PAGE}
        if error is not None:
            asked["error"] = error
        if since is not None:
            asked["since_us"] = _utc_us(since)
        if until is not None:
            asked["until_us"] = _utc_us(until)

        async def question(bus: Asking, _: Status) -> Rows:
            if limit is not None and limit <= PAGE:
                rows: Rows = (await self._ask(bus, {**asked, "limit": limit}))["tasks"]
                return rows
            return await ask_pages(bus, TASKS, "tasks", "after", asked, TIMEOUT_S)

        rows = await self._rows(question)
        letters = sorted(rows, key=lambda letter: (letter.failed or EPOCH, letter.id))
        return letters if limit is None else letters[:limit]

    async def show(self, task_id: str) -> DeadLetter | None:
        """One with its payload and all its attempts; None where no node has such a letter."""

        async def question(bus: Asking, _: Status) -> Rows:
            asked = {"do": "show", "queue": self._queue, "ids": [task_id]}
            rows: Rows = (await self._ask(bus, asked))["tasks"]
            return rows

        found = await self._rows(question)
        return found[0] if found else None

    async def requeue(self, *ids: str, payload: Payload | None = None) -> Ids:
        """Try them again, from attempt 1, with another payload if one is given. Returns the ids of
        those that were: others are no dead letters."""
        changed: dict[str, Any] = {}
        if payload is not None:
            check_payload(payload)
            changed = {"payload": base64.b64encode(payload).decode()}
        return await self._act("requeue", ids, changed)

    async def delete(self, *ids: str) -> Ids:
        """For good. Returns the ids of those that were there."""
        return await self._act("delete", ids, {})

    async def purge(self) -> int:
        """Delete all of them, for good. How many that were."""

        async def question(bus: Asking, _: Status) -> int:
            return int((await self._ask(bus, {"do": "purge", "queue": self._queue}))["count"])

        return sum((await self._told(question)).answers.values())

    async def _act(self, do: str, ids: Sequence[str], more: Mapping[str, Any]) -> Ids:
        if set(map(type, ids)) - {str}:
            raise BadTask(f"{do} of {ids!r:.60}; expected ids of tasks: texts, one by one")

        async def question(bus: Asking, _: Status) -> Ids:
            done: Ids = []
            for at in range(0, len(ids), IDS_AT_ONCE):
                part = [*ids[at : at + IDS_AT_ONCE]]
                asked = {"do": do, "queue": self._queue, "ids": part, **more}
                done += (await self._ask(bus, asked))["done"]
            return done

        told = await self._told(question)
        found = {each for done in told.answers.values() for each in done}
        return [each for each in ids if each in found]

    async def _rows(self, question: Callable[[Asking, Status], Awaitable[Rows]]) -> Letters:
        told = await self._told(question)
        return [
            _letter(row, node)
            for node, rows in told.answers.items()
            for row in rows
            if row.get("state", "dead") == "dead"
        ]

    async def _told(self, question: Callable[[Asking, Status], Awaitable[T]]) -> Told[T]:
        told = await self._everyone.ask(TIMEOUT_S, question)
        self.silent = told.silent
        return told

    async def _ask(self, bus: Asking, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await ask(bus, TASKS, json.dumps(asked).encode(), TIMEOUT_S)


COUNTS: Final = tuple(
    each.name
    for each in fields(QueueStatus)
    if each.name not in ("oldest", "nodes", "silent", "orphans")
)


async def queue_status(everyone: Everyone[Any], queue: str) -> QueueStatus:
    """How a queue stands on all nodes together."""

    async def question(bus: Asking, _: Status) -> Mapping[str, Any]:
        asked = json.dumps({"do": "queues", "queue": queue}).encode()
        rows: Rows = (await ask(bus, TASKS, asked, TIMEOUT_S))["queues"]
        ours = [row for row in rows if row["queue"] == queue]
        return ours[0] if ours else {"queue": queue}

    told = await everyone.ask(TIMEOUT_S, question)
    rows = told.answers.values()
    oldest_us = min((row["oldest_us"] for row in rows if row.get("oldest_us")), default=None)
    counts = {name: sum(row.get(name, 0) for row in rows) for name in COUNTS}
    return QueueStatus(
        **counts,
        oldest=None if oldest_us is None else _utc(oldest_us),
        nodes=told.answers,
        silent=told.silent,
        orphans=frozenset(each for row in rows for each in row.get("orphans", ())),
    )


def _letter(row: Mapping[str, Any], node: str) -> DeadLetter:
    payload = row.get("payload")
    failed_us = row.get("failed_us")
    return DeadLetter(
        id=row["id"],
        queue=row["queue"],
        node=node,
        attempts=row["attempts"],
        enqueued=_utc(row["enqueued_us"]),
        failed=None if failed_us is None else _utc(failed_us),
        error=row.get("error") or "",
        worker=row.get("worker") or "",
        payload_bytes=row.get("payload_bytes", 0),
        payload=None if payload is None else base64.b64decode(payload),
        headers=row.get("headers"),
        history=attempts_of(row.get("history", ())),
    )


def _utc(utc_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=utc_us)


def _utc_us(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadTask(f"{moment} has no time zone: give it one, such as UTC")
    return (moment - EPOCH) // timedelta(microseconds=1)
