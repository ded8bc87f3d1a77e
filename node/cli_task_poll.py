"""`busnode task poll`: a worker that prints its tasks, or runs a command for each."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

from functools import partial
from typing import Final

import click

from busnode.node.cli_task_enqueue import queue_argument
from busnode.node.cli_task_work import Wishes, execute_tasks, print_tasks
from busnode.node.cli_times import duration_option
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.wire.errors import BusnodeError

NAME: Final = "busnode task poll"
LEASE: Final = "20s"
LEASE_S_MIN: Final = 0.1
LEASE_S_MAX: Final = 12 * 3600.0

NOT_ALL_DONE: Final = 1


@click.command()
@click.argument("queue", callback=queue_argument)
@click.option(
    "--exec", "command", metavar="CMD",
    help="Run CMD in a shell for each task, with its payload on stdin. BUSNODE_QUEUE, "
    "BUSNODE_TASK_ID, BUSNODE_ATTEMPT and BUSNODE_FENCE say which it is.",
)  # fmt: skip
@click.option("--fail", "failure", metavar="TEXT", help="Fail each with this error.")
@click.option(
    "--permanent", is_flag=True,
    help="What fails is not tried again: it becomes a dead letter at once.",
)  # fmt: skip
@click.option(
    "--lease", "lease_s", metavar="TIME", default=LEASE, show_default=True,
    callback=duration_option(LEASE_S_MIN, LEASE_S_MAX),
    help="How long nobody else gets a task. While CMD runs the lease is extended.",
)  # fmt: skip
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after N tasks.")
@click.option("--name", default=NAME, show_default=True, help="Who works, in errors and lists.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@reaching_a_node
def poll(
    *,
    queue: str,
    command: str | None,
    failure: str | None,
    permanent: bool,
    lease_s: float,
    count: int | None,
    name: str,
    as_json: bool,
    to: Target,
) -> None:
    """Work on the tasks of QUEUE as they come, until Ctrl-C.

    \b
      busnode task poll emails
      busnode task poll emails --exec ./send-mail
      busnode task poll emails --count 1 --fail 'the printer is on fire'

    A line has the task's id, its attempt and its payload; it is complete when it was printed. With
    --exec it is complete when CMD ends with 0. A CMD that ends otherwise fails it, with the last
    line of its stderr as the error: it is tried again by its retry schedule, or becomes a dead
    letter. CMD is ended when the lease is lost. Exit code 1: a CMD has failed, or a task could not
    be settled.
    """
    if command is not None and failure is not None:
        raise click.UsageError("take --exec or --fail: what becomes of a task?")
    if permanent and command is None and failure is None:
        raise click.UsageError("--permanent is for tasks that fail: with --exec or --fail")
    wishes = Wishes(lease_s, count, command, failure, permanent, as_json)
    run(partial(_poll, to, queue, name, wishes))


async def _poll(to: Target, name: str, called: str, wishes: Wishes) -> int:
    """The connection outlives the work, or there would be nobody to give tasks back to after a
    Ctrl-C: a command takes a while to end."""
    import trio

    from busnode.client import connect

    work = trio.CancelScope()
    done = True
    failure: BusnodeError | None = None

    async def end_the_work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            work.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_the_work)
        try:
            with trio.CancelScope(shield=True):
                async with connect(
                    to.url, name=called, deadline_s=to.timeout_s, **to.options
                ) as bus:
                    with work:
                        on_each = print_tasks if wishes.command is None else execute_tasks
                        done = await on_each(bus.queue(name), wishes)
        except BusnodeError as error:
            failure = error  # raised outside of the nursery, which would wrap it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return 0 if done else NOT_ALL_DONE
