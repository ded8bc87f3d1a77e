"""Where everything that a node says finds its way, and everything for it finds the connection."""

import logging

import anyio
import anyio.abc

from busnode.client.bell import Bell
from busnode.client.connection import Connection
from busnode.client.gaps import Gap
from busnode.client.home import Home
from busnode.client.outgoing import Outgoing
from busnode.client.patience import Patience
from busnode.client.positions import Position
from busnode.client.providers import Provider
from busnode.client.refusal import refusal_of
from busnode.client.requests import Requests
from busnode.client.settling import Settling
from busnode.client.subscription import Subscription
from busnode.client.task import LEASE_S, tasks_of
from busnode.client.worker import Worker
from busnode.wire import control
from busnode.wire.errors import (
    BadFrame,
    BusnodeError,
    Disconnected,
    Draining,
    Unavailable,
    UnexpectedFrame,
)
from busnode.wire.frames import FrameType
from busnode.wire.ids import Topic
from busnode.wire.reader import Runs
from busnode.world.clock import Clock
from busnode.world.entropy import Entropy

logger = logging.getLogger("busnode.client")

DRAIN_S = 1.0
"""How long a node that is leaving has for the acks that it owes us."""

CLOSE_S = 5.0
"""How long closing may take to get out what was published."""

GOODBYE_S = 1.0
"""How long the node may take to answer our goodbye: it has then read all that came before."""

CONFIRMATION = 1 << 32
"""Added to a provider's number it is the token of the PING that follows its PROVIDE. A node works
frames off in order, so the answer says that the provider stands."""


class Switchboard:
    """Connects the parts of one client with its home, whichever node that is at the time."""

    def __init__(
        self,
        clock: Clock,
        patience: Patience,
        home: Home,
        outgoing: Outgoing,
        tasks: anyio.abc.TaskGroup,
        entropy: Entropy,
        hello: control.Hello,
    ) -> None:
        self.clock = clock
        self.patience = patience
        self.home = home
        self.outgoing = outgoing
        self.tasks = tasks
        self.arrival = Bell()
        """Rings when there is a home, or will never be."""
        self.departure = Bell()
        self.visit = 0
        self.requests = Requests(self)
        self.subscriptions: dict[int, Subscription] = {}
        self._providers: dict[int, Provider] = {}
        self.settling = Settling(self, entropy, hello.producer_id)
        self.workers: dict[int, Worker] = {}
        self.hello = hello
        self._last_number = 0

    # For those who have something to say ----------------------------------------------------------

    def send(self, message: control.Control) -> bool:
        """Send it to the home; False when there is none."""
        connection = self.home.connection
        if connection is None:
            return False
        connection.send(message)
        return True

    def subscribe(self, subscription: Subscription) -> None:
        """Ask the home for it, under a new number: what still comes under the old one is stale."""
        if self.subscriptions.pop(subscription.number, None) is not None:
            self.send(control.Unsubscribe(subscription.number))
        subscription.number = self._number()
        self.subscriptions[subscription.number] = subscription
        try:
            self.send(subscription.request())
        except BusnodeError as error:  # a position too large for a frame
            subscription.failed(error)

    def unsubscribe(self, subscription: Subscription) -> None:
        if self.subscriptions.pop(subscription.number, None) is not None:
            self.send(control.Unsubscribe(subscription.number))

    def provide(self, provider: Provider) -> None:
        provider.number = self._number()
        self._providers[provider.number] = provider
        if self.send(control.Provide(provider.number, provider.topic, provider.eager)):
            self.send(control.Ping(CONFIRMATION + provider.number))

    def unprovide(self, provider: Provider) -> None:
        if self._providers.pop(provider.number, None) is not None:
            self.send(control.Unprovide(provider.number))

    def poll(self, worker: Worker) -> None:
        """Ask the home for tasks. One that has no room for any asks when it has."""
        worker.number = self._number()
        self.workers[worker.number] = worker
        message = worker.request(anew=True)
        if message.want:
            self.send(message)

    def end_poll(self, worker: Worker) -> None:
        if self.workers.pop(worker.number, None) is not None:
            self.send(worker.request(ending=True))

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def leave_home(self, why: str) -> None:
        self._end_connection(Unavailable(why))

    def _end_connection(self, why: BusnodeError) -> None:
        if self.home.connection is not None:
            self.home.connection.end(why)

    # What the connection brings -------------------------------------------------------------------

    def took(self, runs: Runs, view: memoryview) -> None:
        chunk = runs.chunk
        if chunk is None:
            raise BadFrame("batch without a CHUNK that says for which subscription it is")
        subscription = self.subscriptions.get(chunk.subscription)
        if subscription is not None:  # else it was on its way when the subscription ended
            subscription.take(view, runs.runs, chunk)

    def received(self, message: control.Control) -> None:
        match message:
            case control.Reply():
                self.requests.take(message)
            case control.Request():
                provider = self._providers.get(message.provider)
                if provider is not None:
                    provider.requested(message)
            case control.Tasks():
                self._take_tasks(message)
            case control.TaskSettled():
                self.settling.settled(message)
            case control.Ack():
                self.outgoing.acked(message)
            case control.Chunk():
                if not message.length:  # else what it announces brings it along
                    self._for_subscription(message)
            case control.Nodes():
                self.home.directory.learn(message.nodes)
            case control.Ask():
                if message.provider in self._providers:
                    self._providers[message.provider].asked(message)
                else:  # it has just ended
                    self.send(control.Bid(message.request, False))
            case control.Pong():
                provider = self._providers.get(message.token - CONFIRMATION)
                if provider is not None:
                    provider.begun()
            case control.Error():
                self._refused(message)
            case control.Goodbye():
                self._goodbye(message)
            case control.Subscribed() | control.Gap() | control.Dropped():
                self._for_subscription(message)
            case _:
                raise UnexpectedFrame(f"{message.TYPE.name} is not for a client")

    def _for_subscription(
        self, message: control.Subscribed | control.Chunk | control.Gap | control.Dropped
    ) -> None:
        subscription = self.subscriptions.get(message.subscription)
        if subscription is None:
            return
        match message:
            case control.Subscribed():
                subscription.subscribed(Position.of(message.position))
            case control.Chunk():
                subscription.take_place(message)
            case control.Gap(_, broker_id, topic, first_no, last_no, reason):
                subscription.take_gap(Gap(broker_id, Topic(topic), first_no, last_no, reason))
            case control.Dropped():
                subscription.take_dropped(message.count)

    def _take_tasks(self, message: control.Tasks) -> None:
        worker = self.workers.get(message.poll)
        if worker is not None:
            worker.take(message)
        elif message.numbers:  # its loop has just ended: let others have them at once
            expires_at = self.clock.monotonic() + LEASE_S
            self.settling.let_go(tasks_of(message, self.settling, expires_at))

    def _refused(self, message: control.Error) -> None:
        error = refusal_of(message)
        about = message.about or 0
        if isinstance(error, Unavailable) and message.refused in (
            FrameType.BATCH,
            FrameType.SUBSCRIBE,
            FrameType.TASK_POLL,
        ):
            # It passes: we keep what is to be published or read, and try again, here or elsewhere.
            self.leave_home(str(error))
            return
        match message.refused:
            case FrameType.BATCH:
                self.outgoing.refused(about, error)
            case FrameType.SUBSCRIBE:
                subscription = self.subscriptions.pop(about, None)
                if subscription is not None:
                    subscription.failed(error)
            case FrameType.PROVIDE:
                provider = self._providers.pop(about, None)
                if provider is not None:
                    provider.failed(error)
            case FrameType.REQUEST:
                self.requests.refused(about, error)
            case FrameType.TASK_POLL:
                worker = self.workers.pop(about, None)
                if worker is not None:
                    worker.failed(error)
            case FrameType.TASK_DONE:
                self.settling.refused(about, error)
            case _:
                logger.warning("the node says %s", error)
                if error.ends_session or isinstance(error, Unavailable):
                    self._end_connection(error)

    def _goodbye(self, message: control.Goodbye) -> None:
        self.home.directory.learn(message.nodes)
        connection = self.home.connection
        if connection is not None and not self.home.closing:
            self.tasks.start_soon(self._move_out, connection, message.reason)

    async def _move_out(self, connection: Connection, reason: str) -> None:
        """The node is leaving: let it settle what it owes us, then go elsewhere."""
        with anyio.move_on_after(DRAIN_S):
            while self.outgoing.window and self.home.connection is connection:
                await self.outgoing.progress.wait()
            while self.settling.in_flight and self.home.connection is connection:
                await self.settling.progress.wait()
        connection.send(control.Goodbye("moving on", []))
        connection.end(Draining(f"it is leaving: {reason}"))

    # What it asks for -----------------------------------------------------------------------------

    def taken(self) -> None:
        self.outgoing.taken()

    def more(self) -> bytes:
        return self.outgoing.more()

    def pause_s(self) -> float | None:
        return self.outgoing.pause_s()

    def stalled(self) -> None:
        self.outgoing.stalled()

    # Homes come and go ----------------------------------------------------------------------------

    def arrived(self, connection: Connection, welcome: control.Welcome) -> None:
        """Take up everything at the new home; what was not acked goes there again first."""
        self.visit += 1
        logger.info("connected to %s at %s", welcome.node, self.home.address)
        for frame in self.outgoing.arrived():
            connection.write(frame)
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions.values():
            self.subscribe(subscription)
        providers, self._providers = self._providers, {}
        for provider in providers.values():
            self.provide(provider)
        self.settling.arrived()
        workers, self.workers = self.workers, {}
        for worker in workers.values():
            self.poll(worker)
        self.arrival.ring()

    def left(self, why: str) -> None:
        self.outgoing.left()
        self.requests.left(why)
        self.settling.left()
        for provider in self._providers.values():
            provider.left()
        for worker in self.workers.values():
            worker.left()
        self._ring()

    def failed(self, error: BusnodeError) -> None:
        """There will be no home any more."""
        self.patience.failed(error)
        self.settling.failed(error)
        self._ring()

    def _ring(self) -> None:
        """Let everybody who waits look at how things stand."""
        self.outgoing.ring()
        for subscription in self.subscriptions.values():
            subscription.ring()
        for provider in self._providers.values():
            provider.ring()
        for worker in self.workers.values():
            worker.ring()
        self.arrival.ring()
        self.departure.ring()

    async def close(self) -> None:
        """Get out what was published, and leave in good order."""
        for worker in list(self.workers.values()):
            worker.leave()
        with anyio.move_on_after(CLOSE_S):
            while not self.outgoing.drained and not self.patience.away:
                self.outgoing.hurry()
                await self.outgoing.progress.wait()
            while self.settling.in_flight and not self.patience.away:
                await self.settling.progress.wait()
        if not self.outgoing.drained:
            logger.warning("closed with messages that were not sent or not acked")
        self.home.closing = True
        self.failed(Disconnected("this bus was closed"))
        connection = self.home.connection
        if connection is not None:
            connection.send(control.Goodbye("closing", []))
            with anyio.move_on_after(GOODBYE_S):
                while self.home.connection is connection:
                    await self.departure.wait()
