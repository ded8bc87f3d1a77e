"""A worker at the terminal: what it does with each task, and what it tells of it."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_exec import Ended, execute
from busnode.node.cli_sub import json_payload
from busnode.node.connecting import Output
from busnode.node.presentation import Lines, Part, duration, printable
from busnode.wire.errors import BusnodeError

if TYPE_CHECKING:
    from busnode.client import Queue, Task

AT_ONCE: Final = 100
"""Tasks that are printed and then settled together."""

EXTENDED_AFTER: Final = 1 / 3
"""Which part of a lease has passed when a command that still runs gets another."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the tasks are worked on."""

    lease_s: float
    count: int | None
    command: str | None
    failure: str | None
    """Why all of them fail; None where they do not."""
    permanent: bool
    as_json: bool


def _tell(error: BusnodeError) -> None:
    click.echo(f"busnode: {error.code}: {printable(error.text)}", err=True)


def _line(lines: Lines, task: "Task") -> list[Part]:
    parts = [(f"{task.id} ", "cyan"), (f"{task.attempt} ", "bold")]
    return lines.with_payload(parts, task.payload)


def _json_line(task: "Task", outcome: dict[str, Any] | None = None) -> bytes:
    told: dict[str, Any] = {
        "queue": task.queue,
        "id": task.id,
        "attempt": task.attempt,
        "fence": task.fence,
        "enqueued": task.enqueued.isoformat().replace("+00:00", "Z"),
        "headers": dict(task.headers),
        **(outcome or {}),
    }
    return f"{json.dumps(told, ensure_ascii=False)[:-1]}, {json_payload(task.payload)}}}\n".encode()


# Printing -----------------------------------------------------------------------------------------


async def print_tasks(queue: "Queue", wishes: Wishes) -> bool:
    """Whether all that was printed could be settled."""
    left = math.inf if wishes.count is None else wishes.count
    all_settled = True
    while left:
        # No more is ever asked for than will be printed: what is on its way when we leave stays
        # ours until its lease ends.
        at_once = int(min(AT_ONCE, left))
        async with queue.poll_many(at_once, lease=wishes.lease_s) as polled:
            async for tasks in polled:
                try:
                    await _show(tasks, wishes.as_json)
                except BaseException:
                    polled.close()  # first, or we would be given them again
                    await _give_back(queue, tasks)
                    raise
                all_settled &= await _settle(queue, tasks, wishes)
                left -= len(tasks)
                if left < at_once:
                    break
    return all_settled


async def _show(tasks: "Sequence[Task]", as_json: bool) -> None:
    if as_json:
        await Output().write(b"".join(map(_json_line, tasks)))
    else:
        lines = Lines()
        lines.write([_line(lines, task) for task in tasks])
        sys.stdout.flush()


async def _settle(queue: "Queue", tasks: "Sequence[Task]", wishes: Wishes) -> bool:
    try:
        if wishes.failure is None:
            await queue.complete(tasks)
        else:
            await queue.fail(tasks, wishes.failure, permanent=wishes.permanent)
    except BusnodeError as error:
        _tell(error)
        return False
    return True


async def _give_back(queue: "Queue", tasks: "Sequence[Task]") -> None:
    """Nobody has seen them: others may have them at once."""
    import trio

    with trio.move_on_after(1) as scope:
        scope.shield = True
        await queue.release(tasks)


# Running a command --------------------------------------------------------------------------------


async def execute_tasks(queue: "Queue", wishes: Wishes) -> bool:
    """Whether all commands ended well and all tasks could be settled."""
    done = 0
    all_done = True
    async with queue.poll(lease=wishes.lease_s) as polled:
        async for task in polled:
            async with task:  # cancelled, it is given back
                all_done &= await _execute_one(task, wishes)
            done += 1
            if done == wishes.count:
                break
    return all_done


async def _execute_one(task: "Task", wishes: Wishes) -> bool:
    import trio

    lines = Lines()
    if not wishes.as_json:
        lines.write([_line(lines, task)])
        sys.stdout.flush()
    began = trio.current_time()
    outcome: dict[str, Any] = {"outcome": "completed"}
    try:
        ended = await _run(task, wishes)
        if ended is None:
            outcome = {"outcome": "lost", "error": "the lease was lost while the command ran"}
        elif ended.exit_code:
            error = _reason(ended)
            outcome = {"outcome": "failed", "error": error, "exit_code": ended.exit_code}
            await task.fail(error, permanent=wishes.permanent)
        else:
            await task.complete()
    except BusnodeError as error:
        outcome = {"outcome": "lost", "error": f"{error.code}: {error.text}"}
    if wishes.as_json:
        click.echo(_json_line(task, outcome), nl=False)
    else:
        why = f": {printable(outcome['error'])}" if "error" in outcome else ""
        lines.remark(f"{outcome['outcome']} after {duration(trio.current_time() - began)}{why}")
    sys.stdout.flush()
    return "error" not in outcome


def _reason(ended: Ended) -> str:
    """The last that it said, or how it ended."""
    said = ended.errors.splitlines()
    return said[-1].strip() if said else f"exit code {ended.exit_code}"


async def _run(task: "Task", wishes: Wishes) -> Ended | None:
    """How the command ended; None when the lease was lost before that."""
    import trio

    assert wishes.command is not None
    ended: list[Ended] = []
    variables = {
        "BUSNODE_QUEUE": task.queue,
        "BUSNODE_TASK_ID": task.id,
        "BUSNODE_ATTEMPT": str(task.attempt),
        "BUSNODE_FENCE": str(task.fence),
    }

    async def keep_the_lease() -> None:
        while True:
            await trio.sleep(wishes.lease_s * EXTENDED_AFTER)
            try:
                await task.extend(wishes.lease_s)
            except BusnodeError:
                nursery.cancel_scope.cancel()

    passed_to = (sys.stderr if wishes.as_json else sys.stdout).fileno()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_the_lease)
        ended.append(await execute(wishes.command, task.payload, variables, passed_to))
        nursery.cancel_scope.cancel()
    if not ended:
        return None
    ended[0].tell_errors()
    return ended[0]
