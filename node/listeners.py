"""Where a node can be reached."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from busnode.node.config import NodeConfig
from busnode.world.network import Address, Listener, Network


class Listeners(NamedTuple):
    client: Listener
    http: Listener | None

    def addresses(self) -> dict[str, str]:
        """By what each is for."""
        named = {"client": self.client, "http": self.http}
        return {name: str(listener.address) for name, listener in named.items() if listener}


@asynccontextmanager
async def open_listeners(network: Network, config: NodeConfig) -> AsyncGenerator[Listeners, None]:
    """All of them, or an OSError with the address of the one that could not be opened."""
    client = await _listen(network, config.listen, config.port)
    http: Listener | None = None
    try:
        if config.http_port is not None:
            http = await _listen(network, config.listen, config.http_port)
        yield Listeners(client, http)
    finally:
        client.close()
        if http is not None:
            http.close()


async def _listen(network: Network, host: str, port: int) -> Listener:
    address = Address(host, port)
    try:
        return await network.listen(address)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
