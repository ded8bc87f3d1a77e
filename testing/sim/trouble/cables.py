"""What goes wrong between hosts."""

import trio

from busnode.testing.sim.stage import Skipped
from busnode.testing.sim.trouble.deaths import mirror_of
from busnode.testing.sim.trouble.kind import Fault, kind
from busnode.testing.sim.ways import Trouble


@kind("partition")
async def partition(fault: Fault) -> None:
    one, other, network = fault.entry.node, fault.entry.other, fault.stage.cluster.network
    network.partition(one, other, fault.cause)
    fault.begun(f"{one} {other}")
    await trio.sleep(fault.entry.lasts_s)
    network.heal(one, other, fault.cause)


@kind("isolation")
async def isolation(fault: Fault) -> None:
    """A node is cut from all other nodes; its clients still reach it."""
    stage = fault.stage
    node, network = fault.entry.node, stage.cluster.network
    for other in stage.names:
        if other != node:
            network.partition(node, other, fault.cause)
    fault.begun(node)
    await trio.sleep(fault.entry.lasts_s)
    for other in stage.names:
        network.heal(node, other, fault.cause)


@kind("one_way_partition")
async def one_way_partition(fault: Fault) -> None:
    one, other, network = fault.entry.node, fault.entry.other, fault.stage.cluster.network
    network.cut(one, other, fault.cause)
    fault.begun(f"{one} {other}")
    await trio.sleep(fault.entry.lasts_s)
    network.mend(one, other, fault.cause)


@kind("link_reset")
async def link_reset(fault: Fault) -> None:
    """Some box between two nodes resets their connections."""
    one, other = fault.entry.node, fault.entry.other
    severed = fault.stage.cluster.network.sever(one, other)
    fault.begun(f"{one} {other}", f"{severed} connections")


@kind("half_open_link")
async def half_open_link(fault: Fault) -> None:
    """Only one end learns of it, and dials again while the other still has the old connection."""
    one, other = fault.entry.node, fault.entry.other
    severed = fault.stage.cluster.network.sever_half(one, other)
    fault.begun(f"{one} {other}", f"{severed} ends")


@kind("slow_link")
async def slow_link(fault: Fault) -> None:
    await _trouble(fault, Trouble(delay_s=(0.05, 0.05 + fault.entry.lasts_s / 6)))


@kind("reordering")
async def reordering(fault: Fault) -> None:
    """Each connection takes its own time: what was sent first arrives last."""
    await _trouble(fault, Trouble(delay_s=(0.0, 0.3)))


@kind("lossy_link")
async def lossy_link(fault: Fault) -> None:
    await _trouble(fault, Trouble(loss=0.2))


async def _trouble(fault: Fault, trouble: Trouble) -> None:
    one, other, network = fault.entry.node, fault.entry.other, fault.stage.cluster.network
    network.trouble(one, other, trouble, fault.cause)
    network.trouble(other, one, trouble, fault.cause)
    fault.begun(f"{one} {other}")
    await trio.sleep(fault.entry.lasts_s)
    network.relieve(fault.cause)


@kind("duplicate_dial")
async def duplicate_dial(fault: Fault) -> None:
    """Every dial to a node brings it a second connection, on which nobody speaks."""
    node, network = fault.entry.node, fault.stage.cluster.network
    network.double_dials(node)
    network.sever(node, fault.entry.other)
    fault.begun(node)
    await trio.sleep(fault.entry.lasts_s)
    network.no_double_dials(node)


@kind("mirror_change")
async def mirror_change(fault: Fault) -> None:
    """A node loses its mirror in the middle of publishing, and must find another."""
    stage = fault.stage
    node = stage.cluster[fault.entry.node]
    mirror = mirror_of(fault.stage, node)
    if mirror is None:
        raise Skipped(f"{node.name} has no mirror")
    network = stage.cluster.network
    network.partition(node.name, mirror, fault.cause)
    fault.begun(f"{node.name} {mirror}")
    await trio.sleep(max(2.5, fault.entry.lasts_s))
    network.heal(node.name, mirror, fault.cause)


@kind("client_reset")
async def client_reset(fault: Fault) -> None:
    stage = fault.stage
    client = stage.entropy(fault.entry.number).choose(stage.clients)
    fault.begun(client)
    for name in list(stage.cluster.nodes):
        stage.cluster.network.sever(client, name)


@kind("client_cut")
async def client_cut(fault: Fault) -> None:
    """A client and a node do not reach each other any more."""
    stage = fault.stage
    client = stage.entropy(fault.entry.number).choose(stage.clients)
    stage.cluster.network.partition(client, fault.entry.node, fault.cause)
    fault.begun(f"{client} {fault.entry.node}")
    await trio.sleep(fault.entry.lasts_s)
    stage.cluster.network.heal(client, fault.entry.node, fault.cause)


@kind("client_captive")
async def client_captive(fault: Fault) -> None:
    """A client reaches one node and no other, and its connection to that one breaks: it comes back
    to the same, with what was not acked."""
    stage = fault.stage
    network = stage.cluster.network
    client = stage.entropy(fault.entry.number).choose(stage.clients)
    others = [name for name in stage.names if name != fault.entry.node]
    for other in others:
        network.partition(client, other, fault.cause)
        network.sever(client, other)
    fault.begun(f"{client} {fault.entry.node}")
    for _ in range(4):
        await trio.sleep(fault.entry.lasts_s / 4)
        network.sever(client, fault.entry.node)
    for other in others:
        network.heal(client, other, fault.cause)
