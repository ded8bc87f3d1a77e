"""`busnode pipeline`: the jobs as commands."""

import click

from busnode.pipeline.commands_history import archive, restore
from busnode.pipeline.commands_measures import audit, health, report, tasks, traffic


class _Group(click.Group):
    """Shows its help when it is asked for nothing, as all of `busnode` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


@click.group(cls=_Group)
def pipeline() -> None:
    """Archive, check, measure and draw the logs of the bus, on Spark.

    SOURCE is where messages are read: data directories of nodes, which may be down or running
    (name those of mirrors too: what one copy lacks is read from another), or one running cluster,
    bus://host:4250. Nothing is locked and nothing changed there.

    \b
      busnode pipeline report busnode-data/n1 busnode-data/n2 --to report.html
      busnode pipeline archive busnode-data/* --to archive
      busnode pipeline audit busnode-data/*

    Spark runs inside the command unless --master names a cluster; there, all machines must see the
    folders under the same names. Needs pip install 'busnode[spark]'; see docs/pipeline.md.
    """


for command in (archive, restore, traffic, health, tasks, audit, report):
    pipeline.add_command(command)
