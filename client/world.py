"""What a client asks of the world outside: less than a node does, so a node's world will do."""

from typing import Protocol

from busnode.world.clock import Clock
from busnode.world.entropy import Entropy
from busnode.world.files import Files
from busnode.world.network import Address, Stream, Tls
from busnode.world.tls import TlsTerms


class Dialler(Protocol):
    """The network as far as a client uses it."""

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream: ...

    def tls(self, terms: TlsTerms) -> Tls: ...


class ClientWorld(Protocol):
    """The seams of a client. `world.real_anyio` has the real ones, `testing.sim` the simulated."""

    @property
    def clock(self) -> Clock: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def files(self) -> Files: ...

    @property
    def network(self) -> Dialler: ...
