"""Answers questions about this node's tasks, and does what people want done with dead letters.

The questions come as requests to `/$sys/tasks`, JSON both ways; `client/task_admin.py` has them.
Each node answers for the tasks that it owns, and says of which there is a copy that nobody owns.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import trio

from busnode.node.access import check_right
from busnode.node.own_messages import OwnMessages
from busnode.node.status import ANSWER_BYTES_MAX, read_object
from busnode.node.task_carrying import Carrying
from busnode.node.task_log import TaskBatch
from busnode.node.task_queue import OwnedQueue
from busnode.node.task_queues import TaskQueues, topic_of
from busnode.node.task_status import Row, added, queue_row
from busnode.security.rules import Rights
from busnode.tasks.events import DeadAct, DeadActed
from busnode.tasks.places import TaskRow
from busnode.tasks.recovery import carry
from busnode.wire.errors import BusnodeError, LimitReached, Refused, TimedOut
from busnode.wire.ids import BrokerId
from busnode.wire.shapes import is_list
from busnode.world.clock import Clock

TASKS: Final = "/$sys/tasks"

ROWS_MAX: Final = 1000
IDS_MAX: Final = 1000
EXAMINED_MAX: Final = 20_000
"""Dead letters that one question is matched against; the next one goes on from there."""

AT_ONCE_MAX: Final = 64
"""Questions that are worked on at once: some wait for the disk."""

ROWS_BEFORE_YIELD: Final = 100
DURABLE_S: Final = 10.0

ORPHANS_MAX: Final = 20
"""Incarnations that a row of a queue names."""

STATES: Final = ("ready", "delayed", "retrying", "leased", "settling", "dead")

ACTS: Final = ("requeue", "delete", "purge")
"""What changes something."""

Acted = Callable[[str, str, str], None]
"""Told who does what to which queue."""

Orphans = Callable[[], Mapping[str, Sequence[BrokerId]]]
"""By queue, incarnations that are no more and with whose tasks nobody goes on yet."""

Answer = dict[str, Any]
Reply = Callable[[Any, BusnodeError | None], None]


@dataclass(eq=False, slots=True)
class Acting:
    """Waits until what was done to dead letters is durable."""

    done: trio.Event
    refused: list[tuple[int, str]]

    def settled(self, level: str, refused: list[tuple[int, str]]) -> None:
        del level
        self.refused = refused
        self.done.set()


class TaskAnswers:
    def __init__(
        self,
        queues: TaskQueues,
        own: OwnMessages,
        clock: Clock,
        acted: Acted,
        orphans: Orphans,
    ) -> None:
        self._acted = acted
        self._orphans = orphans
        self._queues = queues
        self._own = own
        self._clock = clock
        self._nursery: trio.Nursery | None = None
        self._under_way = 0

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def ask(self, payload: bytes, rights: Rights | None, reply: Reply) -> None:
        """Refused for a question that makes no sense; `reply` is called, once, with the answer."""
        asked = read_object(payload, 'expected {"do": "queues"} or the like')
        if self._nursery is None or self._under_way >= AT_ONCE_MAX:
            raise LimitReached(f"{self._under_way} questions about tasks are worked on")
        self._under_way += 1
        self._nursery.start_soon(self._answer, asked, rights, reply)

    async def _answer(self, asked: Answer, rights: Rights | None, reply: Reply) -> None:
        try:
            found: Any = await self._do(asked, rights)
        except BusnodeError as error:
            reply(None, error)
        except OSError as error:
            reply(None, Refused(f"what is asked for cannot be read: {error}"))
        else:
            reply(found, None)
        finally:
            self._under_way -= 1

    async def _do(self, asked: Answer, rights: Rights | None) -> Answer:
        do = asked.get("do")
        if do == "queues":
            return self._list_queues(asked, rights)
        name = _text(asked, "queue")
        acts = do in ACTS
        check_right(rights, "admin" if acts else "queue", topic_of(name))
        if acts:
            self._acted("" if rights is None else rights.identity, f"dlq {do}", name)
        queue = self._queues.owned.get(name)
        if queue is None:
            # Whether anybody knows it is for the one to say who asks everybody.
            if do in ("ls", "dead", "show"):
                return {"tasks": [], "next": None, "unknown": True}
            return {"done": [], "count": 0, "unknown": True}
        match do:
            case "ls":
                return await self._list_tasks(queue, asked)
            case "dead":
                return await self._list_dead(queue, asked)
            case "show":
                return await self._show(queue, _ids(asked))
            case "requeue" | "delete":
                return {"done": await self._act(queue, do, _ids(asked), asked.get("payload"))}
            case "purge":
                return await self._purge(queue)
            case _:
                raise Refused(
                    f"{do!r:.40} is nothing to do with tasks; expected queues, ls, dead, show, "
                    "requeue, delete or purge"
                )

    # Looking --------------------------------------------------------------------------------------

    def _list_queues(self, asked: Answer, rights: Rights | None) -> Answer:
        owned, orphans, name = self._queues.owned, self._orphans(), asked.get("queue")
        names = list(dict.fromkeys((*owned, *orphans)))
        if rights is not None:
            names = [each for each in names if rights.allows("queue", topic_of(each))]
        if name is not None:
            names = [name] if name in names else []
        after = _number(asked, "after", 0)
        page = list(islice(names, after, after + ROWS_MAX))
        until = after + len(page)
        more = until if until < len(names) else None
        rows: list[Row] = []
        for each in page:
            row = queue_row(owned[each]) if each in owned else {"queue": each, **added([])}
            row["orphans"] = [origin.hex() for origin in orphans.get(each, ())[:ORPHANS_MAX]]
            rows.append(row)
        return {"queues": rows, "next": more}

    async def _list_tasks(self, queue: OwnedQueue, asked: Answer) -> Answer:
        state = asked.get("state")
        if state is not None and state not in STATES:
            raise Refused(f"state {state!r:.40}; expected one of {', '.join(STATES)}")
        limit, after = _limit(asked), _number(asked, "after", 0)
        found = queue.machine.rows(state, after, limit)
        rows, last = await self._rows(queue, found)
        more = len(rows) < len(found) or len(found) == limit
        return {"tasks": rows, "next": last if more and rows else None}

    async def _list_dead(self, queue: OwnedQueue, asked: Answer) -> Answer:
        error = asked.get("error")
        since_us = _number(asked, "since_us", 0)
        until_us = _number(asked, "until_us", 1 << 63)
        limit, after = _limit(asked), _number(asked, "after", 0)
        found: list[TaskRow] = []
        examined = 0
        while examined < EXAMINED_MAX and len(found) < limit:
            part = queue.machine.rows("dead", after, 500)
            if not part:
                break
            for each in part:
                after = each.number
                dead_us = each.row.dead_us or 0
                last_error = each.row.history[-1].error if each.row.history else ""
                if since_us <= dead_us <= until_us and (error is None or str(error) in last_error):
                    found.append(each)
                    if len(found) == limit:
                        break
            examined += len(part)
            await trio.lowlevel.checkpoint()
        rows, last = await self._rows(queue, found)
        if len(rows) < len(found):
            after = last
        is_end = not queue.machine.rows("dead", after, 1)
        return {"tasks": rows, "next": None if is_end else after}

    async def _show(self, queue: OwnedQueue, ids: list[str]) -> Answer:
        found: list[Answer] = []
        for number in queue.numbers(ids).values():
            row = queue.machine.find(number)
            batch = None if row is None else await queue.batch(number)
            if row is None or batch is None:
                continue
            payload, headers, _, _ = batch.task(number, queue.owner)
            shown = _row(queue, row, batch)
            shown["headers"] = headers
            shown["history"] = [list(each) for each in row.row.history]
            if len(payload) <= ANSWER_BYTES_MAX // 2:
                shown["payload"] = base64.b64encode(payload).decode()
            found.append(shown)
        return {"tasks": found}

    async def _rows(self, queue: OwnedQueue, found: Iterable[TaskRow]) -> tuple[list[Answer], int]:
        """As many as fit into a reply, and the number of the last."""
        rows: list[Answer] = []
        size_bytes = last = 0
        for step, each in enumerate(found, start=1):
            row = _row(queue, each, await queue.batch(each.number))
            size_bytes += len(json.dumps(row)) + 2
            if size_bytes > ANSWER_BYTES_MAX:
                break
            rows.append(row)
            last = each.number
            if step % ROWS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
        return rows, last

    # Acting ---------------------------------------------------------------------------------------

    async def _act(self, queue: OwnedQueue, do: str, ids: list[str], payload: object) -> list[str]:
        numbers = {
            task_id: number
            for task_id, number in queue.numbers(ids).items()
            if (row := queue.machine.find(number)) is not None and row.state == "dead"
        }
        if not numbers:
            return []
        if do == "requeue" and payload is not None:
            return await self._requeue_changed(queue, numbers, _payload(payload))
        asked = list(numbers.values())
        acting = Acting(trio.Event(), [])
        act: DeadAct = "requeue" if do == "requeue" else "delete"
        queue.handle(DeadActed(act, asked, acting, self._clock.utc_us()))
        await self._durable(acting)
        refused = {place for place, _ in acting.refused}
        return [task_id for place, task_id in enumerate(numbers) if place not in refused]

    async def _requeue_changed(
        self, queue: OwnedQueue, numbers: Mapping[str, int], payload: bytes
    ) -> list[str]:
        """A task with another payload is carried: its record is written anew."""
        carrying = Carrying(queue.name, self._own, self._clock)
        done: list[str] = []
        for task_id, number in numbers.items():
            row = queue.machine.find(number)
            batch = await queue.batch(number)
            if row is None or batch is None:
                continue
            at = number - batch.first_no
            options = None if batch.options is None else batch.options[at]
            headers = batch.columns.headers
            enqueued_us = batch.enqueued_us()[at]
            fence = queue.machine.fence
            again = row.row.requeued()
            carried = carry(queue.owner, number, enqueued_us, options, again, fence)
            said = None if headers is None else headers[at]
            await carrying.add(payload, said or {}, replace(carried, dead_us=None))
            done.append(task_id)
        await carrying.finish()
        with trio.move_on_after(DURABLE_S):
            while any(queue.machine.find(numbers[task_id]) is not None for task_id in done):
                await self._clock.sleep(0.01)
        return done

    async def _purge(self, queue: OwnedQueue) -> Answer:
        count = queue.machine.statistics().dead
        acting = Acting(trio.Event(), [])
        queue.handle(DeadActed("purge", None, acting, self._clock.utc_us()))
        await self._durable(acting)
        return {"count": count}

    async def _durable(self, acting: Acting) -> None:
        with trio.move_on_after(DURABLE_S):
            await acting.done.wait()
            return
        raise TimedOut(f"it is not durable after {DURABLE_S:g} s; look whether it was done")


def _row(queue: OwnedQueue, found: TaskRow, batch: TaskBatch | None) -> Answer:
    row = found.row
    last = row.history[-1] if row.history else None
    shown: Answer = {
        "id": f"{queue.owner.hex()}-{found.number}",
        "queue": queue.name,
        "state": found.state,
        "attempts": row.attempts,
        "enqueued_us": 0,
        "due_us": row.due_us or None,
        "priority": 0,
        "worker": found.worker or (None if last is None else last.worker),
        "error": None if last is None else last.error,
        "failed_us": None if last is None else last.at_us,
        "payload_bytes": 0,
    }
    if batch is not None:
        payload, _, shown["id"], shown["enqueued_us"] = batch.task(found.number, queue.owner)
        shown["payload_bytes"] = len(payload)
        options = None if batch.options is None else batch.options[found.number - batch.first_no]
        if options is not None:
            shown["priority"] = options.priority
            if found.state == "delayed":
                carried_us = 0 if options.carried is None else options.carried.due_us
                delayed_us = int(shown["enqueued_us"]) + options.delay_ms * 1000
                shown["due_us"] = carried_us or options.due_us or delayed_us
    return shown


def _text(asked: Answer, name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise Refused(f"{name} is no text")
    return value


def _number(asked: Answer, name: str, otherwise: int) -> int:
    value = asked.get(name)
    if value is None:
        return otherwise
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Refused(f"{name} is no number")
    return value


def _limit(asked: Answer) -> int:
    return max(1, min(_number(asked, "limit", ROWS_MAX), ROWS_MAX))


def _ids(asked: Answer) -> list[str]:
    ids = asked.get("ids")
    if not is_list(ids) or len(ids) > IDS_MAX or set(map(type, ids)) - {str}:
        raise Refused(f"ids is no list of at most {IDS_MAX} texts")
    return ids


def _payload(value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise Refused(f"payload is no base64: {error}") from None
