"""The addresses of this machine, and which of them others can dial."""

import errno
from collections.abc import Iterable
from ipaddress import ip_address

ANY_IPV4 = "0.0.0.0"
ANY = ("", "::")
"""A listener there serves IPv4 too."""


def addresses_of(interface_name: str) -> list[str]:
    """The addresses of one interface, as the system lists them. Raises `OSError` with the names of
    those that there are."""
    interfaces = _interfaces()
    if interface_name not in interfaces:
        there = ", ".join(f"{name} ({', '.join(each)})" for name, each in interfaces.items())
        raise OSError(
            errno.ENODEV,
            f"there is no network interface {interface_name!r} with an address;"
            f" this machine has {there or 'none'}",
        )
    return interfaces[interface_name]


def reachable_addresses(host: str) -> list[str]:
    """Where others can dial somebody who listens at `host`: that, unless it stands for any."""
    if host != ANY_IPV4 and host not in ANY:
        return [host]
    every = [address for each in _interfaces().values() for address in each]
    return dialable(address for address in every if host in ANY or ":" not in address)


def dialable(addresses: Iterable[str]) -> list[str]:
    """Those that are good for others. Only where there is none of these, the ones that are good on
    the same link, and last those that are good on this machine alone."""
    good: list[str] = []
    on_link: list[str] = []
    on_machine: list[str] = []
    for address in addresses:
        ip = ip_address(address)
        if ip.is_loopback:
            on_machine.append(address)
        elif ip.version == 6 and ip.is_link_local:
            on_link.append(address)
        else:
            good.append(address)
    return good or on_link + on_machine


def _interfaces() -> dict[str, list[str]]:
    """Each interface that has an address; a link-local one says on which link."""
    import ifaddr  # noqa: PLC0415 - with ctypes 10 ms, and most nodes listen at one address

    found: dict[str, list[str]] = {}
    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            if isinstance(each.ip, str):
                address = each.ip
            else:
                address, _, scope = each.ip
                if ip_address(address).is_link_local and scope:
                    address = f"{address}%{adapter.nice_name}"
            found.setdefault(adapter.nice_name, []).append(address)
    return found
