"""`busnode nodes`: the nodes of the cluster and their links, as one of them sees it."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from functools import partial

import click

from busnode.node.cli_asking import STATUS, Status, ask
from busnode.node.cluster_view import ClusterView
from busnode.node.connecting import Target, reaching_a_node, run
from busnode.node.presentation import Lines, Part, printable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def nodes(*, as_json: bool, to: Target) -> None:
    """List the nodes of the cluster as one of them sees it: itself first, then each other.

    Each node dials each other one. A link that is missing is named below the table, and so is
    whoever was heard of and does not answer.
    """
    run(partial(_nodes, to, as_json))


async def _nodes(to: Target, as_json: bool) -> int:
    from busnode.client import connect

    async with connect(to.url, name="busnode nodes", deadline_s=to.timeout_s, **to.options) as bus:
        found = await ask(bus, STATUS, b"", to.timeout_s)
    if as_json:
        click.echo(json.dumps(_report(found), ensure_ascii=False, indent=2).encode())
        return 0
    view = ClusterView(found)
    view.show(itself=True)
    lines: list[list[Part]] = []
    trouble = view.discovery_trouble()
    if trouble:
        lines.append([(trouble, "yellow")])
    cluster = printable(found["cluster_id"])
    lines.append([(f"cluster {cluster}: {view.summary()}", "bold")])
    Lines().write(lines)
    return 0


def _report(found: Status) -> Status:
    """What the status has of nodes, with the one that was asked in front."""
    return {
        "cluster_id": found["cluster_id"],
        "asked": {
            name: found[name]
            for name in ("name", "broker_id", "addresses", "uptime_s", "ready", "counters")
        },
        "nodes_count": ClusterView(found).nodes_count,
        **found["cluster"],
    }
