"""Where a node can be reached."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from busnode.node.config import NodeConfig
from busnode.node.tls import NodeTls
from busnode.world.network import Address, Listener, Network, Tls


class Listeners(NamedTuple):
    client: Listener
    peer: Listener | None
    http: Listener | None

    def addresses(self) -> dict[str, str]:
        """By what each is for."""
        named = {"client": self.client, "peer": self.peer, "http": self.http}
        return {name: str(listener.address) for name, listener in named.items() if listener}


@asynccontextmanager
async def open_listeners(
    network: Network, config: NodeConfig, tls: NodeTls
) -> AsyncGenerator[Listeners, None]:
    """All of them, or an OSError with the address of the one that could not be opened."""
    opened: list[Listener] = []

    async def listen(port: int | None, tls: Tls | None) -> Listener | None:
        if port is None:
            return None
        opened.append(await _listen(network, config.listen, port, tls))
        return opened[-1]

    try:
        client = await listen(config.port, tls.clients)
        assert client is not None
        peer = await listen(config.peer_port, tls.peers)
        yield Listeners(client, peer, await listen(config.http_port, tls.clients))
    finally:
        for listener in opened:
            listener.close()


async def _listen(network: Network, host: str, port: int, tls: Tls | None) -> Listener:
    address = Address(host, port)
    try:
        return await network.listen(address, tls)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
