"""`busnode task`: enqueueing tasks, working on them, and looking at queues."""

from collections.abc import Mapping
from typing import Final

import click

from busnode.node.cli import LazyGroup

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "enqueue": ("busnode.node.cli_task_enqueue:enqueue", "Add tasks to a queue."),
    "poll": ("busnode.node.cli_task_poll:poll", "Work on the tasks of a queue."),
    "ls": ("busnode.node.cli_task_ls:ls", "List all queues, or the tasks of one."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """Task queues: work that is done by one worker, tried again when it fails, and never lost.

    \b
      busnode task enqueue emails 'to: ada' --delay 30s
      busnode task poll emails --exec './send-mail'
      busnode task ls

    A queue is there when its first task is. What has failed too often is a dead letter: see
    `busnode dlq`.
    """
