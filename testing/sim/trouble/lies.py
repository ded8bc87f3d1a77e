"""What strangers say: discovery that lies, and a node that says goodbye for another one."""

import trio

from busnode.testing.sim.cluster import PEER_PORT
from busnode.testing.sim.trouble.kind import Fault, kind
from busnode.wire.control import Goodbye, PeerHello, encode_control
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.network import Address

STRANGER = "stranger"


@kind("forged_hint")
async def forged_hint(fault: Fault) -> None:
    """A live node is said to be where it is not: at another node, at nobody, or in another
    cluster."""
    stage = fault.stage
    entropy = stage.entropy(fault.entry.number)
    node = stage.cluster[fault.entry.node]
    broker_id = node.node.broker_id if node.is_up else entropy.broker_id()
    where = entropy.choose((fault.entry.other, node.name, STRANGER, "nowhere"))
    cluster_id = entropy.choose(("sim", "sim", "another", None))
    stage.cluster.network.host(STRANGER)
    address = Address(where, entropy.choose((PEER_PORT, PEER_PORT, 1)))
    stage.cluster.ether.forge(
        Hint((address,), "sim", cluster_id, PROTOCOL_VERSION, broker_id, node.name)
    )
    fault.begun(node.name, f"at {address} of {cluster_id}")


@kind("forged_goodbye")
async def forged_goodbye(fault: Fault) -> None:
    """A stranger greets with a node's name, as an incarnation of its own making, and leaves."""
    stage = fault.stage
    entropy = stage.entropy(fault.entry.number)
    victim, hearer = fault.entry.node, fault.entry.other
    fault.begun(f"{victim} {hearer}")
    hello = PeerHello(
        PROTOCOL_VERSION, "sim", entropy.broker_id(), victim,
        [f"{victim}:4250"], [f"{victim}:{PEER_PORT}"],
    )  # fmt: skip
    with trio.move_on_after(5.0):
        try:
            stream = await stage.cluster.network.host(STRANGER).dial(Address(hearer, PEER_PORT))
        except OSError:
            return
        try:
            stream.send(encode_control(hello))
            await trio.sleep(fault.entry.lasts_s / 4)
            stream.send(encode_control(Goodbye("this node is leaving", [])))
            await trio.sleep(0.1)
        except OSError:
            pass
        finally:
            stream.close()
