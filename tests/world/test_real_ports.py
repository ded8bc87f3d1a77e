"""Ports that stay ours while nobody listens there."""

import pytest

from busnode.world.network import Address
from busnode.world.real_network import RealNetwork
from busnode.world.real_ports import LOOPBACK, ReservedPort


async def test_listeners_come_and_go_and_meanwhile_diallers_are_refused() -> None:
    port = ReservedPort()
    address = Address(LOOPBACK, port.number)
    network = RealNetwork()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await network.dial(address)
        listener = await network.listen(address)
        near = await network.dial(address)
        far = await listener.accept()
        for each in (far, near, listener):
            each.close()
    port.close()


def test_each_is_another() -> None:
    ports = [ReservedPort() for _ in range(100)]
    assert len({port.number for port in ports}) == 100
    for port in ports:
        port.close()
