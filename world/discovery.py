"""The seam to discovery: who might be a peer."""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from busnode.world.network import Address


class Hint(NamedTuple):
    """Somebody says that a node is there. It is never a proof: dialling and HELLO decide."""

    addresses: tuple[Address, ...]
    source: str


class Discovery(Protocol):
    def hints(self) -> AsyncIterator[Hint]:
        """Hints as they come; it ends only where no more can come."""
        ...
