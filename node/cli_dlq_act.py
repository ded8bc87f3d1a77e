"""`busnode dlq requeue`, `delete` and `purge`: what becomes of dead letters."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from busnode.node.cli_dlq_ls import NAME, check_known
from busnode.node.cli_holders import show_silent
from busnode.node.cli_task_enqueue import queue_argument
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import Lines, counted, printable

if TYPE_CHECKING:
    from busnode.client import Queue

NOT_ALL_DONE: Final = 1

AT_ONCE: Final = 10_000
"""Dead letters of which the ids are asked for before they are requeued."""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


# requeue ------------------------------------------------------------------------------------------


@click.command()
@click.argument("queue", callback=queue_argument)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All dead letters of the queue.")
@click.option("--error", metavar="TEXT", help="With --all: those with TEXT in their last error.")
@click.option("--payload", metavar="TEXT", help="With this payload in place of their own.")
@_as_json
@reaching_a_node
def requeue(
    *,
    queue: str,
    ids: tuple[str, ...],
    every: bool,
    error: str | None,
    payload: str | None,
    as_json: bool,
    to: Target,
) -> None:
    """Try dead letters of QUEUE again, from attempt 1; they keep their ids and their past.

    \b
      busnode dlq requeue emails 8f3a…-17 8f3a…-18
      busnode dlq requeue emails 8f3a…-17 --payload 'to: ada@example.org'
      busnode dlq requeue emails --all --error 'connection refused'

    Exit code 1: not all that were named are dead letters, or a node did not answer.
    """
    if every == bool(ids):
        raise click.UsageError("which? Give one ID or more, or --all")
    if error is not None and not every:
        raise click.UsageError("--error chooses among all: with --all, and no ID")
    changed = None if payload is None else payload.encode(errors="surrogateescape")
    run(partial(_requeue, to, queue, ids, error, changed, as_json))


async def _requeue(
    to: Target,
    name: str,
    ids: Sequence[str],
    error: str | None,
    payload: bytes | None,
    as_json: bool,
) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        queue = bus.queue(name)
        silent: dict[str, str] = {}
        done: list[str] = []
        wanted = list(ids)
        while True:
            if not ids:
                letters = await queue.dead.list(error=error, limit=AT_ONCE)
                silent |= queue.dead.silent
                wanted = [letter.id for letter in letters]
            some = await queue.dead.requeue(*wanted, payload=payload) if wanted else []
            silent |= queue.dead.silent
            done += some
            if ids or not some:
                break  # what was requeued is not listed again, so --all comes to an end
        if not done:
            await check_known(queue)
    return _tell("requeued", name, ids, done, silent, as_json)


# delete -------------------------------------------------------------------------------------------


@click.command()
@click.argument("queue", callback=queue_argument)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_as_json
@reaching_a_node
def delete(*, queue: str, ids: tuple[str, ...], as_json: bool, to: Target) -> None:
    """Delete dead letters of QUEUE, for good.

    \b
      busnode dlq delete emails 8f3a…-17

    Exit code 1: not all of them are dead letters, or a node did not answer.
    """
    run(partial(_delete, to, queue, ids, as_json))


async def _delete(to: Target, name: str, ids: Sequence[str], as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        queue = bus.queue(name)
        done = await queue.dead.delete(*ids)
        silent = queue.dead.silent
        if not done:
            await check_known(queue)
    return _tell("deleted", name, ids, done, silent, as_json)


def _tell(
    verb: str,
    queue: str,
    ids: Sequence[str],
    done: Sequence[str],
    silent: Mapping[str, str],
    as_json: bool,
) -> int:
    """What was done, and what of that which was asked for was not: 1 if there is any."""
    left = [each for each in ids if each not in set(done)]
    if as_json:
        told = {"queue": queue, verb: list(done), "not_found": left, "silent": silent}
        click.echo(json.dumps(told, ensure_ascii=False).encode())
    else:
        click.echo(f"{verb} {counted(len(done), 'dead letter')} of {printable(queue)}")
        for each in left:
            click.echo(f"busnode: {printable(each)} is no dead letter of {queue}", err=True)
        show_silent(silent)
    return NOT_ALL_DONE if left or silent else 0


# purge --------------------------------------------------------------------------------------------


@click.command()
@click.argument("queue", callback=queue_argument)
@click.option("--yes", is_flag=True, help="Do not ask first.")
@_as_json
@reaching_a_node
def purge(*, queue: str, yes: bool, as_json: bool, to: Target) -> None:
    """Delete all dead letters of QUEUE, for good, on all nodes of the cluster.

    \b
      busnode dlq purge emails --yes

    Exit code 1: nothing was deleted, because the answer was no, or a node did not answer.
    """
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("purge asks first, and here is nobody to answer; --yes goes ahead")
    run(partial(_purge, to, queue, yes, as_json))


async def _purge(to: Target, name: str, yes: bool, as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name=NAME, deadline_s=to.timeout_s, **to.options) as bus:
        queue = bus.queue(name)
        await check_known(queue)
        if not yes and not await _is_wanted(queue):
            click.echo("nothing was deleted", err=True)
            return NOT_ALL_DONE
        count = await queue.dead.purge()
        silent = queue.dead.silent
    if as_json:
        told = {"queue": name, "deleted": count, "silent": silent}
        click.echo(json.dumps(told, ensure_ascii=False).encode())
    else:
        Lines().write([[(f"deleted {counted(count, 'dead letter')} of {printable(name)}", "")]])
        show_silent(silent)
    return NOT_ALL_DONE if silent else 0


async def _is_wanted(queue: "Queue") -> bool:
    """What the person at the terminal says."""
    from busnode.node.connecting import stdin_chunks

    dead = (await queue.status()).dead
    click.echo(f"delete {counted(dead, 'dead letter')} of {queue.name} for good? [y/N] ", nl=False)
    sys.stdout.flush()
    async for chunk in stdin_chunks():
        return chunk.strip().lower() in (b"y", b"yes")
    return False
