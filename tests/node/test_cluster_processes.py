"""Nodes in processes of their own that find each other by mDNS on loopback, and are killed."""

import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
import trio

import busnode
from busnode.client import Bus, Subscription, connect
from busnode.client.providers import Request

from .process_cluster import PATIENCE_S, cluster_of, take, until

pytestmark = pytest.mark.scenario


async def nothing_else(topic: str, buses: list[Bus], inboxes: list[Subscription]) -> None:
    """What each publishes last is the next that comes everywhere: no repeat was on its way."""
    for number, bus in enumerate(buses):
        for persistent in (False, True):
            last = f"last of {number} {persistent}".encode()
            await bus.publish(topic, last, persistent=persistent)
            for messages in inboxes:
                assert [message.payload for message in await take(messages, 1)] == [last]


async def test_three_nodes_find_each_other_by_mdns_and_are_one_bus(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        took = await cluster.meshed()
        print(f"fully meshed {took:.2f} s after the last start")
        assert took < 5, "this is what was promised, and takes a tenth of it"
        async with AsyncExitStack() as stack:
            buses = [await stack.enter_async_context(connect(node.url)) for node in cluster.nodes]
            inboxes = [await stack.enter_async_context(bus.subscribe("/t/*")) for bus in buses]
            for persistent in (False, True):
                for here, there in permutations(range(3), 2):
                    payload = f"{here} to {there} {persistent}".encode()
                    await buses[here].publish(f"/t/{there}", payload, persistent=persistent)
                    for messages in inboxes:
                        assert [m.payload for m in await take(messages, 1)] == [payload]
            await nothing_else("/t/last", buses, inboxes)


async def test_two_clusters_in_one_network_never_see_each_other(tmp_path: Path) -> None:
    async with (
        cluster_of(tmp_path / "one", 2) as one,
        cluster_of(tmp_path / "two", 2) as two,
    ):
        for cluster in (one, two):
            await cluster.meshed()
        async with (
            connect(one.url()) as at_one,
            connect(two.url()) as at_two,
            at_one.subscribe("/t") as of_one,
            at_two.subscribe("/t") as of_two,
        ):
            await at_one.publish("/t", b"one")
            await at_two.publish("/t", b"two")
            assert [m.payload for m in await take(of_one, 1)] == [b"one"]
            assert [m.payload for m in await take(of_two, 1)] == [b"two"]
            await nothing_else("/t", [at_one], [of_one])
            await nothing_else("/t", [at_two], [of_two])
        for cluster in (one, two):
            for node in cluster.nodes:
                found = (await cluster.status(node))["cluster"]
                assert len(found["peers"]) == 1
        seen = [
            (await cluster.status(node))["cluster"]["discovery"]["hints_other_cluster"]
            for cluster in (one, two)
            for node in cluster.nodes
        ]
        assert sum(seen) > 0, "they were in the same network"


async def test_when_a_node_is_killed_its_clients_are_served_by_others(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.meshed()
        first, second, third = cluster.nodes
        hanging = trio.Event()
        release = trio.Event()
        failed: list[tuple[float, busnode.BusnodeError]] = []
        answered: list[bytes] = []

        async def late(_: Request) -> bytes:
            hanging.set()
            await release.wait()
            return b"late"

        async def ask(asker: Bus) -> None:
            try:
                answered.append((await asker.request("/slow", timeout=PATIENCE_S)).payload)
            except busnode.BusnodeError as error:
                failed.append((time.monotonic(), error))

        async with AsyncExitStack() as stack:
            # It knows the first node alone; of the others it is told.
            client = await stack.enter_async_context(connect(first.url, name="client"))
            other = await stack.enter_async_context(connect(second.url, name="other"))
            at_first = await stack.enter_async_context(connect(first.url, name="provider"))
            messages = await stack.enter_async_context(client.subscribe("/t"))
            await stack.enter_async_context(at_first.provide("/slow", late))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, other)
                await hanging.wait()
                killed_at = time.monotonic()
                first.end()
                await until(lambda: client.statistics().connections == 2, "another home")
                served_s = time.monotonic() - killed_at
                await other.publish("/t", b"here", persistent=True)
                await client.publish("/t", b"and back", persistent=True)
                got = {message.payload for message in await take(messages, 2)}
                assert got == {b"here", b"and back"}
                await until(lambda: bool(failed or answered), "an end of the request")
                ended_s = (failed[0][0] if failed else time.monotonic()) - killed_at
                release.set()
            print(f"served again after {served_s:.2f} s, a request in flight ended after "
                  f"{ended_s:.2f} s: {failed or answered}")  # fmt: skip
            assert served_s < 3, "this is what was promised"
            assert ended_s < 3
        del third


@pytest.mark.parametrize("seed", [int(os.environ.get("BUSNODE_TEST_SEED", "1"))])
async def test_while_the_topology_changes_nothing_loops_and_nothing_repeats(
    tmp_path: Path, seed: int
) -> None:
    """5 nodes, one of which is killed, ended or frozen at a time; 10,000 messages of each kind."""
    print(f"seed {seed}")
    chance = Random(seed)
    messages_each = 2_500
    async with cluster_of(tmp_path, 5) as cluster:
        await cluster.meshed()
        stable, *others = cluster.nodes
        kept: Counter[bytes] = Counter()
        live: Counter[bytes] = Counter()
        numbers: dict[tuple[bytes | None, str], list[int]] = {}
        acked: set[bytes] = set()
        faults: Counter[str] = Counter()
        planned = ["kill", "leave", "freeze", "kill", "kill", "freeze"]
        chance.shuffle(planned)

        async def publish(bus: Bus, name: str) -> None:
            async with bus.publisher(f"/kept/{name}", persistent=True) as out:
                for number in range(0, messages_each, 10):
                    some = [f"{name} {n}".encode() for n in range(number, number + 10)]
                    for payload in some:
                        await out.send(payload)
                        await bus.publish("/live", payload)
                    await out.flush()
                    acked.update(some)
                    # So that the messages last as long as the trouble does.
                    await trio.sleep(chance.uniform(0, 0.06))
                    while number / messages_each > (faults.total() + 1) / len(planned):
                        await trio.sleep(0.005)

        async def trouble() -> None:
            for fault in planned:
                await trio.sleep(chance.uniform(0.05, 0.5))
                node = chance.choice(others)
                if fault == "freeze":  # for less or more than heartbeats bear
                    node.send(signal.SIGSTOP)
                    await trio.sleep(chance.uniform(0.1, 4.5))
                    node.send(signal.SIGCONT)
                else:
                    how = signal.SIGKILL if fault == "kill" else signal.SIGTERM
                    await trio.to_thread.run_sync(node.end, how)
                    await trio.sleep(chance.uniform(0, 0.5))
                    await trio.to_thread.run_sync(node.start)
                faults[fault] += 1

        async with AsyncExitStack() as stack:
            join = partial(connect, deadline_s=60.0)
            consumer = await stack.enter_async_context(join(stable.url, name="consumer"))
            inbox = await stack.enter_async_context(consumer.subscribe("/kept/*", start="earliest"))
            lives = await stack.enter_async_context(consumer.subscribe("/live"))
            publishers = [
                await stack.enter_async_context(join(cluster.url(), name=f"p{n}")) for n in range(4)
            ]
            async with trio.open_nursery() as consuming:

                async def take_kept() -> None:
                    async for message in inbox:
                        kept[message.payload] += 1
                        assert message.msg_no is not None
                        log = (message.broker_id, message.topic)
                        numbers.setdefault(log, []).append(message.msg_no)

                async def take_live() -> None:
                    async for message in lives:
                        live[message.payload] += 1

                consuming.start_soon(take_kept)
                consuming.start_soon(take_live)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trouble)
                    for number, bus in enumerate(publishers):
                        nursery.start_soon(publish, bus, f"p{number}")
                await cluster.meshed()
                await until(lambda: acked <= kept.keys(), "the last message")
                consuming.cancel_scope.cancel()
            repeats = inbox.statistics().repeats
        hops = {
            node.name: (await cluster.status(node))["counters"]["messages_from_peers"]
            for node in cluster.nodes
        }
        print(f"faults {dict(faults)}; {len(acked)} acked, {len(kept)} received, {repeats} repeats "
              f"dropped by the client; {len(live)} of 10000 live ones")  # fmt: skip
        assert faults.total() == len(planned)
        assert hops.pop(stable.name) <= len(kept) + len(live) + repeats, "one hop each"
        assert set(hops.values()) == {0}, "and none to where nobody listens"
        assert len(acked) == 4 * messages_each
        assert set(kept.values()) == {1}, "each once"
        assert set(live.values()) == {1}, "each at most once"
        assert all(found == sorted(found) for found in numbers.values()), "in order in each log"
