"""The fixtures that users get with busnode."""

import busnode
from busnode.client.blocking import BlockingBus
from busnode.node.embedding import Node


def test_a_test_gets_a_bus_that_keeps_what_is_published(bus: BlockingBus) -> None:
    receipt = bus.publish("/orders/new", b"42", persistent=True)
    assert receipt is not None
    assert receipt.msg_no == 1
    with bus.subscribe("/orders/*", start="earliest") as messages:
        assert next(iter(messages)).payload == b"42"


def test_each_test_has_a_bus_of_its_own(bus: BlockingBus) -> None:
    receipt = bus.publish("/orders/new", b"43", persistent=True)
    assert receipt is not None
    assert receipt.msg_no == 1


async def test_an_async_test_connects_to_the_node_itself(bus_node: Node) -> None:
    async with busnode.connect(bus_node.url, name="mine") as mine:
        receipt = await mine.publish("/orders/new", b"44", persistent=True)
        assert receipt is not None
        assert receipt.level == "local"
