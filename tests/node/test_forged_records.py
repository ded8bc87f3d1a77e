"""Ten thousand forged mDNS records with the right cluster id, against real nodes on loopback."""

import os
from pathlib import Path
from time import monotonic
from typing import Final

import pytest
import trio

from busnode.cluster.membership import CANDIDATES_MAX, RUMOURS_A_SECOND
from busnode.wire.ids import BrokerId
from busnode.world.discovery import Announcement
from busnode.world.network import Address

from ..world.test_real_mdns import service, stranger
from .flood import MIB, REQUEST, value
from .process_cluster import PATIENCE_S, Node, cluster_of

FORGED: Final = 10_000
GROWTH_BYTES_MAX: Final = 32 * MIB
A_PACKET_S: Final = 0.5
"""How long the nodes are waited for before the next records: what they cannot hear is dropped by
the kernel, and harms nobody."""


async def metrics_of(node: Node) -> str:
    host, _, port = node.told["http"].rpartition(":")
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(REQUEST.format("/metrics").encode())
            return b"".join([part async for part in stream]).decode()


def resident_bytes(node: Node) -> int:
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Trap:
    """Where all forged records point to: it counts who dials, and answers nothing."""

    def __init__(self) -> None:
        self.dialled = 0

    async def take(self, stream: trio.SocketStream) -> None:
        self.dialled += 1
        await stream.aclose()


@pytest.mark.scenario
async def test_forged_records_drop_no_link_and_take_no_memory(tmp_path: Path) -> None:
    trap = Trap()
    async with cluster_of(tmp_path, 2, http_port="0") as cluster, trio.open_nursery() as nursery:
        await cluster.meshed()
        watched = cluster.nodes[0]
        listeners = await nursery.start(trio.serve_tcp, trap.take, 0)
        port = listeners[0].socket.getsockname()[1]
        before_bytes = resident_bytes(watched)
        began = monotonic()
        heard_before = value(await metrics_of(watched), "busnode_discovery_events_total ")
        with stranger() as zeroconf:
            for number in range(FORGED):
                forged = Announcement(
                    cluster.id, 1, BrokerId(os.urandom(16)), f"forged-{number}",
                    (Address("127.0.0.1", port),),
                )  # fmt: skip
                zeroconf.send(zeroconf.generate_service_broadcast(service(forged, port=port), None))
                if number % 100 == 99:
                    with trio.move_on_after(A_PACKET_S):
                        while True:
                            metrics = await metrics_of(watched)
                            heard = value(metrics, "busnode_discovery_events_total ")
                            if heard - heard_before >= number:
                                break
                            await trio.sleep(0.01)
        took_s = monotonic() - began
        metrics = await metrics_of(watched)
        heard = value(metrics, "busnode_discovery_events_total ") - heard_before
        grown_bytes = resident_bytes(watched) - before_bytes
        # A real node that comes now is found.
        await trio.to_thread.run_sync(cluster.add, "n3")
        found_s = await cluster.meshed()
        dialled = trap.dialled
        print(
            f"{heard} of {FORGED} records heard in {took_s:.1f} s; the node has grown by "
            f"{grown_bytes / MIB:.1f} MiB; both nodes have dialled {dialled} times; "
            f"a real node was found within {found_s:.1f} s"
        )
        assert heard > FORGED / 2
        assert grown_bytes < GROWTH_BYTES_MAX
        for node in cluster.nodes[:2]:
            metrics = await metrics_of(node)
            assert value(metrics, "busnode_links_lost_total ") == 0
            assert value(metrics, "busnode_candidates ") <= CANDIDATES_MAX
        lasted_s = monotonic() - began
        assert 0 < dialled <= 2 * (CANDIDATES_MAX + RUMOURS_A_SECOND * lasted_s)
        nursery.cancel_scope.cancel()
