"""Fixtures for tests of what stands on busnode: loaded by pytest wherever busnode is installed.

    def test_an_order_is_billed(bus):
        bus.publish("/orders/new", b"42", persistent=True)

The node runs in a thread of its own on a free port, with its data in the test's `tmp_path`. A test
that is async takes `bus_node` and connects itself: `async with busnode.connect(bus_node.url)`.

For what happens when nodes fail there is `bus_cluster`: three real nodes in a cluster of their own,
linked to each other when the test begins. They can be killed, restarted and cut apart.

    def test_billing_goes_on_when_its_node_dies(bus_cluster):
        first, second, third = bus_cluster.nodes
        billing = bus_cluster.bus(first)
        bus_cluster.kill(first)                 # as kill -9
        billing.publish("/orders/new", b"42", persistent=True)
        bus_cluster.restart(first)              # with its data and ports, as a new incarnation
        bus_cluster.partition(first, second)    # their links fall silent; clients reach both
        bus_cluster.heal()

    @pytest.mark.bus_cluster(nodes=5, retain_s=60)
    async def test_with_five(bus_cluster):
        async with busnode.connect(bus_cluster.url) as bus:
            ...

The marker takes a number of nodes and settings of `busnode.Node`. More than one cluster in a test,
or one for a whole module, is made by hand: `with busnode.testing.BusCluster(directory) as cluster`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from busnode.client import blocking
from busnode.node.embedding import Node
from busnode.testing.bus_cluster import BusCluster

MARKER = (
    "bus_cluster(nodes=3, **settings): how many nodes the fixture bus_cluster has, and settings"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def bus_node(tmp_path: Path) -> Iterator[Node]:
    """A node for one test; what it stored can be looked at in `tmp_path / "bus"` afterwards."""
    node = Node(cluster_id="test", name="test", data=str(tmp_path / "bus"), port=0)
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(node) as running,
    ):
        yield running


@pytest.fixture
def bus(bus_node: Node) -> Iterator[blocking.BlockingBus]:
    """A client without async, connected to a node that is there for this test alone."""
    with blocking.connect(bus_node.url, name="test") as connected:
        yield connected


@pytest.fixture
def bus_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BusCluster]:
    """A cluster for one test; each node's data is in `tmp_path / "bus_cluster"`, by its name."""
    asked: pytest.Mark | None = request.node.get_closest_marker("bus_cluster")
    mark = pytest.mark.bus_cluster.mark if asked is None else asked
    with BusCluster(tmp_path / "bus_cluster", *mark.args, **mark.kwargs) as cluster:
        yield cluster
