"""`python -m busnode.pipeline`: the commands of the pipeline alone, without those of the bus."""

import sys

import click

from busnode.pipeline.commands import pipeline
from busnode.wire.errors import BusnodeError

if __name__ == "__main__":
    try:
        pipeline(prog_name="busnode pipeline")
    except BusnodeError as error:
        click.echo(f"busnode: {error}\n  → {error.advice}", err=True)
        sys.exit(1)
