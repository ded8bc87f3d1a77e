"""The home: the node that this client is connected to, and how another is found when it is gone."""

import logging
from typing import Final, Protocol

import anyio

from busnode.client.backoff import Backoff
from busnode.client.bell import Bell
from busnode.client.connection import Connection, Guest
from busnode.client.directory import Directory
from busnode.client.patience import Patience
from busnode.client.world import ClientWorld
from busnode.wire.control import Hello, Welcome
from busnode.wire.errors import (
    BadVersion,
    BusnodeError,
    LimitReached,
    NotAuthenticated,
    Refused,
    TlsFailed,
)
from busnode.world.network import Address, Tls
from busnode.world.tls import TlsError

logger = logging.getLogger("busnode.client")

DIAL_TIMEOUT_S: Final = 2.0
"""A machine without power answers nothing at all; the next node should not wait for it."""

WELCOME_TIMEOUT_S: Final = 5.0
"""As long as a node waits for a HELLO."""


class Dweller(Guest, Protocol):
    """Whoever lives at the home: the bus."""

    def arrived(self, connection: Connection, welcome: Welcome) -> None: ...

    def left(self, why: str) -> None: ...

    def failed(self, error: BusnodeError) -> None:
        """There will be no home any more."""
        ...


class Home:
    """Keeps a connection to some node, for as long as it runs."""

    def __init__(
        self,
        world: ClientWorld,
        directory: Directory,
        patience: Patience,
        hello: Hello,
        wanted: Bell,
        tls: Tls | None = None,
    ) -> None:
        self.connection: Connection | None = None
        self.address: Address | None = None
        self.closing = False
        """Whether to look for no other when this one is left."""
        self.directory = directory
        self._world = world
        self._patience = patience
        self._hello = hello
        self._wanted = wanted
        self._tls = tls
        self._has_arrived = False
        self._backoff = Backoff()

    async def run(self, dweller: Dweller) -> None:
        """Until a node refuses us for good, or the client closes."""
        while True:
            try:
                connection, welcome = await self._find()
            except BusnodeError as error:
                dweller.failed(error)
                return
            since = self._world.clock.monotonic()
            try:
                self.connection = connection
                self._patience.arrived()
                dweller.arrived(connection, welcome)
                await connection.serve(dweller, welcome.heartbeat_s)
            finally:
                self.connection = None
                connection.close()
            why = f"{self.address}: {connection.ended_by or 'it said goodbye'}"
            logger.info("lost the connection to %s", why)
            self._patience.left(why)
            dweller.left(why)
            if self.closing:
                return
            assert self.address is not None
            self.directory.left(self.address)
            lived_s = self._world.clock.monotonic() - since
            pause_s = self._backoff.lost(lived_s, self._world.entropy.random())
            await self._world.clock.sleep(pause_s)

    async def _find(self) -> tuple[Connection, Welcome]:
        """Try all nodes that we know, over and over. Raises only what no retry would mend."""
        while True:
            refusals: list[TlsFailed] = []
            nodes = self.directory.round(self._world.entropy.random)
            for address in nodes:
                try:
                    connection, welcome = await self._greet(address)
                except TlsFailed as error:
                    self._note(address, error)
                    # One that only others have told us of may be known to them by another name.
                    if self.directory.is_given(address):
                        refusals.append(error)
                except (Refused, BadVersion, NotAuthenticated) as error:
                    if not isinstance(error, LimitReached):
                        raise
                    self._note(address, error)
                except (OSError, BusnodeError) as error:
                    self._note(address, error)
                else:
                    self.address = address
                    self._has_arrived = True
                    self.directory.learn(welcome.nodes)
                    return connection, welcome
            if refusals and (not self._has_arrived or len(refusals) == len(nodes)):
                raise refusals[0]
            pause_s = self._backoff.failed(self._world.entropy.random())
            await self._world.clock.sleep(pause_s)

    def _note(self, address: Address, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        logger.info("%s cannot be reached: %s", address, text)
        self._patience.why = f"{address}: {text}"

    async def _greet(self, address: Address) -> tuple[Connection, Welcome]:
        with anyio.fail_after(DIAL_TIMEOUT_S):
            stream = await self._world.network.dial(address, self._tls)
        connection = Connection(stream, self._world.clock, self._wanted)
        try:
            with anyio.fail_after(WELCOME_TIMEOUT_S):
                return connection, await connection.greet(self._hello)
        except TlsError as error:
            connection.close()
            raise TlsFailed(str(error)) from error
        except BaseException:
            connection.close()
            raise
