"""Bugs in how nodes hand messages on."""

from typing import Any

from busnode.node.node import RunningNode
from busnode.node.peers import Peers
from busnode.node.producers import Producer
from busnode.node.publishing import Publishing
from busnode.node.queue_group import QueueGroup
from busnode.node.remote_reading import RemoteReading
from busnode.node.session import ClientSession
from busnode.node.subscription import Subscription
from busnode.node.subscriptions import Subscriptions
from busnode.replication.remote_cursor import RemoteCursor
from busnode.testing.sim.mutants.mutant import (
    CALM,
    CAPTIVE,
    HOMES,
    LINKED,
    LINKS,
    Patch,
    mutant,
    short,
)
from busnode.testing.sim.schedule import Profile

FETCHES = Profile(
    "fetches", {"link_reset": 8, "slow_link": 6, "client_reset": 6, "isolation": 2},
    faults=40, trouble_s=15.0, nodes=3, lasts_s=(1.0, 6.0),
)  # fmt: skip

IN_DOUBT = short("in doubt", append_enospc=2, fsync_eio=2, slow_disk=4, kill=2, client_reset=4)


@mutant("a message that came from another node is sent on to others", CALM)
def forwarded_twice(patch: Patch) -> None:
    before = Publishing.__dict__["forwarded"]
    sent_on: set[bytes] = set()  # each once: else nodes send it to each other without end

    def forwarded(self: Any, view: Any, run: Any) -> None:
        before(self, view, run)
        message = bytes(view[run.start : run.end])
        if message not in sent_on:
            sent_on.add(message)
            self._offer_to(self._router.route(run.topic).peers, view, run)

    patch.set(Publishing, "forwarded", forwarded)


@mutant("messages that are not persistent stay at the node where they are published", LINKED)
def not_forwarded(patch: Patch) -> None:
    def offer(self: Any, view: Any, run: Any, route: Any) -> None:
        self._offer_to(route.clients, view, run)

    patch.set(Publishing, "_offer", offer)


@mutant("a repeat is stored again in the same log", CAPTIVE)
def repeats_stored(patch: Patch) -> None:
    def find(self: Any, seq: int) -> None:
        del self, seq

    patch.set(Producer, "find", find)


@mutant("a node knows repeats by a high-water mark", IN_DOUBT)
def node_watermark_deduplication(patch: Patch) -> None:
    def find(self: Any, seq: int) -> Any:
        if not self._runs or seq >= self._runs[-1].next_seq:
            return None
        run = self._runs[-1]
        before = run.ends[-2] if len(run.ends) > 1 else 0
        return run.log, run.first_no + before, run.ends[-1] - before

    patch.set(Producer, "find", find)


@mutant("credit that is given back is not counted now and then", CALM,
        by="all is well 30 s after the last heal")  # fmt: skip
def credit_leaks(patch: Patch) -> None:
    before = Subscription.__dict__["add_credit"]
    given = 0

    def add_credit(self: Any, credit_bytes: int) -> None:
        nonlocal given
        given += 1
        before(self, 0 if given % 20 == 0 else credit_bytes)

    patch.set(Subscription, "add_credit", add_credit)


@mutant("other nodes know nothing of a durable position", CALM,
        by="a position is never ahead of its consumer")  # fmt: skip
def durable_position_stays_at_home(patch: Patch) -> None:
    def nothing(self: Any, name: str) -> None:
        del self, name

    def learn(self: Any, name: str, registration: Any) -> None:
        del self, name, registration

    patch.set(Subscriptions, "_look_into_copies", nothing)
    patch.set(Subscriptions, "learn", learn)


@mutant("a log of another node is read from one message too far on", LINKS)
def replay_begins_too_late(patch: Patch) -> None:
    before = RemoteCursor.__dict__["__init__"]

    def init(self: Any, after_no: int, end_no: int, since_us: int | None = None) -> None:
        before(self, after_no + 1 if after_no else 0, end_no, since_us)

    patch.set(RemoteCursor, "__init__", init)


@mutant("an own log is read from one message too far on", HOMES)
def reading_begins_too_late(patch: Patch) -> None:
    before = Subscription.__dict__["read"]

    def read(self: Any, log: Any, after_no: int) -> Any:
        return before(self, log, min(after_no + 1, log.committed_no) if after_no else 0)

    patch.set(Subscription, "read", read)


@mutant("after the end of a replay one number is passed over", LINKS)
def off_by_one_at_the_end(patch: Patch) -> None:
    before = RemoteCursor.__dict__["ends"]

    def ends(self: Any, end_no: int) -> None:
        before(self, end_no)
        self.next_no = self.end_no + 2

    patch.set(RemoteCursor, "ends", ends)


@mutant(
    "a fetch whose holder is lost is forgotten",
    FETCHES,
)
def lost_fetch_is_forgotten(patch: Patch) -> None:
    def lost(self: Any, log_id: Any) -> None:
        del self, log_id

    patch.set(RemoteReading, "lost", lost)


@mutant("a message to a queue goes to two members", CALM)
def queue_to_two(patch: Patch) -> None:
    before = QueueGroup.__dict__["_choose"]

    def choose(self: Any, members: Any) -> Any:
        chosen = before(self, members)
        others = [member for member in members if member is not chosen]
        if self._held and others:
            others[0].hand_over(self._held[0])
        return chosen

    patch.set(QueueGroup, "_choose", choose)


@mutant("what a queue group has read of a log is handed to nobody now and then", CALM)
def queue_loses(patch: Patch) -> None:
    before = QueueGroup.__dict__["_whom"]
    asked = 0

    def whom(self: Any, able: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked % 5 == 0 and self._held:
            self._held.popleft()
        return before(self, able)

    patch.set(QueueGroup, "_whom", whom)


@mutant("other nodes are not told of new subscriptions after a link was lost", LINKS)
def interest_not_told(patch: Patch) -> None:
    def tell(self: Any, messages: Any) -> None:
        for message in messages:
            for link in self.links.values():
                if not self.links_lost:
                    link.tell(message)

    patch.set(Peers, "_tell", tell)


@mutant("bytes that are committed still count as uncommitted", CALM)
def never_counted_off(patch: Patch) -> None:
    def committed(self: Any, size_bytes: int) -> None:
        del self, size_bytes

    patch.set(ClientSession, "committed", committed)


@mutant("replies do not come back", CALM)
def replies_lost(patch: Patch) -> None:
    def reply(self: Any, session: Any, message: Any) -> None:
        del self, session, message

    patch.set(RunningNode, "reply", reply)
