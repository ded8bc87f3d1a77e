"""All doors of a node: one count of addresses, of identities and of memory behind them."""

from typing import TYPE_CHECKING

from busnode.node.config import NodeConfig
from busnode.node.door import Door
from busnode.node.events import Tell
from busnode.node.http import say_no
from busnode.node.memory_budget import MemoryBudget
from busnode.node.turn import Turn
from busnode.security.quotas import Accounts, AddressLimits, Arrivals, IdentityLimits
from busnode.world.clock import Clock

if TYPE_CHECKING:
    from busnode.node.session import ClientSession


class Doors:
    """The node makes it; each listener has its own door."""

    def __init__(self, config: NodeConfig, clock: Clock, tell: Tell) -> None:
        self.budget = MemoryBudget(config.memory_max)
        self.arrivals = Arrivals(
            AddressLimits(
                config.connections_per_address, config.handshakes_per_address,
                config.handshake_burst, config.limit_loopback,
            )
        )  # fmt: skip
        self.accounts = Accounts(
            IdentityLimits(
                config.connections_per_identity, config.subscriptions_per_identity,
                config.publish_rate, config.publish_size_rate, config.in_flight_per_identity,
            ),
            config.limit_loopback,
        )  # fmt: skip
        self._clock = clock
        common = self.arrivals, clock, config.half_open_max, self.budget, tell, Turn(clock)
        self.clients = Door("clients", *common)
        self.peers = Door("nodes", *common)
        self.http = Door("HTTP", *common, say_no)

    def client_greeted(self, session: "ClientSession") -> None:
        """It has said who it is. LimitReached for too many of the same identity."""
        account = self.accounts.open(session.identity, session.peer.host, self._clock.monotonic())
        session.account = account
        self.clients.greeted(session)

    def client_left(self, session: "ClientSession") -> None:
        if session.account is not None:
            self.accounts.close(session.identity, session.peer.host)
            session.close_account()
        self.clients.left(session.peer.host, session)

    def check_subscriptions(self, session: "ClientSession") -> None:
        """LimitReached when its identity has as many as it may."""
        if session.account is not None:
            self.accounts.check_subscriptions(session.account)
