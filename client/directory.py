"""The nodes that a client knows: those of its URL, and those that nodes told it of."""

from collections.abc import Callable, Iterable
from typing import Final

from busnode.wire.errors import Refused
from busnode.world import network
from busnode.world.network import Address

SCHEME: Final = "bus://"
TLS_SCHEME: Final = "bus+tls://"
DEFAULT_PORT: Final = 4250

LEARNED_MAX: Final = 64
"""Nodes remembered beside those of the URL: more than any cluster with a full mesh has."""

EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})
"""Where a node may listen, but nobody can dial."""


def parse_url(url: str) -> list[Address]:
    """The addresses in `bus://host:port,host:port`; Refused when it names none."""
    if not url.startswith((SCHEME, TLS_SCHEME)):
        raise Refused(
            f"url {url!r:.100} does not begin with {SCHEME} or {TLS_SCHEME}: "
            "write bus://127.0.0.1:4250"
        )
    parts = url.removeprefix(SCHEME).removeprefix(TLS_SCHEME).rstrip("/").split(",")
    return list(dict.fromkeys(parse_address(part) for part in parts))


def speaks_tls(url: str) -> bool:
    """Whether its nodes, and those that they tell of, are dialled in TLS."""
    return url.startswith(TLS_SCHEME)


def parse_address(text: str) -> Address:
    """`host`, `host:port` or `[ipv6]:port`; Refused for anything else."""
    try:
        return network.parse_address(text, DEFAULT_PORT)
    except ValueError as error:
        raise Refused(str(error)) from None


class Directory:
    """Whom to try, in which order. The URL's nodes are never forgotten."""

    def __init__(self, given: list[Address]) -> None:
        self._given = given
        self._learned: dict[Address, None] = {}
        self._last: Address | None = None

    def is_given(self, address: Address) -> bool:
        """Whether it stands in the URL."""
        return address in self._given

    @property
    def nodes(self) -> list[Address]:
        return list(dict.fromkeys([*self._given, *self._learned]))

    def learn(self, texts: Iterable[str]) -> None:
        """A node told us of others; what cannot be dialled is passed over."""
        for text in texts:
            try:
                address = parse_address(text)
            except Refused:
                continue
            if address.host not in EVERYWHERE:
                self._learned.pop(address, None)
                self._learned[address] = None
        while len(self._learned) > LEARNED_MAX:
            del self._learned[next(iter(self._learned))]

    def left(self, address: Address) -> None:
        """This was our home and is not any more: others come first in the next round."""
        self._last = address

    def round(self, draw: Callable[[], float]) -> list[Address]:
        """All nodes once, in an order by chance, the one that we came from last."""
        order = sorted(self.nodes, key=lambda address: (address == self._last, draw()))
        self._last = None
        return order
