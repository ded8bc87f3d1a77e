"""A node that another one dials more than once: at several addresses, or as seed and by hint."""

import pytest
import trio

from busnode.node.peer_session import PeerSession
from busnode.wire.control import MembersSeen, PeerHello, encode_control
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.network import Stream

from .simulated_cluster import SimulatedCluster, on_cluster, seed_address

OTHER = BrokerId(bytes([7] * 16))


@pytest.mark.parametrize("seed", range(10))
def test_nodes_that_have_each_other_as_seeds_lose_no_link(seed: int) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        cluster.ether.loses = lambda _, __: True
        for name in "abc":
            await cluster.add(name, seeds=[seed_address(other) for other in "abc" if other != name])
        assert await cluster.meshed() < 5
        await trio.sleep(10)
        assert [node.node.peers.links_lost for node in cluster.nodes.values()] == [0, 0, 0]

    on_cluster(seed)(main)


async def dialled(cluster: SimulatedCluster) -> Stream:
    """A connection to node a that was welcomed."""
    stream = await cluster.network.host("other").dial(seed_address("a"))
    stream.send(encode_control(PeerHello(PROTOCOL_VERSION, "sim", OTHER, "other", [], [])))
    await stream.wait_readable()
    assert stream.receive_into(memoryview(bytearray(1000)))
    return stream


async def is_open(stream: Stream) -> bool:
    """Whether it is a while later, although something may have come."""
    view = memoryview(bytearray(1000))
    with trio.move_on_after(0.5):
        while stream.receive_into(view) != 0:
            await stream.wait_readable()
        return False
    return True


@pytest.mark.parametrize("chosen", [0, 1])
def test_the_connection_that_the_dialler_chooses_is_kept(chosen: int) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        peers = cluster["a"].node.peers
        streams = [await dialled(cluster), await dialled(cluster)]
        assert peers.sessions == {}  # nobody knows yet which it will be
        streams[chosen].send(encode_control(MembersSeen([])))
        await cluster.until(lambda: OTHER in peers.sessions)
        session = peers.sessions[OTHER]
        streams[1 - chosen].close()
        assert await is_open(streams[chosen])
        assert peers.sessions == {OTHER: session}
        streams[chosen].close()
        await cluster.until(lambda: not peers.sessions)


def test_one_that_is_chosen_later_takes_the_place_of_a_broken_one() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        peers = cluster["a"].node.peers
        sessions: list[PeerSession] = []
        broken = await dialled(cluster)
        broken.send(encode_control(MembersSeen([])))
        await cluster.until(lambda: OTHER in peers.sessions)
        sessions.append(peers.sessions[OTHER])
        again = await dialled(cluster)
        assert peers.sessions[OTHER] is sessions[0]
        again.send(encode_control(MembersSeen([])))
        await cluster.until(lambda: peers.sessions[OTHER] is not sessions[0])
        assert not await is_open(broken)
        assert await is_open(again)
        broken.close()
        again.close()
