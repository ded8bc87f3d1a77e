"""Discovery by seeds: the addresses and names that a person has given."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import trio

from busnode.world.discovery import Announcement, DiscoveryStatistics, Hint
from busnode.world.network import Address

RESOLVE_AGAIN_S = 10.0
"""Behind a name stand others tomorrow: containers are moved, and what starts last is in no DNS yet.
Ten seconds are the usual life of such a record."""

Resolve = Callable[[Address], Awaitable[Sequence[Address]]]
"""All addresses that a name stands for, with the port of the seed. Raises `OSError`."""


async def resolve_by_system(seed: Address) -> list[Address]:
    """Asks the resolver of the machine, in a thread."""
    try:
        found = await trio.socket.getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that no host can have
        raise OSError(f"{seed.host[:100]!r} is no name of a host") from error
    return [Address(str(sockaddr[0]), seed.port) for *_, sockaddr in found]


class SeedDiscovery:
    """Hints at an address once, and at all that a name stands for again and again.

    Each name has a task of its own, so that one whose resolver hangs holds up no other.
    """

    def __init__(self, seeds: Sequence[Address], resolve: Resolve = resolve_by_system) -> None:
        self._seeds = tuple(seeds)
        self._resolve = resolve
        self._events = 0
        self._failures: dict[Address, str] = {}

    async def run(
        self,
        announcement: Announcement,  # noqa: ARG002 - no resolver would take it
        found: Callable[[Hint], None],
    ) -> None:
        async with trio.open_nursery() as nursery:
            for seed in self._seeds:
                if _is_numeric(seed.host):
                    self._events += 1
                    found(Hint((seed,), "seed"))
                else:
                    nursery.start_soon(self._follow, seed, found)

    def statistics(self) -> DiscoveryStatistics:
        failure = "; ".join(self._failures.values()) or None
        return DiscoveryStatistics(events=self._events, failure=failure)

    async def _follow(self, seed: Address, found: Callable[[Hint], None]) -> None:
        while True:
            try:
                addresses = await self._resolve(seed)
            except OSError as error:
                self._events += 1
                self._failures[seed] = f"the seed {seed} does not resolve: {error}"
            else:
                self._failures.pop(seed, None)
                for address in dict.fromkeys(addresses):
                    self._events += 1
                    found(Hint((address,), "dns"))
            await trio.sleep(RESOLVE_AGAIN_S)


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
