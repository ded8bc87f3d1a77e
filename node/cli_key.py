"""`busnode key`: makes what nodes and clients prove themselves with."""

from collections.abc import Mapping
from typing import Final

import click

from busnode.node.cli import LazyGroup

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "new": ("busnode.node.cli_key_new:new", "Make a cluster key."),
    "ca": ("busnode.node.cli_key_certificate:ca", "Make an authority that signs certificates."),
    "cert": ("busnode.node.cli_key_certificate:cert", "Make a certificate for a node or a client."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def key() -> None:
    """Make keys and certificates, as files that only their owner can read.

    \b
      busnode key new cluster.key        what the nodes of a cluster show each other
      busnode key ca                     an authority of your own, for TLS
      busnode key cert n1 --host 10.0.0.1
    """
