"""Fixtures for tests of what stands on busnode: loaded by pytest wherever busnode is installed.

    def test_an_order_is_billed(bus):
        bus.publish("/orders/new", b"42", persistent=True)

The node runs in a thread of its own on a free port, with its data in the test's `tmp_path`. A test
that is async takes `bus_node` and connects itself: `async with busnode.connect(bus_node.url)`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from busnode.client import blocking
from busnode.node.embedding import Node


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
