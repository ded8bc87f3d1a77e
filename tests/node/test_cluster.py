"""Nodes that find each other, in the simulator: real nodes, real clients, virtual time."""

from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import permutations

import pytest
import trio

import busnode
from busnode.client import Bus, MemoryCursorStore, Message, Subscription
from busnode.client.bus import Scope, Start
from busnode.client.providers import Accepts, Request
from busnode.wire.control import Ack
from busnode.wire.frames import Flags
from busnode.wire.ids import BrokerId
from busnode.world.discovery import Hint
from busnode.world.network import Address

from .raw_client import dialled
from .simulated_cluster import SimulatedCluster, SimulatedNode, on_cluster, seed_address

SEEDS = pytest.mark.parametrize("seed", range(3))


async def take(messages: Subscription, count: int) -> list[Message]:
    with trio.fail_after(60):
        return [await anext(messages) for _ in range(count)]


async def nothing_more(messages: Subscription, wait_s: float = 2.0) -> None:
    """Nothing comes for a while of virtual time."""
    with trio.move_on_after(wait_s):
        message = await anext(messages)
        raise AssertionError(f"{message} came, and nothing should have")


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


# Finding each other -------------------------------------------------------------------------------


@SEEDS
def test_nodes_that_hear_of_each_other_are_one_mesh_at_once(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c", "d", "e")
    async def _(cluster: SimulatedCluster) -> None:
        assert trio.current_time() < 5, "as fast as they start"
        for node in cluster.nodes.values():
            assert len(node.node.peers.links) == len(node.node.peers.sessions) == 4


def test_nodes_that_know_only_a_neighbour_become_a_full_mesh() -> None:
    async def chain(cluster: SimulatedCluster) -> None:
        cluster.ether.loses = lambda _, __: True
        await cluster.add("a")
        for before, name in (("a", "b"), ("b", "c"), ("c", "d")):
            await cluster.add(name, seeds=(seed_address(before),))
        assert await cluster.meshed() < 5

    on_cluster(0)(chain)


def test_a_node_of_another_cluster_is_counted_and_left_alone() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        other = await cluster.add("x", cluster_id="other")
        await trio.sleep(10)
        assert cluster["a"].linked == {"b"}
        assert not other.node.peers.links
        assert not other.node.peers.sessions
        assert cluster["a"].node.peers.membership.counts.other_cluster > 0
        assert other.node.peers.membership.counts.other_cluster > 0


def test_a_seed_of_another_cluster_is_refused_with_a_reason() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        other = await cluster.add("x", cluster_id="other", seeds=(seed_address("a"),))
        peers = other.node.peers
        await cluster.until(lambda: any(c.error for c in peers.membership.candidates))
        (candidate,) = peers.membership.candidates
        assert "WRONG_CLUSTER" in str(candidate.error)
        assert not cluster["a"].node.peers.sessions


def test_a_node_that_is_told_to_dial_itself_stays_alone_and_well() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        peers = cluster["a"].node.peers
        peers.dialling.hint(Hint((seed_address("a"),), "seed"))
        await cluster.until(lambda: peers.membership.counts.own > 0)
        await trio.sleep(10)
        assert not peers.links
        assert not peers.sessions
        assert not peers.membership.candidates


def test_two_nodes_of_one_name_are_both_members() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        await cluster.add("b", name="a")
        await cluster.until(lambda: len(cluster["a"].node.peers.links) == 1)
        await cluster.until(lambda: len(cluster["b"].node.peers.links) == 1)
        async with (
            cluster.client("a", name="one") as one,
            cluster.client("b", name="two") as two,
            two.subscribe("/t") as messages,
        ):
            await one.publish("/t", b"1")
            assert payloads(await take(messages, 1)) == [b"1"]


@SEEDS
def test_a_peer_that_comes_back_with_a_new_broker_id_is_linked_again(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        before = cluster["b"].node.broker_id
        await cluster["b"].kill()
        assert await cluster.until(lambda: cluster["a"].linked == {"c"}) < 5
        await cluster["b"].start()
        assert cluster["b"].node.broker_id != before
        assert await cluster.meshed() < 5
        assert before not in cluster["a"].node.peers.links


def test_a_node_that_leaves_says_goodbye_and_is_not_dialled_any_more() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await cluster["b"].stop()
        peers = cluster["a"].node.peers
        await cluster.until(lambda: not peers.links and not peers.sessions)
        await trio.sleep(10)
        assert not peers.membership.candidates


def test_forged_hints_neither_drop_a_link_nor_fill_the_table() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        peers = cluster["a"].node.peers
        link = next(iter(peers.links.values()))
        for number in range(10_000):
            broker_id = BrokerId(number.to_bytes(16, "big"))
            address = Address(f"nowhere{number}", 1)
            peers.dialling.hint(Hint((address,), "mdns", "sim", 1, broker_id, "forged"))
            peers.dialling.hint(Hint((address,), "mdns", "sim", 1, link.broker_id, "forged"))
        assert len(peers.membership.candidates) <= 256
        await trio.sleep(30)
        assert list(peers.links.values()) == [link], "the same link as before"
        # It can still be found again after all that.
        await cluster["b"].kill()
        await cluster["b"].start()
        assert await cluster.meshed() < 10


# Forwarding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("at", "subscribed_at"), list(permutations("abc", 2)))
def test_what_is_published_anywhere_reaches_a_subscriber_anywhere_once(
    at: str, subscribed_at: str, persistent: bool
) -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client(at, name="publisher") as publisher,
            cluster.client(subscribed_at, name="consumer") as consumer,
            consumer.subscribe("/plant/+/temp") as messages,
            consumer.subscribe("/plant/*") as others,
        ):
            for number in range(5):
                await publisher.publish("/plant/north/temp", b"%d" % number, persistent=persistent)
            await publisher.publish("/elsewhere", b"no", persistent=persistent)
            expected = [b"%d" % number for number in range(5)]
            assert payloads(await take(messages, 5)) == expected
            assert payloads(await take(others, 5)) == expected
            await nothing_more(messages)
            await nothing_more(others)


@pytest.mark.parametrize(
    ("scope", "here", "there"), [("local", 1, 0), ("remote", 0, 1), ("global", 1, 1)]
)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("queue", [None, "workers"])
def test_a_scope_decides_whose_clients_are_reached(
    scope: Scope, here: int, there: int, persistent: bool, queue: str | None
) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            publisher.subscribe("/t", queue=queue) as near,
            consumer.subscribe("/t", queue=queue and queue + "2") as far,
        ):
            await trio.sleep(1)  # a queue group is told of, and nobody waits for it
            for number in range(3):
                await publisher.publish("/t", b"%d" % number, persistent=persistent, scope=scope)
            assert len(await take(near, 3 * here)) == 3 * here
            assert len(await take(far, 3 * there)) == 3 * there
            await nothing_more(near)
            await nothing_more(far)


def test_interest_is_told_once_counted_and_taken_back() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        (session,) = cluster["a"].node.peers.sessions.values()
        async with cluster.client("b", name="one") as one, cluster.client("b", name="two") as two:
            async with one.subscribe("/t/*"):
                assert session.interests == 1, "it is there when the subscription stands"
                async with two.subscribe("/t/*"), one.subscribe("/t/*"):
                    assert session.interests == 1
                await trio.sleep(1)
                assert session.interests == 1
            await cluster.until(lambda: session.interests == 0)
        async with cluster.client("a", name="publisher") as publisher:
            await publisher.publish("/t/1", b"for nobody")
            await trio.sleep(1)
        assert cluster["a"].node.publishing.messages_forwarded == 0


def test_a_subscription_made_while_a_link_comes_up_is_told_once_and_waits_for_nobody() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="consumer") as consumer, AsyncExitStack() as stack:
            for number in range(50):
                await stack.enter_async_context(consumer.subscribe(f"/t/{number}"))
            cluster.nursery.start_soon(cluster.add, "b")
            for number in range(50, 500):
                await stack.enter_async_context(consumer.subscribe(f"/t/{number}"))
            await cluster.meshed()
            (session,) = cluster["b"].node.peers.sessions.values()
            await cluster.until(lambda: session.interests == 500)
            (link,) = cluster["a"].node.peers.links.values()
            # What is told as it changes may be told again by whoever tells everything.
            for message in cluster["a"].node.peers.interests.everything():
                link.tell(message)
            await cluster.until(lambda: not link.unanswered, "an answer to each")
            began = trio.current_time()
            await stack.enter_async_context(consumer.subscribe("/t/7"))
            assert trio.current_time() - began < 0.5, "nobody is waited for"


def test_messages_make_one_hop_and_no_more() -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="one") as one,
            cluster.client("c", name="two") as two,
            one.subscribe("/t") as first,
            two.subscribe("/t") as second,
        ):
            for number in range(10):
                await publisher.publish("/t", b"%d" % number)
            assert len(await take(first, 10)) == len(await take(second, 10)) == 10
            await nothing_more(first)
        counts = {
            name: (
                cluster[name].node.publishing.messages_forwarded,
                cluster[name].node.publishing.messages_from_peers,
            )
            for name in "abc"
        }
        assert counts == {"a": (20, 0), "b": (0, 10), "c": (0, 10)}


# Logs of other nodes ------------------------------------------------------------------------------


async def publish(bus: Bus, topic: str, numbers: range) -> None:
    async with bus.publisher(topic, persistent=True) as out:
        for number in numbers:
            await out.send(b"%d" % number)
        await out.flush()


@SEEDS
def test_a_returning_client_gets_what_it_missed_of_all_nodes_logs(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        store = MemoryCursorStore()
        async with cluster.client("a", name="pa") as at_a, cluster.client("b", name="pb") as at_b:
            async with (
                cluster.client("c", name="consumer") as consumer,
                consumer.subscribe("/t/*", cursors=store) as messages,
            ):
                await publish(at_a, "/t/1", range(100))
                await publish(at_b, "/t/1", range(100, 200))
                assert len(await take(messages, 200)) == 200
                messages.done()
            await publish(at_a, "/t/1", range(200, 2000))
            await publish(at_b, "/t/2", range(2000, 3000))
            # Home is another node now, and one of the logs is its own.
            async with (
                cluster.client("b", name="consumer") as consumer,
                consumer.subscribe("/t/*", cursors=store, on_gap="raise") as messages,
            ):
                got = payloads(await take(messages, 2800))
                await nothing_more(messages)
        assert sorted(map(int, got)) == list(range(200, 3000))
        assert [int(p) for p in got if int(p) < 2000] == list(range(200, 2000))


@pytest.mark.parametrize("start", ["earliest", "time", "latest"])
def test_a_first_subscription_begins_in_other_nodes_logs_where_it_says(start: str) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
        ):
            await publish(publisher, "/t", range(10))
            await trio.sleep(10)
            moment = datetime.fromtimestamp(cluster["a"].node.world.clock.utc_us() / 1e6, UTC)
            await trio.sleep(10)
            await publish(publisher, "/t", range(10, 20))
            begin: dict[str, Start] = {"earliest": "earliest", "time": moment, "latest": "latest"}
            async with consumer.subscribe("/t", start=begin[start]) as messages:
                await publish(publisher, "/t", range(20, 30))
                first = {"earliest": 0, "time": 10, "latest": 20}[start]
                got = payloads(await take(messages, 30 - first))
                assert got == [b"%d" % number for number in range(first, 30)]
                await nothing_more(messages)


@SEEDS
def test_a_subscriber_joins_while_another_node_publishes_and_misses_nothing(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        total = 3000
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            trio.open_nursery() as nursery,
        ):

            async def work() -> None:
                for first in range(0, total, 50):
                    await publish(publisher, "/t", range(first, first + 50))
                    await trio.sleep(cluster.entropy.between(0, 0.01))

            async def join() -> None:
                await trio.sleep(cluster.entropy.between(0, 0.5))
                async with consumer.subscribe("/t", start="earliest", on_gap="raise") as messages:
                    got = payloads(await take(messages, total))
                assert got == [b"%d" % number for number in range(total)]

            nursery.start_soon(work)
            for _ in range(20):
                nursery.start_soon(join)


def test_a_slow_consumer_of_another_nodes_log_is_moved_back_to_replay() -> None:
    @on_cluster(0, "a", "b", mirrors=0)  # else it would read the copy at its own home
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", credit_bytes=64 * 1024) as messages,
        ):
            async with publisher.publisher("/t", persistent=True) as out:
                for number in range(2000):
                    await out.send(b"%5d" % number + bytes(10_000))
                await out.flush()
            (session,) = cluster["b"].node.sessions.values()
            assert session.outgoing.queued_bytes < 6 * 1024 * 1024, "20 MB were published"
            got = await take(messages, 2000)
            assert [int(message.payload[:5]) for message in got] == list(range(2000))
            await nothing_more(messages)
        (session_of_b,) = cluster["a"].node.peers.sessions.values()
        assert session_of_b.replays > 0


@SEEDS
def test_what_was_dropped_on_the_way_to_another_node_is_told_whom_it_was_for(seed: int) -> None:
    """What waits for a node that cannot be reached for a moment, and is too much to be kept."""
    dropped: Counter[str] = Counter()

    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t/+", on_dropped=partial(count_in, dropped, "all")) as all_of_it,
            consumer.subscribe("/t/1", on_dropped=partial(count_in, dropped, "one")) as one,
            consumer.subscribe("/u", on_dropped=partial(count_in, dropped, "other")) as other,
        ):
            await cluster.until(lambda: len(cluster["a"].node.router) == 3)
            cluster.network.partition("a", "b")
            async with publisher.publisher("/t/1") as first, publisher.publisher("/t/2") as second:
                for number in range(500):
                    await first.send(b"%d" % number + bytes(20_000))
                    await second.send(b"%d" % number + bytes(20_000))
            await trio.sleep(0.2)
            cluster.network.heal_all()
            for topic in ("/t/1", "/t/2", "/u"):
                await publisher.publish(topic, b"end")
            ends = {"/t/1": 0, "/t/2": 0}
            came: Counter[str] = Counter()
            while 0 in ends.values():
                for message in await take(all_of_it, 1):
                    came[message.topic] += 1
                    ends[message.topic] += message.payload == b"end"
            ones = 0
            while (await take(one, 1))[0].payload != b"end":
                ones += 1
            assert (await take(other, 1))[0].payload == b"end"
            assert 0 < dropped["one"] < dropped["all"], "more came than is kept"
            assert came.total() + dropped["all"] == 1002
            assert ones + 1 + dropped["one"] == 501
            assert ones + 1 == came["/t/1"]
            assert not dropped["other"]


def count_in(counts: Counter[str], name: str, messages: int) -> None:
    counts[name] += messages


@SEEDS
def test_after_a_partition_each_side_gets_what_the_other_wrote(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="pa") as at_a,
            cluster.client("c", name="pc") as at_c,
            at_a.subscribe("/t", on_gap="raise") as near,
            at_c.subscribe("/t", on_gap="raise") as far,
        ):
            for other in "ab":
                cluster.network.partition("c", other)
            detected = await cluster.until(lambda: cluster["a"].linked == {"b"})
            assert detected < 6
            # c is gone, as far as a can tell, once b has said that it has lost it too.
            await cluster.until(lambda: not cluster["a"].node.peers.missing_links())
            await publish(at_a, "/t", range(100))
            await publish(at_c, "/t", range(100, 200))
            assert len(await take(near, 100)) == len(await take(far, 100)) == 100
            cluster.network.heal_all()
            assert await cluster.meshed() < 10
            assert payloads(await take(near, 100)) == [b"%d" % n for n in range(100, 200)]
            assert payloads(await take(far, 100)) == [b"%d" % n for n in range(100)]
            await publish(at_a, "/t", range(200, 210))
            assert len(await take(far, 10)) == len(await take(near, 10)) == 10
            await nothing_more(near)
            await nothing_more(far)


def test_a_missing_link_is_named_by_all_and_healed() -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        cluster.network.partition("a", "c")

        def seen_by(name: str) -> set[tuple[str, str]]:
            return {tuple(link) for link in cluster[name].node.peers.missing_links()}  # type: ignore[misc]

        # Each of the two knows of its own; b hears of both.
        expected = {"a": {("a", "c")}, "b": {("a", "c"), ("c", "a")}, "c": {("c", "a")}}
        for name, links in expected.items():
            await cluster.until(
                lambda name=name, links=links: seen_by(name) == links,  # type: ignore[misc]
                f"news for {name}",
            )
        cluster.network.heal_all()
        assert await cluster.meshed() < 10


@SEEDS
@pytest.mark.parametrize("done", [True, False])
def test_a_batch_in_two_logs_comes_once_to_a_consumer_that_was_away_meanwhile(
    seed: int, done: bool
) -> None:
    """Its publisher got no ack from one node and sent it to another one. What the consumer was not
    done with before it went must come again."""

    @on_cluster(seed, "a", "b", "c", mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        host = cluster.network.host("publisher")
        flags = int(Flags.PERSISTENT | Flags.GLOBAL)
        store = MemoryCursorStore()
        got: list[bytes] = []
        for visit, node in enumerate(("a", "b")):
            async with dialled(host, Address(node, 4250), 77) as client:
                await client.hello()
                numbered = [(b"visit %d" % visit, 3 + visit), (b"twice", 5)]
                for payload, seq in numbered:
                    await client.send(client.batch("/t", [payload], flags, seq=seq))
                    await client.expect(Ack)
            async with (
                cluster.client("c", name="consumer") as consumer,
                consumer.subscribe("/t", start="earliest", cursors=store) as messages,
            ):
                with trio.move_on_after(5):
                    async for message in messages:
                        got.append(message.payload)
                        if not visit and not done and message.payload == b"twice":
                            break  # it is not done with this one
                if done:
                    messages.done()
        if done:
            assert got == [b"visit 0", b"twice", b"visit 1"]
        else:
            assert Counter(got) == Counter({b"twice": 2, b"visit 0": 1, b"visit 1": 1})


# Queue groups -------------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("persistent", [False, True])
def test_one_member_in_the_whole_cluster_gets_each_message(seed: int, persistent: bool) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        got: list[tuple[str, bytes]] = []

        async def work(name: str, at: str, ready: trio.Event) -> None:
            async with (
                cluster.client(at, name=name) as bus,
                bus.subscribe("/t", queue="workers") as messages,
            ):
                ready.set()
                async for message in messages:
                    got.append((at, message.payload))

        async with trio.open_nursery() as nursery:
            for name, at in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "c")):
                ready = trio.Event()
                nursery.start_soon(work, name, at, ready)
                await ready.wait()
            await trio.sleep(1)
            for at in "abc":
                async with cluster.client(at, name=f"publisher at {at}") as publisher:
                    for number in range(200):
                        payload = f"{at} {number}".encode()
                        await publisher.publish("/t", payload, persistent=persistent)
                        await trio.sleep(0.001)  # a batch each: it is batches that are shared
            await cluster.until(lambda: len(got) >= 600)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert len(got) == len({payload for _, payload in got}) == 600
        shares = Counter(at for at, _ in got)
        assert shares["b"] > shares["a"], "two members get more than one"
        assert min(shares.values()) > 60


@SEEDS
@pytest.mark.parametrize("end", ["leaves", "dies", "node dies", "cut off"])
def test_what_a_member_elsewhere_was_not_done_with_goes_to_another(seed: int, end: str) -> None:
    """Each message is done at least once; those of a member that lives on exactly once."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        done: list[bytes] = []
        entropy = cluster.entropy

        async def work(name: str, at: str, scope: trio.CancelScope, ready: trio.Event) -> None:
            with scope:
                async with (
                    cluster.client(at, name=name, deadline_s=5) as bus,
                    bus.subscribe("/t", queue="workers") as messages,
                ):
                    ready.set()
                    async for message in messages:
                        await trio.sleep(entropy.between(0.0, 0.2))
                        done.append(message.payload)
                        messages.done()

        async with trio.open_nursery() as nursery:
            scopes: dict[str, trio.CancelScope] = {}
            for name, at in (("1", "b"), ("2", "b"), ("3", "c")):
                ready = trio.Event()
                scopes[name] = trio.CancelScope()
                nursery.start_soon(work, name, at, scopes[name], ready)
                await ready.wait()
            await trio.sleep(1)
            async with cluster.client("a", name="publisher") as publisher:
                for number in range(120):
                    await publisher.publish("/t", b"%d" % number, persistent=True)
            await trio.sleep(entropy.between(0.5, 2.0))
            if end == "leaves":
                for name in "12":
                    scopes[name].cancel()
                    await trio.sleep(entropy.between(0.0, 0.3))
            elif end == "node dies":
                for name in "12":
                    scopes[name].cancel()
                await cluster["b"].kill()
            elif end == "dies":
                for name in "12":
                    cluster.network.reset(name)
                    scopes[name].cancel()
            else:
                cluster.network.partition("a", "b")
            await cluster.until(lambda: len(set(done)) == 120, "all that was published")
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        repeats = len(done) - len(set(done))
        print(f"{repeats} repeats")
        if end == "leaves":
            assert repeats == 0, "who leaves says first what it is done with"


# Requests -----------------------------------------------------------------------------------------


async def provided(cluster: SimulatedCluster, at: str, providers: int) -> None:
    """Wait until a node knows of so many providers, its own clients' and other nodes'."""
    requests = cluster[at].node.bidding.requests
    await cluster.until(lambda: requests.providers == providers, "news of a provider")


@pytest.mark.parametrize("accepts", [None, lambda _: True])
def test_a_request_is_answered_at_another_node(accepts: Accepts) -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="asker") as asker,
            cluster.client("b", name="provider") as provider,
            provider.provide("/dtc/+", lambda request: b"b " + request.payload, accepts=accepts),
        ):
            await provided(cluster, "a", 1)
            reply = await asker.request("/dtc/read", b"42", timeout=2)
            assert reply.payload == b"b 42"
            with pytest.raises(busnode.NoProvider):
                await asker.request("/other", b"", timeout=2)


def test_many_replies_come_from_all_nodes_and_end() -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a", name="pa") as at_a,
            cluster.client("b", name="pb") as at_b,
            cluster.client("c", name="pc") as at_c,
            at_a.provide("/t", lambda _: b"a"),
            at_b.provide("/t", lambda _: b"b", accepts=lambda _: True),
            at_b.provide("/t", lambda _: b"b2"),
            at_c.provide("/t", lambda _: b"no", accepts=lambda _: False),
        ):
            await provided(cluster, "a", 3)
            began = trio.current_time()
            replies = [reply.payload async for reply in at_a.request_many("/t", timeout=30)]
            assert sorted(replies) == [b"a", b"b", b"b2"]
            assert trio.current_time() - began < 5, "it ended with the last, not with its time"


@pytest.mark.parametrize("accepts", [None, lambda _: True])
def test_when_a_providers_node_dies_another_one_answers(
    accepts: Accepts,
) -> None:
    @on_cluster(0, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        hanging = 0
        release = trio.Event()

        async def late(_: Request) -> bytes:
            nonlocal hanging
            hanging += 1
            await release.wait()
            return b"too late"

        async with (
            cluster.client("a", name="asker") as asker,
            cluster.client("b", name="pb") as at_b,
            cluster.client("c", name="pc") as at_c,
            at_b.provide("/t", late, accepts=accepts),
            at_c.provide("/t", lambda _: b"c", accepts=accepts),
            trio.open_nursery() as nursery,
        ):
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append((await asker.request("/t", timeout=60)).payload)

            await provided(cluster, "a", 2)
            for _ in range(20):
                nursery.start_soon(ask)
            await cluster.until(lambda: len(answers) + hanging == 20)
            assert hanging > 0
            await cluster["b"].kill()
            assert await cluster.until(lambda: len(answers) == 20) < 10, "long before its time"
            assert set(answers) == {b"c"}
            release.set()


def test_a_request_whose_only_provider_dies_with_its_node_fails_fast() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        working, release = trio.Event(), trio.Event()

        async def late(_: Request) -> bytes:
            working.set()
            await release.wait()
            return b"too late"

        async def ask(asker: Bus) -> None:
            with pytest.raises(busnode.NoProvider):
                await asker.request("/t", timeout=60)

        async with (
            cluster.client("a", name="asker") as asker,
            cluster.client("b", name="provider") as provider,
            provider.provide("/t", late),
        ):
            await provided(cluster, "a", 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, asker)
                await working.wait()
                began = trio.current_time()
                await cluster["b"].kill()
            assert trio.current_time() - began < 10
            release.set()


# Clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_client_that_knew_one_node_moves_to_another_when_its_own_goes(how: str) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        async with cluster.client("a", name="consumer") as consumer:
            # The others come after it has connected: it is told of them.
            for name in "bc":
                await cluster.add(name)
            await cluster.meshed()
            await trio.sleep(1)
            async with consumer.subscribe("/t") as messages:
                node: SimulatedNode = cluster["a"]
                began = trio.current_time()
                await (node.stop() if how == "stop" else node.kill())
                async with cluster.client("c", name="publisher") as publisher:
                    await cluster.until(lambda: consumer.statistics().connections == 2)
                    await publisher.publish("/t", b"here", persistent=True)
                    assert payloads(await take(messages, 1)) == [b"here"]
                    assert trio.current_time() - began < 5
                home = consumer.statistics().home
                assert home is not None
                assert home.split(":")[0] in ("b", "c")


# Everything at once -------------------------------------------------------------------------------


class Trouble:
    """Nodes die and come back, ways are cut and healed, at random; the last word is all well."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.faults: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        entropy = self.cluster.entropy
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(entropy.between(0.2, 3.0))
            fault = entropy.choose(["kill", "stop", "cut", "reset", "heal"])
            self.faults[fault] += 1
            await self._do(fault)
        self.cluster.network.heal_all()
        for node in self.cluster.nodes.values():
            if not node.is_up:
                await node.start()

    async def _do(self, fault: str) -> None:
        cluster, entropy = self.cluster, self.cluster.entropy
        up = [node for node in cluster.nodes.values() if node.is_up]
        down = [node for node in cluster.nodes.values() if not node.is_up]
        if down and entropy.chance(0.6):
            await entropy.choose(down).start()
            return
        node = entropy.choose(up)
        match fault:
            case "kill" if len(up) > 2:
                await node.kill()
            case "stop" if len(up) > 2:
                await node.stop()
            case "cut":
                cluster.network.partition(node.name, entropy.choose(up).name)
            case "reset":
                cluster.network.reset_connections(node.name)
            case _:
                cluster.network.heal_all()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_acked_messages_arrive_once_and_live_ones_never_twice(seed: int) -> None:
    names = ("a", "b", "c", "d", "e")

    @on_cluster(seed, *names)
    async def _(cluster: SimulatedCluster) -> None:
        acked: set[bytes] = set()
        kept: dict[str, list[Message]] = {name: [] for name in ("x", "y")}
        live: dict[str, list[bytes]] = {name: [] for name in ("x", "y")}
        trouble = Trouble(cluster)

        async def publish_some(name: str) -> None:
            async with cluster.client(*names, name=name, deadline_s=600) as bus:
                for number in range(150):
                    payload = f"{name} {number}".encode()
                    await bus.publish("/kept/" + name, payload, persistent=True)
                    acked.add(payload)
                    await bus.publish("/live", payload)
                    await trio.sleep(cluster.entropy.between(0, 0.5))

        async def consume(name: str, ready: trio.Event) -> None:
            async with (
                cluster.client(*names, name=name, deadline_s=600) as bus,
                bus.subscribe("/kept/*", start="earliest") as messages,
                bus.subscribe("/live") as lives,
                trio.open_nursery() as nursery,
            ):
                ready.set()

                async def listen() -> None:
                    async for message in lives:
                        live[name].append(message.payload)

                nursery.start_soon(listen)
                async for message in messages:
                    kept[name].append(message)

        async with trio.open_nursery() as consuming:
            for name in kept:
                ready = trio.Event()
                consuming.start_soon(consume, name, ready)
                await ready.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble.run, 60.0)
                for name in ("p", "q"):
                    nursery.start_soon(publish_some, name)
            await cluster.meshed()
            for messages in kept.values():
                await cluster.until(
                    lambda messages=messages: acked <= {m.payload for m in messages},  # type: ignore[misc]
                    "the last message",
                )
            await trio.sleep(5)
            consuming.cancel_scope.cancel()
        print(dict(trouble.faults), {name: len(payloads) for name, payloads in live.items()})
        assert sum(trouble.faults.values()) > 10
        for messages in kept.values():
            assert len(messages) == len({message.payload for message in messages}), "a repeat"
            logs: dict[tuple[BrokerId | None, str], list[int]] = {}
            for message in messages:
                assert message.msg_no is not None
                logs.setdefault((message.broker_id, message.topic), []).append(message.msg_no)
            assert all(numbers == sorted(numbers) for numbers in logs.values()), "out of order"
        for payloads_of_one in live.values():
            assert len(payloads_of_one) == len(set(payloads_of_one)), "a live one twice"
            assert payloads_of_one, "not one of the live ones came"
