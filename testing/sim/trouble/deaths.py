"""Processes and machines that stop, and come back: with their disk, without it, or twice."""

import trio

from busnode.testing.sim.cluster import SimulatedNode
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.faults import DiskFaults
from busnode.testing.sim.history import DISK_LOST
from busnode.testing.sim.stage import Skipped, Stage
from busnode.testing.sim.trouble.kind import Fault, kind


@kind("kill")
async def kill(fault: Fault) -> None:
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        fault.begun(node.name)
        stage.down(node, "killed")
        await node.kill()
        await trio.sleep(fault.entry.lasts_s)
        await stage.start(node)


@kind("restart")
async def restart(fault: Fault) -> None:
    """As a person does it: it drains, leaves, and is started again."""
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        fault.begun(node.name)
        stage.down(node, "stopped")
        node.resume()
        await node.stop()
        await trio.sleep(min(fault.entry.lasts_s, 1.0))
        await stage.start(node)


@kind("power_loss")
async def power_loss(fault: Fault) -> None:
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        fault.begun(node.name)
        stage.down(node, "without power")
        await node.lose_power()
        await trio.sleep(fault.entry.lasts_s)
        await stage.start(node)


@kind("power_loss_of_pair")
async def power_loss_of_pair(fault: Fault) -> None:
    """A node and its mirror in the same instant."""
    stage = fault.stage
    first = stage.cluster[fault.entry.node]
    mirror = mirror_of(stage, first) or fault.entry.other
    with stage.alone_with(first.name, mirror) as nodes:
        fault.begun(f"{first.name} {mirror}")
        for node in nodes:
            stage.down(node, "without power")
        await stage.cluster.lose_power([node.name for node in nodes])
        await trio.sleep(fault.entry.lasts_s)
        for node in nodes:
            await stage.start(node)


@kind("torn_write")
async def torn_write(fault: Fault) -> None:
    """The power goes while much is written and not synced: sectors are left half or old."""
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        fault.begun(node.name)
        before = node.disk.odds
        node.disk.odds = DiskFaults(sync_slow=1.0, sync_slow_s_max=1.0)
        await trio.sleep(min(0.8, fault.entry.lasts_s))
        node.disk.odds = before
        if node.is_up:
            stage.down(node, "without power")
            await node.lose_power()
            await trio.sleep(fault.entry.lasts_s)
            await stage.start(node)


@kind("pause")
async def pause(fault: Fault) -> None:
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        fault.begun(node.name)
        node.pause()
        await trio.sleep(fault.entry.lasts_s)
        node.resume()


@kind("wiped_disk")
async def wiped_disk(fault: Fault) -> None:
    """It comes back with an empty disk. Only when all that it had is elsewhere too."""
    stage = fault.stage
    with stage.alone_with(fault.entry.node) as (node,):
        if (lonely := stage.spares(node.name)) is not None:
            raise Skipped(lonely)
        fault.begun(node.name)
        stage.down(node, f"killed, {DISK_LOST}")
        await node.kill()
        disk = SimDisk(f"{stage.seed}/{node.name}/{fault.entry.number}", clock=node.clock)
        if stage.spares(node.name) is None:
            for log_id, numbers in stage.platters[node.name].contents().items():
                stage.destroys(node.name, log_id, numbers)
            stage.take_disk(node, disk)
        await trio.sleep(fault.entry.lasts_s)
        await stage.start(node)


@kind("wiped_all_copies")
async def wiped_all_copies(fault: Fault) -> None:
    """All nodes that hold anything of what a node writes now come back with empty disks."""
    stage = fault.stage
    first = stage.cluster[fault.entry.node]
    if not first.is_up:
        raise Skipped(f"{first.name} is down")
    broker_id = first.node.broker_id
    names = [each for each in stage.names if broker_id in stage.platters[each].brokers()]
    with stage.alone_with(*names) as nodes:
        fault.begun(" ".join(names))
        for node in nodes:
            stage.down(node, f"killed, {DISK_LOST}")
            await node.kill()
        left = [stage.platters[each] for each in stage.platters if each not in names]
        for name in names:
            for log_id, numbers in stage.platters[name].contents().items():
                for number in numbers:
                    if any(each.holds(log_id, number) for each in left):
                        stage.destroys(name, log_id, [number])
                    elif (log_id, number) not in stage.lost:
                        stage.takes(names, log_id, range(number, number + 1))
        for node in nodes:
            seed = f"{stage.seed}/{node.name}/{fault.entry.number}"
            stage.take_disk(node, SimDisk(seed, clock=node.clock))
        await trio.sleep(fault.entry.lasts_s)
        for node in nodes:
            await stage.start(node)


@kind("cloned_disk")
async def cloned_disk(fault: Fault) -> None:
    """Somebody copies a node's data to another machine and starts a node there, too."""
    stage = fault.stage
    original = stage.cluster[fault.entry.node]
    name = f"clone{fault.entry.number}"
    clone = SimulatedNode(stage.cluster, name, {**original.settings, "name": None})
    disk = original.disk.copy(f"{stage.seed}/{name}", clone.clock)
    fault.begun(original.name, name)
    stage.cluster.nodes[name] = clone
    stage.take_disk(clone, disk)
    await stage.start(clone)
    await trio.sleep(max(2.0, fault.entry.lasts_s))
    # Clients may have found it and published there. It goes when all that it has is elsewhere, and
    # stays for good if that takes too long.
    for _ in range(20):
        if clone.is_up and stage.spares(name) is None:
            stage.down(clone, "killed")
            await clone.kill()
            for log_id, numbers in stage.platters[name].contents().items():
                stage.destroys(name, log_id, numbers)
            del stage.cluster.nodes[name], stage.platters[name]
            return
        await trio.sleep(0.5)


def mirror_of(stage: Stage, node: SimulatedNode) -> str | None:
    """The node that mirrors another one now, if it is one of those that stay. A clone may have the
    name of another node."""
    if not node.is_up:
        return None
    mirrors = node.node.mirroring.streams
    for name in stage.names:
        other = stage.cluster[name]
        if other.is_up and other.node.peers.me.broker_id in mirrors:
            return name
    return None
