"""`busnode dlq`: dead letters, the tasks that have failed for good."""

from collections.abc import Mapping
from typing import Final

import click

from busnode.node.cli import LazyGroup

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "ls": ("busnode.node.cli_dlq_ls:ls", "List the dead letters of a queue."),
    "show": ("busnode.node.cli_dlq_show:show", "Show one, with every attempt and its error."),
    "requeue": ("busnode.node.cli_dlq_act:requeue", "Try some again, or all."),
    "delete": ("busnode.node.cli_dlq_act:delete", "Delete some, for good."),
    "purge": ("busnode.node.cli_dlq_act:purge", "Delete all of a queue, for good."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def dlq() -> None:
    """Dead letters: tasks that have failed for good, and wait for somebody to decide.

    \b
      busnode dlq ls emails --error 'no such address' --since 1h
      busnode dlq show emails 8f3a…-17
      busnode dlq requeue emails 8f3a…-17 --payload 'to: ada@example.org'

    All nodes of the cluster are asked; those that do not answer are named.
    """
