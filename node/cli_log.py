"""`busnode log`: looking into the logs of a data directory whose node is down.

The directory is locked while it is looked at: a node cannot start on it meanwhile, and where one is
running the command is refused. Only `repair` changes anything.
"""

from collections.abc import Mapping
from typing import Final

import click

from busnode.node.cli import LazyGroup

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "ls": ("busnode.node.cli_log_ls:ls", "List the logs in DIR."),
    "dump": ("busnode.node.cli_log_dump:dump", "Print the messages in DIR, log by log."),
    "verify": ("busnode.node.cli_log_verify:verify", "Read and hash every record in DIR."),
    "repair": (
        "busnode.node.cli_log_repair:repair",
        "Mend what is damaged in DIR from other data directories.",
    ),
    "export": ("busnode.node.cli_log_export:export", "Write the messages in DIR to a file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def log() -> None:
    """Look into the logs of a data directory, with its node down.

    DIR is the data directory of one node, busnode-data/NAME: the one with a folder `logs` in it.
    """
