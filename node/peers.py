"""The other nodes: found, dialled, served, and told what our clients want.

Between two nodes there are two links, one for each direction: on the one that we have dialled
(`PeerLink`) we are the client, on the other (`PeerSession`) the peer is.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from busnode.cluster.interests import Interests
from busnode.cluster.membership import Membership
from busnode.cluster.mesh import Member, Mesh, MissingLink
from busnode.cluster.mesh_watch import MeshWatch
from busnode.node.access import Access
from busnode.node.audit import Audit
from busnode.node.bidding import Bidding
from busnode.node.comparing import Comparing
from busnode.node.config import PEER_PORT, NodeConfig
from busnode.node.conversation import Conversation
from busnode.node.copies import Copies
from busnode.node.dialling import Dialling
from busnode.node.doors import Doors
from busnode.node.durable_positions import Registration, flatten
from busnode.node.event_kinds import (
    LINK_ENDED,
    LINK_HEALED,
    LINK_LOST,
    LINK_MADE,
    LINK_MISSING,
    NAME_TAKEN,
    PEER_REFUSED,
)
from busnode.node.events import Tell
from busnode.node.handed import Handed
from busnode.node.logs import fields
from busnode.node.mending import Mending
from busnode.node.mirroring import RESUME_EVERY_S, WATCH_EVERY_S, Mirroring
from busnode.node.open_gaps import OpenGaps
from busnode.node.ownership import Ownership
from busnode.node.peer_greeting import Challenge, make_challenge
from busnode.node.peer_link import PeerLink
from busnode.node.peer_session import PeerSession
from busnode.node.porch import Porch
from busnode.node.publishing import Publishing
from busnode.node.remote_reading import RemoteReading
from busnode.node.remote_sources import RemoteSources
from busnode.node.repairing import Repairing
from busnode.node.router import Router
from busnode.node.subscriptions import Subscriptions
from busnode.node.task_claims import TaskClaims
from busnode.node.task_home import TaskHome
from busnode.node.task_queues import TaskQueues
from busnode.node.unknown_cursors import RETURN_S
from busnode.replication.comparison import partners
from busnode.replication.mending import whom_to_ask
from busnode.segments.store import Log, Store
from busnode.wire.control import (
    Compared,
    Control,
    Damaged,
    ExtentsHeld,
    Gap,
    HoldingsTold,
    MembersSeen,
    Mirrored,
    PeerHello,
    PeerWelcome,
    RegistrationKept,
    encode_control,
)
from busnode.wire.errors import BadVersion, BusnodeError, Draining, NotAuthenticated, WrongCluster
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId, LogId, Pattern, Topic
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.runs import Run
from busnode.wire.trie import Trie
from busnode.world.discovery import Hint
from busnode.world.network import Address, Listener, Stream, Tls, parse_address
from busnode.world.world import World

logger = logging.getLogger(__name__)

INTEREST_S: Final = 1.0
"""How long a new subscription waits for other nodes to tell what they hold. What they tell later
comes up late."""

MEETING_S: Final = 1.0
"""How long a node that has just started, and has met nobody, waits for others before it takes a
durable subscription for a new one: they may have kept its position."""

ADDRESSES_MAX: Final = 6
"""Addresses that a node tells of itself, for clients and for peers: a greeting holds 1 KiB."""

SESSIONS_MAX: Final = 1024
"""Nodes that have dialled us and greeted."""

EXPECTED_S: Final = 5.0
"""How long after the start those are waited for who were mirrors before, and later those to whom
links were lost: dialling them, and hearing what they hold."""

COPIES_TOLD_EVERY_S: Final = 0.1
"""How far behind the news of a copy may be: what a consumer waits for when an origin dies."""

LOOK_EVERY_S: Final = 1.0
"""How often it is looked which links are missing."""

SWEEP_S: Final = 30.0

LEAVE_S: Final = 1.0
"""How long goodbyes may take."""


class Peers:
    """All that one node has to do with others. It is a `Cluster` to subscriptions."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        name: str,
        broker_id: BrokerId,
        store: Store,
        router: Router,
        publishing: Publishing,
        bidding: Bidding,
        clients_at: list[Address],
        listener: Listener | None,
        ownership: Ownership,
        mirroring: Mirroring,
        copies: Copies,
        task_queues: TaskQueues,
        task_home: TaskHome,
        doors: Doors,
        tell: Tell,
        access: Access,
        audit: Audit,
        tls: Tls | None,
    ) -> None:
        self._doors = doors
        self.tell_of = tell
        self.task_queues = task_queues
        self.task_home = task_home
        self.task_claims: TaskClaims
        """Set, as the subscriptions are, by whoever puts the node together."""
        self.copies = copies
        self.mending = Mending(world.files, store, world.clock, self, tell)
        self.comparing = Comparing(
            world.files, store, world.clock, config.compare_every_s, self, self.mending, tell
        )
        self.sources = RemoteSources(
            store, router, ownership, lambda: publishing.broker_id, self.mending
        )
        self.open_gaps = OpenGaps(world.clock)
        self.repairing = Repairing(
            store, world.clock, broker_id, config.mirrors + 1, config.repair_after_s,
            mirroring.throttle, lambda: publishing.broker_id, ownership,
            lambda broker_id: ownership.retain_s.get(broker_id, config.retain_s), self.mending,
            tell,
        )  # fmt: skip
        self._ownership = ownership
        self._began_at = world.clock.monotonic()
        self.mirroring = mirroring
        mirroring.mender = self.mending
        self.mending.on_whole = self._whole
        self._moved: dict[Log, None] = {}
        """Copies that have grown and of which others were not told."""
        self.store = store
        self.router = router
        self.bidding = bidding
        self.subscriptions: Subscriptions
        """Set by whoever puts the node together: each needs the other."""
        self.me = Member(broker_id, name)
        self.interests = Interests()
        self.mesh = Mesh(self.me)
        self.links: dict[BrokerId, PeerLink] = {}
        self.sessions: dict[BrokerId, PeerSession] = {}
        self.links_made = 0
        self.links_lost = 0
        self._expected_until: dict[str, float] = {}
        """Until when somebody is waited for, by name: who was lost and is not back yet, and who has
        just come and not told yet what it holds."""
        self.changed = trio.Event()
        """Set, and replaced, whenever a node has come or gone."""
        self._started_at = world.clock.monotonic()
        self.clients_at = [str(address) for address in clients_at[:ADDRESSES_MAX]]
        self.peers_at: list[Address] = []
        self._listener = listener
        if listener is not None:
            self.peers_at = world.network.reachable_at(listener.address)[:ADDRESSES_MAX]
        self._world = world
        self._config = config
        self._publishing = publishing
        self._patterns: Trie[int] = Trie()
        """What our own clients want."""
        self._accepted = 0
        self._leaving = False
        self._access = access
        self._audit = audit
        hello = PeerHello(
            PROTOCOL_VERSION, config.cluster_id, broker_id, name,
            self.clients_at, [str(address) for address in self.peers_at],
        )  # fmt: skip
        self.dialling = Dialling(
            world, self, hello, tuple(self.peers_at), config.link_heartbeat_s,
            lambda: access.keys, tls,
        )  # fmt: skip
        bidding.on_provided = self._provided

    def _whole(self, log_id: LogId) -> None:
        self.mirroring.whole(log_id)
        self.repairing.whole(log_id.broker_id)

    @property
    def membership(self) -> Membership:
        return self.dialling.membership

    async def run(self) -> None:
        """Everything that goes on beside clients, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sources.local.run)
            nursery.start_soon(self.open_gaps.run)
            nursery.start_soon(self.sweep)
            nursery.start_soon(self.mending.run)
            nursery.start_soon(self.comparing.run)
            if self._listener is not None:
                nursery.start_soon(self.serve)
                nursery.start_soon(self.dialling.run)
                nursery.start_soon(self.dialling.discover)
                nursery.start_soon(self.tell_of_copies)
                nursery.start_soon(self.watch_mirrors)
                nursery.start_soon(self.repairing.run)
                nursery.start_soon(self.watch_mesh)

    # For subscriptions ----------------------------------------------------------------------------

    async def want(self, pattern: Pattern) -> None:
        told = self.interests.want(pattern)
        if told:
            self._patterns.add(pattern, 0)
            self._tell(told)
        number = self.interests.number(pattern)
        assert number is not None
        with trio.move_on_after(INTEREST_S):
            for link in list(self.links.values()):
                answered = link.unanswered.get(number)
                if answered is not None:
                    await answered.wait()

    def unwant(self, pattern: Pattern) -> None:
        told = self.interests.unwant(pattern)
        if told:
            self._patterns.remove(pattern, 0)
            self._tell(told)

    def want_queue(self, pattern: Pattern, queue: str) -> None:
        self._tell(self.interests.want(pattern, queue))

    def unwant_queue(self, pattern: Pattern, queue: str) -> None:
        self._tell(self.interests.unwant(pattern, queue))

    async def find_registration(self, name: str) -> None:
        if self._may_meet_others():
            until = self._started_at + MEETING_S - self._world.clock.monotonic()
            with trio.move_on_after(until):
                while not self.links:
                    await self.changed.wait()
        with trio.move_on_after(INTEREST_S):
            for told in [link.find_registration(name) for link in self.links.values()]:
                await told.wait()

    def _may_meet_others(self) -> bool:
        age_s = self._world.clock.monotonic() - self._started_at
        looks = self._listener is not None and (self._config.mdns or bool(self._config.seeds))
        return looks and not self.links and age_s < MEETING_S

    def registration_kept(self, message: RegistrationKept) -> None:
        if message.saved_us:
            kept = Registration(
                message.saved_us, message.pattern, message.client, flatten(message.position)
            )
            self.subscriptions.learn(message.name, kept)

    def is_own(self, broker_id: BrokerId) -> bool:
        return self.sources.is_own(broker_id)

    def is_written(self, broker_id: BrokerId, session: PeerSession) -> bool:
        if broker_id == self._publishing.broker_id:
            return True
        if session.broker_id == broker_id:
            return False
        is_there = broker_id in self.sessions and self.repairing.writes_now(broker_id) == broker_id
        return is_there or self.repairing.is_written(broker_id, session.broker_id)

    def holdings_told(self, broker_id: BrokerId, message: HoldingsTold) -> None:
        if self.repairing.told(broker_id, message):
            self.mending.came()

    def holders_of(self, broker_id: BrokerId) -> list[PeerLink]:
        order = whom_to_ask(broker_id, self.links, self.repairing.holders(broker_id))
        return [self.links[node] for node in order]

    def partners_for(self, broker_id: BrokerId) -> list[PeerLink]:
        others = partners(self.me.broker_id, self.repairing.holders(broker_id))
        return [self.links[node] for node in others if node in self.links]

    def compared(self, message: Compared) -> None:
        self.comparing.answered(message)

    def expects_holders(self) -> bool:
        now = self._world.clock.monotonic()
        if self._ownership.mirrors and now - self._began_at < EXPECTED_S:
            return True
        return any(now < until for until in self._expected_until.values())

    def damaged(self, message: Damaged) -> None:
        log_id = LogId(message.broker_id, Topic(message.topic))
        logger.warning("records sent were damaged", extra=fields(log=log_id))
        self.mending.doubt(log_id, message.first_no)

    @property
    def expects_others(self) -> bool:
        config = self._config
        is_new = config.mdns and self._world.clock.monotonic() - self._started_at < RETURN_S
        return self._listener is not None and bool(self.links_made or config.seeds or is_new)

    def is_finished(self, log_id: LogId) -> bool:
        broker_id = log_id.broker_id
        return not self.is_own(broker_id) and broker_id not in self.links

    def _provided(self, pattern: Pattern, eager: bool, change: int) -> None:
        interests = self.interests
        change_of = interests.provide if change > 0 else interests.unprovide
        self._tell(change_of(pattern, eager))

    def _tell(self, messages: Iterable[Control]) -> None:
        for message in messages:
            for link in self.links.values():
                link.tell(message)

    # What links bring -----------------------------------------------------------------------------

    def forwarded(self, link: PeerLink, view: memoryview, run: Run) -> None:
        del link
        self._publishing.forwarded(view, run)

    def dropped_by_peer(self, topic: bytes, count: int) -> None:
        self._publishing.dropped_before(topic, count)

    def forwarded_to_queue(
        self, link: PeerLink, interest: int, batches: bytes, handed: Handed | None
    ) -> None:
        found = self.interests.queue_of(interest)
        group = None if found is None else self.subscriptions.group(*found)
        if group is None or not group.has_clients:
            return  # the last member has left; the other node hears of it and chooses again
        if handed is None:
            group.offer_forwarded(batches)
            link.return_credit(interest, len(batches))
        else:
            finished = partial(link.finished, interest, handed.log_id, handed.first_no)
            group.hand_forwarded(handed._replace(done=finished))
        group.pump()

    def gap_of_queue(self, interest: int, gap: Gap) -> None:
        found = self.interests.queue_of(interest)
        group = None if found is None else self.subscriptions.group(*found)
        if group is not None:
            log_id = LogId(gap.broker_id, self.router.route(gap.topic.encode()).topic)
            group.report_forwarded(log_id, gap.first_no, gap.last_no, gap.reason)

    def fetch_elsewhere(
        self,
        reading: RemoteReading,
        log_id: LogId,
        after_no: int,
        last_no: int,
        lacking: PeerLink | None,
    ) -> bool:
        if self.sources.fetch_elsewhere(reading, log_id, after_no, last_no, lacking):
            return True
        return self.expects_holders() and self.open_gaps.wait(reading, log_id, after_no)

    def arrived(self, link: PeerLink, handed: Handed) -> None:
        self._publishing.messages_from_peers += handed.last_no + 1 - handed.first_no
        self.sources.arrived(link, handed)

    def passed_over(self, link: PeerLink, log_id: LogId, last_no: int) -> None:
        self.sources.passed_over(link, log_id, last_no)

    def extents(self, link: PeerLink, message: ExtentsHeld) -> None:
        self.sources.extents(link, message)

    def lacks(self, link: PeerLink, log_id: LogId) -> None:
        self.sources.logs.lacks(link, log_id)

    def mirror_refused(self, link: PeerLink) -> None:
        self.mirroring.refused(link)
        self.repairing.refused(link)

    async def mirrored(self, link: PeerLink, message: Mirrored) -> None:
        if message.broker_id == self._publishing.broker_id:
            await self.mirroring.answered(link, message)
        else:
            await self.repairing.answered(link, message)

    def flush(self) -> None:
        self._publishing.flush()

    # Copies ---------------------------------------------------------------------------------------

    def copies_moved(self, logs: list[Log]) -> None:
        """Copies that we hold have grown: our own clients may read on, and others hear of it."""
        self._moved |= dict.fromkeys(self.sources.copies_moved(logs))

    async def tell_of_copies(self) -> None:
        """Tell other nodes, not too often, how far the copies reach that they want."""
        while True:
            await self._world.clock.sleep(COPIES_TOLD_EVERY_S)
            if self._moved:
                moved, self._moved = list(self._moved), {}
                for session in list(self.sessions.values()):
                    session.copies_moved(moved)
                    await trio.lowlevel.checkpoint()

    async def watch_mirrors(self) -> None:
        """Let go of silent mirrors, and let those go on that catch up with pauses."""
        clock = self._world.clock
        watch_at = clock.monotonic() + WATCH_EVERY_S
        while True:
            pausing = any([self.mirroring.resume(), self.repairing.resume()])
            await clock.sleep(RESUME_EVERY_S if pausing else WATCH_EVERY_S)
            if clock.monotonic() >= watch_at:
                self.mirroring.watch()
                watch_at = clock.monotonic() + WATCH_EVERY_S

    async def watch_mesh(self) -> None:
        """Tell of links that stay missing, and when each is back."""
        watch = MeshWatch()
        while True:
            await self._world.clock.sleep(LOOK_EVERY_S)
            changed = watch.look(self.missing_links(), self._world.clock.monotonic())
            for link in changed.missing:
                self.tell_of(LINK_MISSING, **link._asdict())
            for link in changed.healed:
                self.tell_of(LINK_HEALED, **link._asdict())

    def members_seen(self, broker_id: BrokerId, name: str, message: MembersSeen) -> None:
        """A node tells whom it has a link to: those that we do not know are dialled."""
        self.mesh.report(
            Member(broker_id, name), (Member(row[0], row[1]) for row in message.members)
        )
        now = self._world.clock.monotonic()
        for other_id, other_name, addresses in message.members:
            if other_id not in self.links:
                hint = Hint(_addresses(addresses), "peer", broker_id=other_id, name=other_name)
                self.membership.hint(hint, now)
        self.dialling.wake()

    # Listening ------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Take in nodes that dial us."""
        assert self._listener is not None
        config, clock = self._config, self._world.clock
        async with trio.open_nursery() as nursery:
            porch = Porch(
                self._doors.peers, self._world.network.crowd(), clock, FrameType.PEER_HELLO,
                config.hello_timeout_s, partial(self._come_in, nursery), _broke_off,
            )  # fmt: skip
            nursery.start_soon(porch.run)
            try:
                await porch.take_in(self._listener, partial(self._come, porch))
            except OSError:
                if self._leaving:
                    porch.turn_away(Draining("this node is leaving"))
                    await trio.sleep_forever()  # until those who are here have left
                raise

    def _come(self, porch: Porch, stream: Stream) -> None:
        if self._accepted >= SESSIONS_MAX or self._leaving:
            stream.close()
        elif self._doors.peers.lets_in(stream):
            porch.wait_for(stream)

    def _come_in(self, nursery: trio.Nursery, stream: Stream, greeting: bytes) -> None:
        session = PeerSession(
            stream, self._world.clock, self, self._config.link_heartbeat_s,
            self._config.hello_timeout_s, self._doors.budget,
        )  # fmt: skip
        session.has_received(greeting)
        self._accepted += 1
        self._doors.peers.wait_for(session)
        nursery.start_soon(self._serve_peer, session)

    async def _serve_peer(self, session: PeerSession) -> None:
        try:
            await session.run()
        except Exception:
            # One peer's session must not take the others along, whatever is wrong with it.
            logger.exception("%s: session failed", session.who)
        finally:
            self._accepted -= 1
            self._doors.peers.left(session.peer.host, session)
            session.forget()
            self.bidding.leave(session)
            broker_id = session.broker_id
            if broker_id is not None and self.sessions.get(broker_id) is session:
                del self.sessions[broker_id]
                logger.info("peer left", extra=fields(name=session.name))
                self._forget_report(broker_id)
                self._something_changed()

    def _check_cluster(self, hello: PeerHello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            raise BadVersion(
                f"node speaks protocol {hello.protocol}; this node speaks {PROTOCOL_VERSION}"
            )
        cluster_id = self._config.cluster_id
        if hello.cluster_id != cluster_id:
            raise WrongCluster(
                f"node {hello.node} is of cluster {hello.cluster_id!r}; "
                f"this one is of {cluster_id!r}"
            )

    def welcome(self, session: PeerSession, hello: PeerHello) -> bytes:
        config = self._config
        self._check_incarnation(hello)
        session.name = hello.node
        self._doors.peers.greeted(session)
        if hello.broker_id != self.me.broker_id:
            self._take_in(session, hello)
        return encode_control(
            PeerWelcome(
                self.me.broker_id, self.me.name, self.clients_at,
                [str(address) for address in self.peers_at], config.link_heartbeat_s,
            )
        )  # fmt: skip

    def _check_incarnation(self, hello: PeerHello) -> None:
        """NotAuthenticated for a node that says to be another one, as far as that can be known.
        What this node was in an earlier life another one may be: the one whose clone it is."""
        link = self.links.get(hello.broker_id)
        if self.me.broker_id != hello.broker_id == self._publishing.broker_id:
            really = f"{self.me.name}, this node"
        elif link is not None and link.name != hello.node:
            really = f"{link.name} at {link.peer}"
        else:
            return
        raise NotAuthenticated(
            f"node {hello.node} says that it is {hello.broker_id.hex()}, which is {really}"
        )

    def challenge(self, hello: PeerHello) -> Challenge | None:
        """What a node that says hello must show; None: nothing. Raises what it is refused with."""
        self._check_cluster(hello)
        return make_challenge(
            self._access.keys, hello, self.me.broker_id, self._config.cluster_id,
            self._world.entropy,
        )  # fmt: skip

    def keys_changed(self) -> None:
        """Whoever has shown a key that is one no more has to show another."""
        keys = self._access.keys
        peers: list[PeerSession | PeerLink] = [*self.sessions.values(), *self.links.values()]
        for peer in peers:
            if keys and peer.key not in keys:
                peer.close()

    def refused(self, session: Conversation, error: BusnodeError) -> None:
        """A node was not let in, or has broken off what it began, or we do not believe it."""
        self._audit.refused(PEER_REFUSED, address=session.peer, why=error)

    def _take_in(self, session: PeerSession, hello: PeerHello) -> None:
        self.bidding.join(session)
        session.broker_id = hello.broker_id
        session.clients_at = hello.clients_at
        hint = Hint(
            _addresses(hello.peers_at), "dialled", hello.cluster_id, hello.protocol,
            hello.broker_id, hello.node,
        )  # fmt: skip
        self.membership.dialled_us(hint, self._world.clock.monotonic())
        known_until = self._expected_until.get(hello.node, 0.0)
        self._expect(hello.node, max(known_until, self._world.clock.monotonic() + INTEREST_S))
        self.dialling.wake()

    def chosen(self, session: PeerSession) -> None:
        """A node may dial all our addresses at once; this is the connection that it goes on with.
        It says so by telling us of its links, as it does first of all."""
        assert session.broker_id is not None
        older = self.sessions.get(session.broker_id)
        if older is session:
            return
        if older is not None:
            older.close()  # it has dialled again because that one is broken, which we do not see
        self.sessions[session.broker_id] = session
        facts = fields(name=session.name, broker_id=session.broker_id.hex(), address=session.peer)
        logger.info("peer has dialled", extra=facts)
        self._something_changed()

    # Links that we have dialled -------------------------------------------------------------------

    def linked(self, link: PeerLink) -> None:
        self.links_made += 1
        self.links[link.broker_id] = link
        if self._ownership.disown(link.broker_id):
            self.sources.disowned(link.broker_id)
        self._expect(link.name, self._world.clock.monotonic() + INTEREST_S)
        if any(other.name == link.name for other in self.links.values() if other is not link) or (
            link.name == self.me.name
        ):
            self.tell_of(NAME_TAKEN, name=link.name, address=link.peer)
        who = {"name": link.name, "broker_id": link.broker_id.hex(), "address": link.peer}
        self.tell_of(LINK_MADE, **who)
        self.bidding.join(link)
        self.task_home.linked(link)
        self.task_claims.tell_all(link)
        self.mirroring.linked(link)
        self.repairing.linked(link)
        self.mending.came()
        self._something_changed()

    async def tell_everything(self, link: PeerLink) -> None:
        """What our clients want and provide, no faster than the other node reads it."""
        for message in self.interests.everything():
            link.tell(message)
            if not link.outgoing.has_room(0):
                await link.outgoing.wait_idle()

    def unlinked(self, link: PeerLink) -> None:
        self.links_lost += 1
        self._expect(link.name, self._world.clock.monotonic() + EXPECTED_S)
        del self.links[link.broker_id]
        kind = LINK_ENDED if link.said_goodbye else LINK_LOST
        self.tell_of(kind, name=link.name, goodbye=link.said_goodbye)
        self._forget_report(link.broker_id)
        self.bidding.leave(link)
        self.task_home.unlinked(link)
        self.mirroring.unlinked(link)
        self.repairing.unlinked(link)
        self.sources.logs.lost(link)
        link.forget()
        self._something_changed()

    def _expect(self, name: str, until: float) -> None:
        """What a node holds is heard by then: when it is lost it may come back, and when it has
        dialled us, or we it, it has still to tell."""
        now = self._world.clock.monotonic()
        self._expected_until = {n: at for n, at in self._expected_until.items() if now < at}
        self._expected_until[name] = until

    def _forget_report(self, broker_id: BrokerId) -> None:
        """What a node has reported is worth nothing when nobody hears from it any more."""
        if broker_id not in self.links and broker_id not in self.sessions:
            self.mesh.forget(broker_id)
            self.repairing.left(broker_id)

    # Who is there ---------------------------------------------------------------------------------

    def _something_changed(self) -> None:
        """Tell all nodes whom we are linked to, and let those look who wait for it."""
        seen = self.members_message()
        for link in self.links.values():
            link.tell(seen)
        for session in self.sessions.values():
            session.tell(seen)
        self.dialling.wake()
        self.changed.set()
        self.changed = trio.Event()

    def members_message(self) -> MembersSeen:
        """Whom we are linked to, and where those can be dialled."""
        return MembersSeen(
            [
                (link.broker_id, link.name, link.welcome.peers_at)
                for link in self.links.values()
                if link.welcome is not None
            ]
        )

    def members(self) -> list[Member]:
        """Nodes to which there is a link."""
        return [Member(link.broker_id, link.name) for link in self.links.values()]

    def names(self) -> dict[BrokerId, str]:
        """By incarnation, the names of nodes that are here or were heard of lately."""
        found = {
            each.broker_id: each.name
            for each in self.membership.candidates
            if each.broker_id is not None and each.name is not None
        }
        found |= {broker_id: session.name for broker_id, session in self.sessions.items()}
        found |= {broker_id: link.name for broker_id, link in self.links.items()}
        for node, written in self.repairing.written.items():
            if node in found:
                found[written] = found[node]
        return found

    def written(self) -> set[BrokerId]:
        """Incarnations that other nodes write now."""
        return {self.repairing.writes_now(node) for node in (*self.sessions, *self.links)}

    def links_by_incarnation(self) -> dict[BrokerId, PeerLink]:
        return {self.repairing.writes_now(node): link for node, link in self.links.items()}

    def writes_now(self, node: BrokerId) -> BrokerId:
        return self.repairing.writes_now(node)

    def longest_copies(self, broker_id: BrokerId) -> list[BrokerId]:
        return self.repairing.longest_copies(broker_id)

    def is_more_away(self, broker_id: BrokerId) -> bool:
        return self.repairing.is_more_away(broker_id, self.me.name)

    def missing_links(self) -> list[MissingLink]:
        return self.mesh.missing(self.members())

    def addresses(self, *, others_only: bool = False) -> list[str]:
        """Where clients can go: this node, unless only others are asked for, and all others."""
        found = [] if others_only else list(self.clients_at)
        for link in self.links.values():
            if link.welcome is not None:
                found += link.welcome.clients_at
        for broker_id, session in self.sessions.items():
            if broker_id not in self.links:
                found += session.clients_at
        return list(dict.fromkeys(found))

    # Housekeeping ---------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Forget, now and then, logs that nobody here wants any more."""
        while True:
            await self._world.clock.sleep(SWEEP_S)
            await self.sources.forget(lambda topic: bool(self._patterns.match(topic)))

    async def leave(self) -> None:
        """Say goodbye to all, and take in nobody any more."""
        self._leaving = self.dialling.leaving = True
        if self._listener is not None:
            self._listener.close()
        for link in list(self.links.values()):
            link.leave("this node is leaving")
        for session in list(self.sessions.values()):
            session.leave("this node is leaving")
        with trio.move_on_after(LEAVE_S):
            for conversation in (*self.links.values(), *self.sessions.values()):
                await conversation.outgoing.wait_idle()


def _broke_off(stream: Stream, error: BusnodeError) -> None:
    logger.debug("stranger at %s: %s", stream.peer, error)


def _addresses(texts: list[str]) -> tuple[Address, ...]:
    """Those that make sense of the addresses that a node has told."""
    found: list[Address] = []
    for text in texts:
        with suppress(ValueError):
            found.append(parse_address(text, PEER_PORT))
    return tuple(found)
