"""The addresses of this machine, and how others dial it."""

import pytest

from busnode.testing.sim import SimNetwork
from busnode.world.network import Address
from busnode.world.real_interfaces import addresses_of, dialable, reachable_addresses
from busnode.world.real_network import RealNetwork


def test_an_interface_has_its_addresses() -> None:
    assert "127.0.0.1" in addresses_of("lo")


def test_an_interface_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(OSError, match=r"no network interface 'nope'.*lo \(127\.0\.0\.1"):
        addresses_of("nope")


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7", "::1", "fe80::1%eth0", "some.example"])
def test_who_listens_at_one_address_is_reached_there(host: str) -> None:
    assert reachable_addresses(host) == [host]
    assert RealNetwork().reachable_at(Address(host, 5)) == [Address(host, 5)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_who_listens_everywhere_is_reached_at_each_address_it_names(host: str) -> None:
    network = RealNetwork()
    try:
        listener = await network.listen(Address(host, 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    reachable = network.reachable_at(listener.address)
    assert reachable
    assert {address.port for address in reachable} == {listener.address.port}
    for address in reachable:
        (await network.dial(address)).close()
        (await listener.accept()).close()
    listener.close()


@pytest.mark.parametrize(
    ("addresses", "good"),
    [
        ("127.0.0.1 192.0.2.1 ::1 2001:db8::1", "192.0.2.1 2001:db8::1"),
        ("fe80::1%eth0 192.0.2.1", "192.0.2.1"),
        ("127.0.0.1 fe80::1%eth0 ::1", "fe80::1%eth0 127.0.0.1 ::1"),
        ("127.0.0.1 ::1", "127.0.0.1 ::1"),
        ("", ""),
    ],
)
def test_loopback_and_link_local_are_told_only_when_there_is_nothing_else(
    addresses: str, good: str
) -> None:
    assert dialable(addresses.split()) == good.split()


async def test_a_simulated_host_is_reached_by_its_name() -> None:
    network = SimNetwork().host("n1")
    assert network.reachable_at(Address("0.0.0.0", 5)) == [Address("n1", 5)]
    listener = await network.listen(Address("0.0.0.0", 0))
    assert network.reachable_at(listener.address) == [listener.address]
