"""Nodes in processes of their own that find each other by mDNS on loopback, and are killed."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio

import busnode
from busnode.client import Bus, Message, Subscription, connect
from busnode.client.providers import Request

pytestmark = pytest.mark.scenario

COMMAND: Final = [sys.executable, "-c", "from busnode.node.cli import main; main()", "start"]
PATIENCE_S: Final = 30.0
"""Far more than anything here takes on a busy machine."""


class Node:
    """One node: a process, its ports and its disk, which stay the same when it is started again."""

    def __init__(self, cluster_id: str, name: str, folder: Path) -> None:
        self.cluster_id = cluster_id
        self.name = name
        self._folder = folder
        self._ports: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self.told: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self.told["client"])

    @property
    def url(self) -> str:
        return f"bus://{self.address}"

    def start(self) -> None:
        settings = {
            "--cluster-id": self.cluster_id, "--name": self.name, "--http-port": "off",
            "--data": str(self._folder / self.name), "--port": "0", "--peer-port": "0",
            **self._ports,
        }  # fmt: skip
        words = [word for setting in settings.items() for word in setting]
        around = {k: v for k, v in os.environ.items() if not k.startswith("BUSNODE_")}
        with (self._folder / f"{self.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                [*COMMAND, *words, "--json"], env=around, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.told = json.loads(self._process.stdout.readline())
        self._ports = {
            "--port": self.told["client"].rpartition(":")[2],
            "--peer-port": self.told["peer"].rpartition(":")[2],
        }

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(PATIENCE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Cluster:
    def __init__(self, folder: Path, cluster_id: str | None = None) -> None:
        self.id = cluster_id or f"test-{uuid.uuid4().hex[:12]}"
        self.nodes: list[Node] = []
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def add(self, name: str) -> Node:
        node = Node(self.id, name, self._folder)
        node.start()
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.end()

    def url(self, *first: Node) -> str:
        """All nodes, these alone where some are named."""
        return "bus://" + ",".join(node.address for node in first or self.nodes)

    async def status(self, node: Node) -> dict[str, Any]:
        async with connect(node.url, name="status", deadline_s=PATIENCE_S) as bus:
            found: dict[str, Any] = json.loads((await bus.request("/$sys/status")).payload)
            return found

    async def meshed(self) -> float:
        """How long it took until each node was linked with each other one, both ways."""
        began = time.monotonic()
        names = {node.name for node in self.nodes}
        with trio.fail_after(PATIENCE_S):
            for node in self.nodes:
                while True:
                    cluster = (await self.status(node))["cluster"]
                    peers = cluster["peers"]
                    linked = {p["name"] for p in peers if p["link"] == "up" and p["dials_us"]}
                    if linked == names - {node.name} and not cluster["missing_links"]:
                        break
                    await trio.sleep(0.01)
        return time.monotonic() - began


@asynccontextmanager
async def cluster_of(folder: Path, size: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder)
    try:
        for number in range(1, size + 1):
            await trio.to_thread.run_sync(cluster.add, f"n{number}")
        yield cluster
    finally:
        cluster.close()


async def until(holds: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    with trio.move_on_after(PATIENCE_S) as scope:
        while not holds():
            await trio.sleep(0.005)
    assert not scope.cancelled_caught, f"{what} did not come"
    return time.monotonic() - began


async def take(messages: Subscription, count: int) -> list[Message]:
    with trio.fail_after(PATIENCE_S):
        return [await anext(messages) for _ in range(count)]


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
