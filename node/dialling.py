"""Finding other nodes and keeping a link to each: carries out what `Membership` decides."""

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

import trio

from busnode.cluster.membership import Candidate, Meeting, Membership
from busnode.node.logs import fields
from busnode.node.peer_greeting import make_greeting
from busnode.node.peer_link import LinkHost, PeerLink
from busnode.security.cluster_key import ClusterKey
from busnode.wire.control import PeerHello, PeerWelcome
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId
from busnode.world.discovery import Announcement, Hint
from busnode.world.network import Address, Tls
from busnode.world.world import World

logger = logging.getLogger(__name__)

DIAL_S: Final = 2.0
"""A machine without power answers nothing at all."""

GREET_S: Final = 2.0
"""For both sides of a link: nodes greet without being asked to think."""


class DiallingHost(LinkHost, Protocol):
    """Whose links these are."""

    def linked(self, link: PeerLink) -> None:
        """A node has welcomed us; its link is about to run."""
        ...

    async def tell_everything(self, link: PeerLink) -> None:
        """Runs beside a new link."""
        ...

    def unlinked(self, link: PeerLink) -> None: ...


class Dialling:
    """Announces this node, hears of others, dials them, and dials again."""

    def __init__(
        self,
        world: World,
        host: DiallingHost,
        hello: PeerHello,
        peers_at: tuple[Address, ...],
        heartbeat_s: float,
        keys: Callable[[], list[ClusterKey]],
        tls: Tls | None,
    ) -> None:
        self.membership = Membership(hello.broker_id, hello.cluster_id)
        self.leaving = False
        """Whether nobody is dialled any more."""
        self._clock = world.clock
        self._entropy = world.entropy
        self._network = world.network
        self._discovery = world.discovery
        self._host = host
        self._hello = hello
        self._peers_at = peers_at
        self._heartbeat_s = heartbeat_s
        self._keys = keys
        self._tls = tls
        self._woken = trio.Event()

    async def discover(self) -> None:
        """Announce this node, and hear of others."""
        hello = self._hello
        announcement = Announcement(
            hello.cluster_id, hello.protocol, hello.broker_id, hello.node, self._peers_at
        )
        await self._discovery.run(announcement, self.hint)

    def hint(self, hint: Hint) -> None:
        """Somebody says that a node is there."""
        self.membership.hint(hint, self._clock.monotonic())
        self.wake()

    def wake(self) -> None:
        """Look again whom to dial."""
        self._woken.set()

    async def run(self) -> None:
        """Keep a link to each node that there is."""
        clock = self._clock
        async with trio.open_nursery() as nursery:
            while True:
                if not self.leaving:
                    for candidate in self.membership.take_due(clock.monotonic()):
                        nursery.start_soon(self._keep_link, candidate)
                due = self.membership.next_due()
                # The clock has the scale of deadlines.
                with trio.CancelScope(deadline=math.inf if due is None else due):
                    await self._woken.wait()
                self._woken = trio.Event()

    async def _keep_link(self, candidate: Candidate) -> None:
        clock, entropy = self._clock, self._entropy
        try:
            link = await self._meet(candidate)
            if link is None:
                return
            since = clock.monotonic()
            self._host.linked(link)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._host.tell_everything, link)
                    await link.run()
                    nursery.cancel_scope.cancel()
            except Exception:
                logger.exception("%s failed", link.who)
            finally:
                self._host.unlinked(link)
            now = clock.monotonic()
            if link.said_goodbye:
                self.membership.left(candidate, now)
            else:
                self.membership.lost(candidate, now - since, now, entropy.random())
        finally:
            self.wake()

    async def _meet(self, candidate: Candidate) -> PeerLink | None:
        """Dial all addresses at once; the first node that answers and is new is the one."""
        chosen: list[PeerLink] = []
        errors: list[str] = []
        known: list[BrokerId] = []
        met_self = False

        async def try_one(address: Address) -> None:
            nonlocal met_self
            try:
                link, welcome = await self._greet(address)
            except trio.TooSlowError:
                errors.append(f"{address}: no answer in time")
                return
            except (OSError, BusnodeError) as error:
                errors.append(f"{address}: {str(error) or type(error).__name__}")
                return
            if chosen:
                link.hang_up()
                return
            match self.membership.met(candidate, welcome.broker_id, welcome.node):
                case Meeting.LINK:
                    chosen.append(link)
                    nursery.cancel_scope.cancel()
                case Meeting.SELF:
                    met_self = True
                    link.hang_up()
                case Meeting.KNOWN:
                    known.append(welcome.broker_id)
                    link.hang_up()

        async with trio.open_nursery() as nursery:
            for address in candidate.addresses:
                nursery.start_soon(try_one, address)
        now = self._clock.monotonic()
        if chosen:
            return chosen[0]
        if known:
            self.membership.met_known(candidate, known[0], now)
        elif met_self and not errors:
            self.membership.met_self(candidate)
        else:
            error = "; ".join(errors) or "it is this node itself"
            logger.debug("no link", extra=fields(candidate=candidate.name, error=error))
            self.membership.failed(candidate, error, now, self._entropy.random())
        return None

    async def _greet(self, address: Address) -> tuple[PeerLink, PeerWelcome]:
        with trio.fail_after(DIAL_S):
            stream = await self._network.dial(address, self._tls)
        link = PeerLink(stream, self._clock, self._host, self._heartbeat_s, GREET_S)
        try:
            with trio.fail_after(GREET_S):
                greeting = make_greeting(self._hello, self._keys(), self._entropy)
                return link, await link.greet(greeting)
        except BaseException:
            link.hang_up()
            raise
