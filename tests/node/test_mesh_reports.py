"""What a node believes of the reports of others."""

from pathlib import Path

from busnode.node.status import status
from busnode.wire.control import MembersSeen, PeerHello, PeerWelcome
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION

from .raw_client import dialled, real_bus

PEER, OTHER = BrokerId(b"p" * 16), BrokerId(b"o" * 16)


async def test_a_report_goes_with_the_node_that_made_it(tmp_path: Path) -> None:
    async with real_bus(tmp_path, storage="memory", peer_port=0) as bus:
        listener = bus.node.listeners.peer
        assert listener is not None

        def missing() -> list[dict[str, str]]:
            found: list[dict[str, str]] = status(bus.node)["cluster"]["missing_links"]
            return found

        async with dialled(bus.network, listener.address) as peer:
            await peer.send(PeerHello(PROTOCOL_VERSION, "test", PEER, "peer", [], []))
            await peer.expect(PeerWelcome)
            await peer.send(MembersSeen([(OTHER, "other", [])]))
            await bus.settled(lambda: {"dialler": "n1", "listener": "other"} in missing())
        await bus.settled(lambda: not missing())
